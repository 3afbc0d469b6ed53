import { defineLane, flag, needNative, oneOf } from "../support/lane.ts";
import { AgentStage, type Hits, ProxyStage } from "./stage.ts";

const HITS_MS_MAX = 20;
const TURN_MS_MAX = 5;
const GOODPUT_MIN = 0.9;
/** The monitor forgets a long turn after this time. */
const MONITOR_MS = 15_500;

const AGENT_FLOODS: readonly string[] = [
  ...["none", "nats-commands", "nats-large", "nats-ping", "zmq-batch", "bodies", "idle", "greedy"],
  ...["connections", "http", "http-large", "metrics"],
];
/** Floods of a router, by what its process is asked for. */
const PROXY_FLOODS: Readonly<Record<string, string>> = {
  headers: "headers",
  "proxy-bodies": "proxy-bodies",
  "proxy-idle": "idle",
  "proxy-zmq": "zmq-batch",
};

const FLOODS = [...AGENT_FLOODS, ...Object.keys(PROXY_FLOODS)];

interface Row {
  readonly flood: string;
  readonly skipped?: string;
  readonly hits?: Hits;
  /** With waits for a processor, which the flood itself uses on a small host. */
  readonly longest_turn_ms?: number;
  readonly longest_turn_cpu_ms?: number;
  readonly long_turns?: number;
  readonly goodput?: number;
  readonly sent?: unknown;
  readonly ok: boolean;
}

interface Window {
  readonly ms: number;
  /** Before each flood, so that the monitor has forgotten the one before. */
  readonly restMs: number;
}

export const lane = defineLane({
  help: `
Starts an agent (and a router in front of two stand-ins of engines), floods it from one source at a
time, and measures the effect on others: the latency of an engine's RAM hits, the processor time of
the longest turn of the agent's event loop by its own monitor, and the goodput of the proxy's other
clients.

  ./dev test:isolation                        every flood, about 4 minutes
  ./dev test:isolation --quick                shorter windows, about 1 minute
  ./dev test:isolation --only zmq-batch       one flood; "none" is the host without one
  ./dev test:isolation --json                 the result as JSON on one line

Floods: nats-commands, nats-large, nats-ping, zmq-batch, bodies, idle, greedy, connections (300 of
one process that open and close again and again), http, http-large, metrics; against the router:
headers (invalid ones), proxy-bodies, proxy-idle, proxy-zmq.
Bounds: RAM hits p99.9 at most 20 ms, no turn with more than 5 ms of processor time, goodput at least
0.9 of before. The row "none" is measured in the same run without a flood: it shows the noise of the
host.

Exit codes: 0 all within bounds; 1 some not; 2 wrong usage.
`,
  options: { quick: flag(), only: oneOf(FLOODS) },
  async run({ quick, only }, host) {
    await needNative();
    const window = quick ? { ms: 3_000, restMs: 0 } : { ms: 10_000, restMs: MONITOR_MS };
    const rows: Row[] = [];
    const add = (row: Row) => {
      rows.push(row);
      host.print(lineOf(row));
    };
    const isWanted = (name: string) => (only ?? name) === name;
    if (AGENT_FLOODS.some(isWanted)) {
      await using stage = await AgentStage.open();
      for (const flood of AGENT_FLOODS) {
        if (flood === "none" || isWanted(flood)) add(await agentRow(stage, flood, window));
      }
    }
    for (const flood of Object.keys(PROXY_FLOODS)) {
      if (isWanted(flood)) add(await proxyRow(flood, window));
    }
    const violations = rows.filter(({ ok }) => !ok).map(({ flood }) => `${flood} is out of bounds`);
    return { violations, json: { ok: violations.length === 0, rows } };
  },
});

async function agentRow(stage: AgentStage, flood: string, window: Window): Promise<Row> {
  const { polite, agent, apiPort, nats } = stage;
  if (flood.startsWith("nats") && nats === null) {
    const isRequired = process.env.REQUIRE_NATS === "1" || process.env.CI === "true";
    return { flood, skipped: "no nats-server on the PATH", ok: !isRequired };
  }
  await Bun.sleep(window.restMs);
  const target =
    flood === "greedy" || flood === "connections"
      ? agent.socketPath
      : flood.startsWith("nats")
        ? nats!.tcpPort
        : apiPort;
  const before = await stage.turns();
  await polite.ask("start");
  const endMs = performance.now() + window.ms;
  const seconds = Math.ceil(window.ms / 1_000) - 1;
  const sent = flood === "none" ? 0 : await stage.flood.ask(flood, target, seconds);
  await Bun.sleep(Math.max(0, endMs - performance.now()));
  const hits = await polite.ask<Hits>("stop");
  await stage.flood.ask("end");
  const after = await stage.turns();
  const long = after.long - before.long;
  const isOk = hits.p999 <= HITS_MS_MAX && long === 0 && hits.misses === 0;
  return {
    ...{ flood, hits, sent, long_turns: long },
    ...{ longest_turn_ms: after.longestMs, longest_turn_cpu_ms: after.longestCpuMs },
    ok: flood === "none" || isOk,
  };
}

/** Goodput of other clients of the proxy during a flood over that before it. */
async function proxyRow(flood: string, window: Window): Promise<Row> {
  await using stage = await ProxyStage.open();
  const seconds = window.ms / 1_000;
  await stage.goodput(1);
  const before = await stage.goodput(seconds);
  const flooding = stage.flood.ask(PROXY_FLOODS[flood]!, stage.port, seconds + 1);
  await Bun.sleep(500);
  const goodput = (await stage.goodput(seconds)) / before;
  const sent = await flooding;
  await stage.flood.ask("end");
  return { flood, goodput, sent, ok: goodput >= GOODPUT_MIN };
}

function lineOf({ flood, skipped, hits, goodput, ok, ...row }: Row): string {
  const ms = (value: number | undefined) => (value === undefined ? "-" : value.toFixed(1));
  const cells = [
    ...[flood.padEnd(14), `p50 ${ms(hits?.p50)}`, `p99 ${ms(hits?.p99)}`],
    ...[`p99.9 ${ms(hits?.p999)}`, `max ${ms(hits?.max)}`],
    `longest turn ${ms(row.longest_turn_cpu_ms)} (with waits ${ms(row.longest_turn_ms)})`,
    `${row.long_turns ?? "-"} over ${TURN_MS_MAX} ms`,
    `goodput ${goodput === undefined ? "-" : goodput.toFixed(2)}`,
  ];
  const verdict = skipped === undefined ? (ok ? "ok" : "FAILED") : `skipped: ${skipped}`;
  return `${cells.join("  ")}  ${verdict}`;
}
