import { type Clock, HearthError, sleep } from "../core/index.ts";
import { loadNative } from "../native/index.ts";
import { type ClusterSummary, replayCluster } from "../workload/replay/index.ts";
import type { Trace } from "../workload/traces/index.ts";
import { type ClusterHosts, type ClusterRouter, dispatcherOf, openHosts } from "./cluster/index.ts";
import type { Io } from "./io.ts";
import { createReplayView } from "./replay-view.ts";
import { openOwnAgent, runReplay } from "./run-replay.ts";

export interface ClusterDemoContext {
  readonly io: Io;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  say(text: string): void;
}

export interface ClusterDemoOptions {
  readonly trace: Trace;
  readonly requests: number;
  readonly workers: number;
  /** Of each worker. */
  readonly ramBlocks: number;
  readonly blockBytes: number;
  /** Requests under way at a time. */
  readonly clients: number;
  readonly json: boolean;
  /** Without a nats-server, whether there is one or not. */
  readonly isLocal: boolean;
}

const MODES = ["random", "round-robin", "kv"] as const;
type Mode = (typeof MODES)[number];

/** What `hearth demo --cluster --json` prints. Its names are the documented JSON. */
export interface ClusterDemo {
  readonly requests: number;
  readonly workers: number;
  readonly ram_blocks: number;
  readonly over: "nats" | "in-process";
  /** Blocks hit / blocks asked, over all workers. */
  readonly hit_ratio: Readonly<Record<Mode, number>>;
  /** Of one agent with the RAM of all of them, that got all requests. */
  readonly pooled_hit_ratio: number;
  readonly kv_of_pooled: number;
  /** Prompt tokens of the worker that got the most / of the average one. */
  readonly load_spread: Readonly<Record<Mode, number>>;
  /** From the question over HTTP to the answer, in kv mode, with everything else on this host. */
  readonly route_p50_us: number;
  readonly route_p99_us: number;
  /** Of everything. */
  readonly wrong_bytes: number;
  readonly seconds: number;
}

const KNOWN_MS = 60_000;
const LOOK_MS = 20;

/** The same requests over the same agents by three ways to choose, and over one large cache. */
export async function demoCluster(
  context: ClusterDemoContext,
  options: ClusterDemoOptions,
): Promise<ClusterDemo> {
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
    hit_ratio: ofModes((run) => run.hit_ratio),
    pooled_hit_ratio: pooled.hit_ratio,
    kv_of_pooled: rounded(hit_ratio / pooled.hit_ratio),
    load_spread: ofModes(spreadOf),
    ...{ route_p50_us, route_p99_us },
    wrong_bytes: wrong.reduce((sum, bytes) => sum + bytes, pooled.wrong_bytes),
    seconds: rounded((clock.monotonicMs() - startMs) / 1_000),
  };
}

async function runPooled(context: ClusterDemoContext, options: ClusterDemoOptions) {
  const { workers, ramBlocks, blockBytes, trace, requests, clients, json } = options;
  const own = { ramBlocks: workers * ramBlocks, ssdBlocks: 0, blockBytes, policy: "hearth" };
  await using agent = await openOwnAgent(own, context.signal);
  const replay = { trace, requests, blockBytes, clients, json, speed: 0, requestsMax: requests };
  return await runReplay(context, agent, replay);
}

async function runMode(
  context: ClusterDemoContext,
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

/** The router has heard of every agent, and knows what it holds: nothing. */
async function untilKnown(
  router: ClusterRouter,
  workers: number,
  { clock, signal }: ClusterDemoContext,
): Promise<void> {
  const untilMs = clock.monotonicMs() + KNOWN_MS;
  for (;;) {
    const shown = await router.get<WorkersShown>("/v1/workers");
    if (shown.workers.filter(({ known }) => known).length === workers) return;
    if (clock.monotonicMs() > untilMs) {
      throw new HearthError("DEADLINE", "the router did not hear of all agents");
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
  return mean === 0 ? 0 : rounded(Math.max(...tokens) / mean);
}

/** What is printed for people. */
export function clusterDemoText(demo: ClusterDemo): string {
  const percent = (ratio: number) => `${(100 * ratio).toFixed(2)} %`;
  const line = (mode: Mode) =>
    `  ${mode.padEnd(20)}${percent(demo.hit_ratio[mode])} of blocks hit, ` +
    `the busiest worker got ${demo.load_spread[mode]} of the average`;
  return [
    `requests              ${demo.requests} over ${demo.workers} workers (${demo.over})`,
    ...MODES.map(line),
    `one cache of the sum  ${percent(demo.pooled_hit_ratio)}`,
    `kv of that            ${percent(demo.kv_of_pooled)}`,
    `a decision over HTTP  p50 ${demo.route_p50_us} us, p99 ${demo.route_p99_us} us`,
    `proof                 ${demo.wrong_bytes} wrong bytes`,
    "",
  ].join("\n");
}

function rounded(value: number): number {
  return Number(value.toFixed(4));
}
