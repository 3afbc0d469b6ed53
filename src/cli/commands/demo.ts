import { formatBytes, HearthError, integerKind, sizeKind, sleep } from "../../core/index.ts";
import { loadNative } from "../../native/index.ts";
import { rounded } from "../../workload/bench/index.ts";
import {
  type ClusterSummary,
  formatSummary,
  PREFILL_TOKENS_PER_S,
  type PrivateAgent,
  replayCluster,
} from "../../workload/replay/index.ts";
import { bundledTrace, type Trace } from "../../workload/traces/index.ts";
import {
  type ClusterHosts,
  type ClusterRouter,
  dispatcherOf,
  openHosts,
} from "../cluster-hosts.ts";
import { defineCommand, jsonFlag, toggle, withDefault } from "../command.ts";
import { demoPeers, peersDemoText } from "../demo-peers.ts";
import { printJson } from "../terminal.ts";
import {
  createReplayView,
  type DemoContext,
  openOwnAgent,
  percentText,
  type RunReplayOptions,
  runReplay,
  type TieredSummary,
} from "./replay.ts";

const KIB = 1024;
const REQUESTS = 1000;
/** Maximum concurrent requests in the demo of a cluster. */
const CLUSTER_CLIENTS = 8;

export const command = defineCommand({
  description: [
    "Starts an agent in a temporary folder and sends it a trace of real traffic: 1,000 " +
      "requests of Kimi users, recorded by Mooncake, in blocks of 512 tokens. An engine in " +
      "another process writes and reads the blocks through shared memory and verifies every " +
      "byte.",
    "RAM holds some of the blocks, SSD all of them. Then the agent is stopped, started again " +
      "and sent the same requests; then it is killed and started again. All files are removed at " +
      "the end.",
    "With --peers, two agents with certificates get half of the requests each, and the second " +
      "pulls blocks from the first; then a third agent does the same while the first is killed.",
    "With --cluster, a router sends each request to one of four agents: at random, round-robin, " +
      "and by the blocks of the agents. They use a nats-server if this host has one, else an " +
      "in-process bus. One agent with the memory of all four shows the upper bound.",
    "It takes --ram-blocks times --block-bytes of memory, and space in the temporary folder for " +
      "the blocks on SSD (850 MB by default).",
  ],
  arguments: {},
  flags: {
    ramBlocks: withDefault(
      integerKind({ min: 300, max: 2 ** 22 }),
      1000,
      "blocks that fit into RAM",
    ),
    ssdBlocks: withDefault(
      integerKind({ min: 0, max: 2 ** 22 }),
      16_384,
      "blocks that fit on SSD; 0: RAM alone, and no restarts",
    ),
    blockBytes: withDefault(sizeKind({ min: 64, max: 2 ** 28 }), 64 * KIB, "length of a block"),
    clients: withDefault(integerKind({ min: 1, max: 64 }), 1, "engines at the same time"),
    requests: withDefault(
      integerKind({ min: 10, max: REQUESTS }),
      REQUESTS,
      "of the trace, from its first on",
    ),
    peers: toggle("two agents that pull from each other, and one that is killed meanwhile"),
    cluster: toggle("four agents and a router that chooses among them"),
    workers: withDefault(integerKind({ min: 1, max: 16 }), 4, "agents of --cluster"),
    inProcess: toggle("with --cluster: do not use a nats-server"),
    json: jsonFlag,
  },
  examples: [
    { words: "demo", what: "a live view, then the summary" },
    { words: "demo --ram-blocks 3000 --ssd-blocks 0", what: "without SSD: fewer hits" },
    { words: "demo --peers", what: "half of the requests on each of two hosts" },
    { words: "demo --cluster", what: "a router in front of four agents" },
    { words: "demo --json", what: "the summary as the last line" },
  ],
  exits: ["hostCannot", "wrongBytes", "interrupted"],
  async run({ flags, io, clock, interrupt }) {
    const { ramBlocks, ssdBlocks, blockBytes, clients, requests, json } = flags;
    const signal = interrupt();
    const trace = await bundledTrace();
    const options = {
      ...{ trace, requests, blockBytes, clients, json },
      speed: 0,
      requestsMax: requests,
    };
    const say = (text: string) => json || io.err.write(`${text}\n`);
    const context: DemoContext = { io, clock, signal, say };
    const end = (result: { readonly wrong_bytes: number }, text: string) => {
      if (json) printJson(io, result);
      else io.out.write(text);
      return result.wrong_bytes === 0 ? "ok" : "wrongBytes";
    };
    if (flags.cluster) {
      const { workers, inProcess: isLocal } = flags;
      const cluster = { trace, requests, workers, ramBlocks, blockBytes, json, isLocal };
      const demo = await demoCluster(context, { ...cluster, clients: CLUSTER_CLIENTS });
      return end(demo, clusterDemoText(demo));
    }
    const own = { ramBlocks, ssdBlocks, blockBytes, policy: "hearth" };
    const room = `${ramBlocks} blocks of ${formatBytes(blockBytes)} in RAM`;
    const more = ssdBlocks === 0 ? "" : ` and ${ssdBlocks} on SSD`;
    say(`${requests} recorded requests against an agent with ${room}${more}`);
    if (flags.peers) {
      const demo = await demoPeers(context, own, options);
      return end(demo, peersDemoText(demo));
    }
    await using agent = await openOwnAgent(own, signal);
    const summary = await runReplay(context, agent, options);
    const passes = ssdBlocks === 0 ? null : await restarts(context, agent, options);
    const wrong_bytes = summary.wrong_bytes + (passes?.wrong_bytes ?? 0);
    const text = `${formatSummary(summary, PREFILL_TOKENS_PER_S)}\n${wordsOf(summary, passes)}`;
    return end({ ...summary, ...passes, wrong_bytes }, text);
  },
});

/** Repeats the requests after a stop and after a kill of the agent. */
async function restarts(context: DemoContext, agent: PrivateAgent, options: RunReplayOptions) {
  const { signal, say } = context;
  say("stopping the agent (SIGTERM) and starting it again");
  const restart_ms = Math.round(await agent.restart("SIGTERM", signal));
  const stopped = await runReplay(context, agent, options);
  say("killing the agent (SIGKILL) and starting it again");
  const restart_after_kill_ms = Math.round(await agent.restart("SIGKILL", signal));
  const killed = await runReplay(context, agent, options);
  return {
    hit_ratio_after_restart: stopped.hit_ratio,
    hit_ratio_after_kill: killed.hit_ratio,
    /** Milliseconds from the start of the process until it is ready. */
    restart_ms,
    restart_after_kill_ms,
    wrong_bytes: stopped.wrong_bytes + killed.wrong_bytes,
  };
}

type Passes = Awaited<ReturnType<typeof restarts>>;

function wordsOf(summary: TieredSummary, passes: Passes | null): string {
  if (passes === null) return "";
  const { hit_ratio_after_restart, hit_ratio_after_kill } = passes;
  const again = (ratio: number, ms: number) =>
    `${percentText(ratio)} of blocks hit, served again after ${ms} ms`;
  return [
    `  hits in RAM, on SSD   ${summary.hits_ram} and ${summary.hits_ssd} blocks`,
    `  after a restart       ${again(hit_ratio_after_restart, passes.restart_ms)}`,
    `  after a kill          ${again(hit_ratio_after_kill, passes.restart_after_kill_ms)}`,
    "",
  ].join("\n");
}

interface ClusterDemoOptions {
  readonly trace: Trace;
  readonly requests: number;
  readonly workers: number;
  /** RAM of each worker in blocks. */
  readonly ramBlocks: number;
  readonly blockBytes: number;
  /** Maximum concurrent requests. */
  readonly clients: number;
  readonly json: boolean;
  /** Use an in-process bus even if the host has a nats-server. */
  readonly isLocal: boolean;
}

const MODES = ["random", "round-robin", "kv"] as const;
type Mode = (typeof MODES)[number];

const KNOWN_MS = 60_000;
const LOOK_MS = 20;

/** Sends the same requests to the same agents by three routing modes, and to one large cache. */
async function demoCluster(context: DemoContext, options: ClusterDemoOptions) {
  const { clock, signal, say } = context;
  const { workers, ramBlocks, blockBytes, requests } = options;
  const startMs = clock.monotonicMs();
  say("one agent with the memory of all gets all requests, to compare with");
  const pooled = await runPooled(context, options);
  const { blockTokens } = options.trace;
  const wanted = { workers, ramBlocks, blockBytes, blockTokens, signal };
  await using hosts = await openHosts(wanted, options.isLocal);
  const runs = {} as Record<Mode, ClusterSummary>;
  for (const mode of MODES) {
    say(`${workers} agents over ${wordsFor(hosts)}, a router, requests by ${mode}`);
    runs[mode] = await runMode(context, options, hosts, mode);
    await hosts.flush();
  }
  const wrong = MODES.map((mode) => runs[mode].wrong_bytes);
  const ofModes = (pick: (run: ClusterSummary) => number) =>
    Object.fromEntries(MODES.map((mode) => [mode, pick(runs[mode])])) as Record<Mode, number>;
  const { hit_ratio, route_p50_us, route_p99_us } = runs.kv;
  return {
    ...{ requests, workers, ram_blocks: ramBlocks, over: hosts.over },
    /** Blocks hit / blocks asked, over all workers. */
    hit_ratio: ofModes((run) => run.hit_ratio),
    /** Hit ratio of one agent with the RAM of all, which got all requests. */
    pooled_hit_ratio: pooled.hit_ratio,
    kv_of_pooled: rounded(hit_ratio / pooled.hit_ratio, 4),
    /** Prompt tokens of the worker that got the most / of the average one. */
    load_spread: ofModes(spreadOf),
    // Latency of a routing request over HTTP in kv mode, with all processes on this host.
    ...{ route_p50_us, route_p99_us },
    /** In all runs. */
    wrong_bytes: wrong.reduce((sum, bytes) => sum + bytes, pooled.wrong_bytes),
    seconds: rounded((clock.monotonicMs() - startMs) / 1_000, 4),
  };
}

async function runPooled(context: DemoContext, options: ClusterDemoOptions) {
  const { workers, ramBlocks, blockBytes, trace, requests, clients, json } = options;
  const own = { ramBlocks: workers * ramBlocks, ssdBlocks: 0, blockBytes, policy: "hearth" };
  await using agent = await openOwnAgent(own, context.signal);
  const replay = { trace, requests, blockBytes, clients, json, speed: 0, requestsMax: requests };
  return await runReplay(context, agent, replay);
}

async function runMode(
  context: DemoContext,
  options: ClusterDemoOptions,
  hosts: ClusterHosts,
  mode: Mode,
): Promise<ClusterSummary> {
  const { io, clock, signal } = context;
  const { trace, requests, blockBytes, clients, json } = options;
  await using router = await hosts.openRouter(mode);
  const view = createReplayView({ io, clock, json, requests, ram: null });
  try {
    return await replayCluster(loadNative(), {
      ...{ trace, blockBytes, clients, signal, requestsMax: requests },
      sockets: hosts.sockets,
      dispatcher: dispatcherOf(router),
      onProgress: (tally) => view.update(tally),
      onConnected: () => untilKnown(router, options.workers, context),
    });
  } finally {
    view.end();
  }
}

interface WorkersShown {
  readonly workers: readonly { readonly known: boolean }[];
}

/** Waits until the router knows every agent and has received its residency, which is empty. */
async function untilKnown(
  router: ClusterRouter,
  workers: number,
  { clock, signal }: DemoContext,
): Promise<void> {
  const untilMs = clock.monotonicMs() + KNOWN_MS;
  for (;;) {
    const shown = await router.get<WorkersShown>("/v1/workers");
    if (shown.workers.filter(({ known }) => known).length === workers) return;
    if (clock.monotonicMs() > untilMs) {
      throw new HearthError("DEADLINE", "the router did not discover all agents");
    }
    await sleep(clock, LOOK_MS, signal);
  }
}

function wordsFor({ over }: ClusterHosts): string {
  return over === "nats" ? "a nats-server" : "a bus in this process (there is no nats-server)";
}

function spreadOf({ tokens_by_worker }: ClusterSummary): number {
  const tokens = Object.values(tokens_by_worker);
  const mean = tokens.reduce((sum, one) => sum + one, 0) / tokens.length;
  return mean === 0 ? 0 : rounded(Math.max(...tokens) / mean, 4);
}

/** Result of `hearth demo --cluster --json`; its names are documented. */
type ClusterDemo = Awaited<ReturnType<typeof demoCluster>>;

/** The summary as text. */
function clusterDemoText(demo: ClusterDemo): string {
  const line = (mode: Mode) =>
    `  ${mode.padEnd(20)}${percentText(demo.hit_ratio[mode])} of blocks hit, ` +
    `the busiest worker got ${demo.load_spread[mode]} of the average`;
  return [
    `requests              ${demo.requests} over ${demo.workers} workers (${demo.over})`,
    ...MODES.map(line),
    `one cache of the sum  ${percentText(demo.pooled_hit_ratio)}`,
    `kv of that            ${percentText(demo.kv_of_pooled)}`,
    `a decision over HTTP  p50 ${demo.route_p50_us} us, p99 ${demo.route_p99_us} us`,
    `proof                 ${demo.wrong_bytes} wrong bytes`,
    "",
  ].join("\n");
}
