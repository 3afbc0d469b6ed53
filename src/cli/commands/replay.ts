import { readMemoryFacts } from "../../config/index.ts";
import {
  type Clock,
  choiceKind,
  formatBytes,
  HearthError,
  integerKind,
  numberKind,
  sizeKind,
  textKind,
} from "../../core/index.ts";
import { loadNative } from "../../native/index.ts";
import { POLICIES } from "../../store/index.ts";
import { fileBytesOf } from "../../store/kvb/index.ts";
import {
  formatSummary,
  PREFILL_TOKENS_PER_S,
  PrivateAgent,
  type PrivateAgentOptions,
  type ReplaySummary,
  type ReplayTally,
  replay,
} from "../../workload/replay/index.ts";
import { openTrace, type Trace } from "../../workload/traces/index.ts";
import {
  defineCommand,
  jsonFlag,
  optional,
  requiredArgument,
  toggle,
  withDefault,
} from "../command.ts";
import {
  bar,
  createLiveView,
  createProgress,
  type Io,
  printJson,
  printRecord,
} from "../terminal.ts";

const KIB = 1024;

export const command = defineCommand({
  description: [
    "Acts as an engine: for each request of a trace it reads the cached blocks of the prompt " +
      "from the agent and writes the others. A block's bytes are a function of its name, so that " +
      "every byte read is verified.",
    "Traces: Mooncake (JSON lines with hash_ids), Claude Code sessions and the composed " +
      "file, RAGPulse, agent logs, Dynamo request traces, Azure CSV; plain, gzip or Zstandard, " +
      "detected by content.",
    "Without --socket it starts a temporary agent and stops it at the end.",
    "hit_ratio is blocks hit / blocks asked, where a request hits the longest run of leading " +
      "blocks. Rates are GB/s of one client, with checksums; acquire is the round trip for up " +
      "to 64 blocks.",
  ],
  arguments: { trace: requiredArgument(textKind("TRACE"), "the trace file, or a RAGPulse folder") },
  flags: {
    socket: optional(textKind("PATH"), "engine socket of a running agent"),
    ramBlocks: withDefault(
      integerKind({ min: 1, max: 2 ** 26 }),
      3000,
      "blocks in RAM of the temporary agent",
    ),
    ssdBlocks: withDefault(
      integerKind({ min: 0, max: 2 ** 26 }),
      0,
      "blocks on SSD of the temporary agent; 0: no SSD tier",
    ),
    policy: withDefault(choiceKind(POLICIES), "hearth", "eviction policy of its RAM"),
    blockBytes: withDefault(
      sizeKind({ min: 1, max: 2 ** 32 - 4096 }),
      256 * KIB,
      "length of a block",
    ),
    clients: withDefault(integerKind({ min: 1, max: 256 }), 1, "engines at the same time"),
    speed: withDefault(
      numberKind({ min: 0, max: 1_000_000 }),
      0,
      "multiple of the trace's pace; 0 = as fast as possible",
    ),
    requests: optional(integerKind({ min: 1 }), "maximum number of requests"),
    prefillRate: withDefault(
      integerKind({ min: 1 }),
      PREFILL_TOKENS_PER_S,
      "prefill speed of a GPU in tokens/s, to estimate the saved time",
    ),
    dryRun: toggle("only read the trace and count"),
    json: jsonFlag,
  },
  examples: [
    { words: "replay trace.jsonl.gz", what: "against a temporary agent" },
    {
      words: "replay trace.jsonl --socket /run/hearth/engine.sock --clients 8 --json",
      what: "eight engines against the running agent",
    },
    { words: "replay trace.jsonl --speed 10", what: "ten times as fast as it was recorded" },
    { words: "replay trace.jsonl.zst --dry-run", what: "how many requests and blocks it has" },
  ],
  exits: ["hostCannot", "wrongBytes", "interrupted"],
  async run({ flags, arguments: { trace: path }, io, clock, interrupt }) {
    const trace = await openTrace(path);
    if (flags.dryRun) {
      printRecord(io, await count(trace, flags.requests), flags.json);
      return "ok";
    }
    const { requests, socket, blockBytes, clients, speed, json } = flags;
    const signal = interrupt();
    await using own = socket === null ? await openOwnAgent(flags, signal) : null;
    const requestsMax = requests ?? Number.POSITIVE_INFINITY;
    const summary = await runReplay({ io, clock, signal }, own ?? socket!, {
      ...{ trace, requests, blockBytes, clients, speed, requestsMax, json },
    });
    if (flags.json) printJson(io, summary);
    else io.out.write(`${trace.name}\n${formatSummary(summary, flags.prefillRate)}\n`);
    return summary.wrong_bytes === 0 ? "ok" : "wrongBytes";
  },
});

async function count(trace: Trace, requestsMax: number | null) {
  let requests = 0;
  let blocks = 0;
  let distinct = 0;
  let tokens = 0;
  for await (const request of trace.requests()) {
    if (requests === requestsMax) break;
    requests++;
    blocks += request.blocks.length;
    tokens += request.inputTokens;
    // Block ids are numbered without gaps in order of first occurrence.
    for (const id of request.blocks) distinct = Math.max(distinct, id + 1);
  }
  return {
    trace: trace.name,
    format: trace.format,
    block_tokens: trace.blockTokens,
    requests,
    blocks_asked: blocks,
    blocks_distinct: distinct,
    tokens_asked: tokens,
  };
}

interface ReplayContext {
  readonly io: Io;
  readonly clock: Clock;
  readonly signal: AbortSignal;
}

export interface DemoContext extends ReplayContext {
  /** Says what comes next, unless the result is JSON. */
  say(text: string): void;
}

/** `12.34 %`. */
export function percentText(ratio: number): string {
  return `${(100 * ratio).toFixed(2)} %`;
}

export interface OwnAgentOptions {
  readonly ramBlocks: number;
  /** Number of blocks that fit on SSD; 0 for no SSD tier. */
  readonly ssdBlocks: number;
  readonly blockBytes: number;
  readonly policy: string;
  /** Further keys of the agent's configuration; see `PrivateAgentOptions`. */
  readonly settings?: PrivateAgentOptions["settings"];
}

export interface RunReplayOptions {
  readonly trace: Trace;
  /** Number of requests in the trace, for the progress display; null if unknown. */
  readonly requests: number | null;
  readonly blockBytes: number;
  readonly clients: number;
  readonly speed: number;
  readonly requestsMax: number;
  readonly json: boolean;
  readonly onProgress?: (tally: ReplayTally) => void;
}

/** A summary with the hits of each tier, which only a temporary agent reports. */
export type TieredSummary = ReplaySummary & {
  readonly hits_ram?: number;
  readonly hits_ssd?: number;
  readonly hits_peer?: number;
};

const PAGE = 4096;
const STATUS_MS = 250;
/**
 * Timeout in milliseconds of a request that waits for free slots. A slow SSD writes a block in
 * about 20 ms.
 */
const STORE_TIMEOUT_MS = 10_000;

/** Starts a temporary agent with the given capacity. */
export function openOwnAgent(options: OwnAgentOptions, signal: AbortSignal): Promise<PrivateAgent> {
  const { ramBlocks, ssdBlocks, blockBytes, policy } = options;
  const ramBytes = ramBlocks * Math.ceil(blockBytes / PAGE) * PAGE;
  checkMemory(ramBytes);
  return PrivateAgent.start({
    ramBytes,
    ssdBytes: ssdBlocks === 0 ? null : ssdBlocks * fileBytesOf(blockBytes),
    policy,
    ...(options.settings === undefined ? {} : { settings: options.settings }),
    blocksMax: tableSize(ramBlocks + ssdBlocks),
    signal,
  });
}

/** Replays a trace against a temporary or a running agent, and shows progress on standard error. */
export async function runReplay(
  context: ReplayContext,
  target: PrivateAgent | string,
  options: RunReplayOptions,
): Promise<TieredSummary> {
  const { io, clock, signal } = context;
  const own = typeof target === "string" ? null : target;
  let status = await own?.status();
  const before = status?.counters;
  using _poll = own === null ? null : clock.every(STATUS_MS, () => void poll(own));
  const poll = async (agent: PrivateAgent) => {
    // The status is only for the progress display, so an unavailable status is ignored.
    status = await agent.status().catch(() => status);
  };
  const ram = () => ({ used: status?.ram.bytes ?? 0, bytes: status?.arena.bytes ?? 0 });
  const { json, requests } = options;
  const view = createReplayView({ io, clock, json, requests, ram: own === null ? null : ram });
  try {
    const summary = await replay(loadNative(), {
      trace: options.trace,
      socketPath: typeof target === "string" ? target : target.socketPath,
      blockBytes: options.blockBytes,
      clients: options.clients,
      speed: options.speed,
      requestsMax: options.requestsMax,
      storeTimeoutMs: (status?.ssd ?? null) === null ? 0 : STORE_TIMEOUT_MS,
      signal,
      onProgress: (tally) => {
        view.update(tally);
        options.onProgress?.(tally);
      },
    });
    if (own === null) return summary;
    const { counters } = await own.status();
    const since = (name: string) => (counters[name] ?? 0) - (before?.[name] ?? 0);
    const hits_ssd = since("acquire_hits_ssd");
    const hits_peer = since("acquire_hits_peer");
    const hits_ram = since("acquire_hits") - hits_ssd - hits_peer;
    return { ...summary, hits_ram, hits_ssd, hits_peer };
  } catch (error) {
    // If the connection closed because the agent failed, report the agent's error instead.
    throw (await own?.ended()) ?? error;
  } finally {
    view.end();
  }
}

function checkMemory(ramBytes: number): void {
  const free = readMemoryFacts().availableBytes ?? Number.POSITIVE_INFINITY;
  if (ramBytes <= free) return;
  const text = `the blocks would take ${formatBytes(ramBytes)} and ${formatBytes(free)} are free`;
  throw new HearthError("ARENA_UNAVAILABLE", text, { fix: "lower --ram-blocks or --block-bytes" });
}

/**
 * Returns the number of blocks that the agent's table must hold: resident blocks, blocks being
 * written, and removed blocks that still have children.
 */
export function tableSize(blocks: number): number {
  return Math.max(65_536, blocks * 2);
}

interface ReplayViewOptions {
  readonly io: Io;
  readonly clock: Clock;
  readonly json: boolean;
  /** Number of requests in the whole trace; null if unknown. */
  readonly requests: number | null;
  /** Returns the bytes used and the capacity of the agent's RAM; null for a running agent. */
  readonly ram: (() => { readonly used: number; readonly bytes: number }) | null;
}

/**
 * Progress display of a replay: a table that is updated on a terminal, else a line from time to
 * time.
 */
interface ReplayView {
  update(tally: ReplayTally): void;
  end(): void;
}

const BAR = 30;

export function createReplayView(options: ReplayViewOptions): ReplayView {
  const { io, clock, json } = options;
  const startMs = clock.monotonicMs();
  if (!io.err.isTerminal) {
    const progress = createProgress({ io, clock, json });
    return {
      update: (tally) => progress.update(oneLine(tally)),
      end: () => progress.end(),
    };
  }
  const view = createLiveView(io.err, clock);
  return {
    update: (tally) => view.draw(() => lines(tally, options, clock.monotonicMs() - startMs)),
    end: () => view.clear(),
  };
}

function oneLine(tally: ReplayTally): string {
  const ratio = tally.blocksAsked === 0 ? 0 : tally.blocksHit / tally.blocksAsked;
  const hit = `${(ratio * 100).toFixed(1)} % of blocks hit`;
  return `${tally.requests} requests, ${tally.blocksAsked} blocks asked, ${hit}`;
}

function lines(tally: ReplayTally, options: ReplayViewOptions, ms: number): string[] {
  const { requests, ram } = options;
  const ratio = tally.blocksAsked === 0 ? 0 : tally.blocksHit / tally.blocksAsked;
  const rate = (bytes: number, ns: number) => (ns === 0 ? "-" : `${(bytes / ns).toFixed(2)} GB/s`);
  const seconds = ms / 1_000;
  const done = requests === null ? "" : bar(tally.requests / requests, BAR);
  const of = requests === null ? "" : ` of ${requests}`;
  const out = [
    `requests  ${done} ${tally.requests}${of}, ${seconds.toFixed(1)} s`,
    `hit       ${bar(ratio, BAR)} ${(ratio * 100).toFixed(2)} % of ${tally.blocksAsked} blocks`,
  ];
  if (ram !== null) {
    const { used, bytes } = ram();
    const share = bytes === 0 ? 0 : used / bytes;
    out.push(`RAM       ${bar(share, BAR)} ${formatBytes(used)} of ${formatBytes(bytes)}`);
  }
  out.push(
    `read      ${formatBytes(tally.getBytes)} at ${rate(tally.getBytes, tally.getNs)}`,
    `written   ${formatBytes(tally.putBytes)} at ${rate(tally.putBytes, tally.putNs)}`,
    `proof     ${tally.wrongBytes} wrong bytes`,
  );
  return out;
}
