/** `bun run test:isolation`: floods of one source, and what others feel of them. */
import { scriptOptions } from "../../scripts/lib/arguments.ts";
import { ensureHost } from "../../scripts/lib/native-build.ts";
import { ensureNatsServer } from "../../scripts/lib/nats-server.ts";
import { AgentStage, type Hits, ProxyStage } from "./stage.ts";

const HELP = `
Starts an agent (and a router in front of two stand-ins of engines), floods it from one source at a
time, and measures what others feel: the latency of an engine's RAM hits, the processor time of the
longest turn of the agent's event loop by its own monitor, and the goodput of the proxy's other
clients.

  bun run test:isolation                        every flood, about 4 minutes
  bun run test:isolation -- --quick             shorter windows, about 1 minute
  bun run test:isolation -- --only zmq-batch    one flood; "none" is the host without one
  bun run test:isolation -- --json              the result as JSON on one line

Floods: nats-commands, nats-large, nats-ping, zmq-batch, bodies, idle, greedy, connections (300 of
one process that open and close again and again), http, http-large, metrics; against the router:
headers (broken ones), proxy-bodies, proxy-idle, proxy-zmq.
Bounds: RAM hits p99.9 at most 20 ms, no turn over 5 ms, goodput at least 0.9 of before. The row
"none" is measured in the same run without a flood: what it shows is the noise of the host.

Exit codes: 0 all within bounds; 1 some not; 2 wrong usage.
`;

const HITS_MS_MAX = 20;
const TURN_MS_MAX = 5;
const GOODPUT_MIN = 0.9;
/** The monitor forgets a long turn after this time. */
const MONITOR_MS = 15_500;

const options = scriptOptions(HELP, {
  json: { type: "boolean", default: false },
  quick: { type: "boolean", default: false },
  only: { type: "string" },
});

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

const WINDOW_MS = options.quick ? 3_000 : 10_000;
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

const isWanted = (name: string) => options.only === undefined || options.only === name;
const ALL_FLOODS = [...AGENT_FLOODS, ...Object.keys(PROXY_FLOODS)];
if (options.only !== undefined && !ALL_FLOODS.includes(options.only)) {
  console.error(`--only ${options.only} is no flood\n\n${HELP.trim()}`);
  process.exit(2);
}

async function agentRow(stage: AgentStage, flood: string): Promise<Row> {
  const { polite, agent, apiPort, nats } = stage;
  if (flood.startsWith("nats") && nats === null) {
    const isRequired = process.env.REQUIRE_NATS === "1" || process.env.CI === "true";
    return { flood, skipped: "no nats-server on the PATH", ok: !isRequired };
  }
  if (!options.quick) await Bun.sleep(MONITOR_MS);
  const target =
    flood === "greedy" || flood === "connections"
      ? agent.socketPath
      : flood.startsWith("nats")
        ? nats!.tcpPort
        : apiPort;
  const before = await stage.turns();
  await polite.ask("start");
  const endMs = performance.now() + WINDOW_MS;
  const seconds = Math.ceil(WINDOW_MS / 1_000) - 1;
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
async function proxyRow(flood: string): Promise<Row> {
  await using stage = await ProxyStage.open();
  const seconds = WINDOW_MS / 1_000;
  await stage.goodput(1);
  const before = await stage.goodput(seconds);
  const flooding = stage.flood.ask(PROXY_FLOODS[flood]!, stage.port, seconds + 1);
  await Bun.sleep(500);
  const goodput = (await stage.goodput(seconds)) / before;
  const sent = await flooding;
  await stage.flood.ask("end");
  return { flood, goodput, sent, ok: goodput >= GOODPUT_MIN };
}

function print({ flood, skipped, hits, goodput, ok, ...row }: Row): void {
  const ms = (value: number | undefined) => (value === undefined ? "-" : value.toFixed(1));
  const cells = [
    ...[flood.padEnd(14), `p50 ${ms(hits?.p50)}`, `p99 ${ms(hits?.p99)}`],
    ...[`p99.9 ${ms(hits?.p999)}`, `max ${ms(hits?.max)}`],
    `longest turn ${ms(row.longest_turn_cpu_ms)} (with waits ${ms(row.longest_turn_ms)})`,
    `${row.long_turns ?? "-"} over ${TURN_MS_MAX} ms`,
    `goodput ${goodput === undefined ? "-" : goodput.toFixed(2)}`,
  ];
  const verdict = skipped === undefined ? (ok ? "ok" : "FAILED") : `skipped: ${skipped}`;
  console.log(`${cells.join("  ")}  ${verdict}`);
}

await ensureNatsServer();
const native = await ensureHost();
if (native.kind === "failed" || native.kind === "skipped") {
  console.error(`no native library: ${native.why}`);
  process.exit(2);
}
const rows: Row[] = [];
const say = (row: Row) => {
  rows.push(row);
  if (!options.json) print(row);
};
const floods = AGENT_FLOODS.filter((name) => name === "none" || isWanted(name));
if (options.only === undefined || AGENT_FLOODS.includes(options.only)) {
  await using stage = await AgentStage.open();
  for (const flood of floods) say(await agentRow(stage, flood));
}
for (const flood of Object.keys(PROXY_FLOODS)) {
  if (isWanted(flood)) say(await proxyRow(flood));
}
const isOk = rows.every(({ ok }) => ok);
if (options.json) console.log(JSON.stringify({ ok: isOk, rows }));
process.exit(isOk ? 0 : 1);
