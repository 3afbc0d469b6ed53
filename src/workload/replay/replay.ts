import { assert, formatBytes, HearthError, sleep, systemClock } from "../../core/index.ts";
import { Outcome } from "../../engine/index.ts";
import {
  encodeManifest,
  manifestOf,
  type NamespaceManifest,
  namespaceKey,
} from "../../identity/index.ts";
import type { Native } from "../../native/index.ts";
import type { Trace, TraceRequest } from "../traces/index.ts";
import { MockEngine } from "./mock-engine.ts";

export interface ReplayOptions {
  readonly trace: Trace;
  readonly socketPath: string;
  readonly blockBytes: number;
  readonly clients: number;
  /** Speed as a multiple of the trace's own pace; 0 sends requests as fast as possible. */
  readonly speed: number;
  /** Maximum number of requests to replay. */
  readonly requestsMax: number;
  /** See `MockEngineOptions`. */
  readonly storeTimeoutMs: number;
  readonly signal?: AbortSignal;
  /** Called after each request. */
  readonly onProgress?: (tally: ReplayTally) => void;
}

/**
 * Returns the namespace of a trace's blocks: the trace's name is the model, and the block bytes are
 * the layout.
 */
export function replayManifest(trace: Trace, blockBytes: number): NamespaceManifest {
  return manifestOf({
    model: `replay/${trace.name}`,
    dtype: "pattern",
    layout: `hearth:pattern-${blockBytes}`,
    blockTokens: trace.blockTokens,
  });
}

/**
 * Replays a trace through mock engines, in order; each request goes to the first free client.
 * Throws ENGINE_CLOSED, ENGINE_REFUSED, TRACE_INVALID or ABORTED.
 */
export async function replay(native: Native, options: ReplayOptions) {
  const { trace, clients, blockBytes } = options;
  assert(clients > 0 && blockBytes > 0, "a replay has clients and blocks have bytes");
  const manifest = replayManifest(trace, blockBytes);
  const tally = new ReplayTally(trace.blockTokens);
  const feed = new Feed(options);
  const startMs = systemClock.monotonicMs();
  const runClient = async (number: number) => {
    await using engine = await MockEngine.connect(
      native,
      {
        blockBytes,
        storeTimeoutMs: options.storeTimeoutMs,
        socketPath: options.socketPath,
        manifest: encodeManifest(manifest),
        namespaceKey: namespaceKey(native, manifest),
        name: `replay-${number}`,
      },
      tally,
    );
    for (let request = await feed.next(); request !== null; request = await feed.next()) {
      await engine.serve(request);
      options.onProgress?.(tally);
    }
  };
  await Promise.all(Array.from({ length: clients }, (_, number) => runClient(number)));
  const seconds = (systemClock.monotonicMs() - startMs) / 1_000;
  return summarise(tally, { trace: trace.name, blockBytes, seconds, clients });
}

type FeedOptions = Pick<ReplayOptions, "trace" | "requestsMax" | "speed" | "signal">;

/** Yields the requests of a trace one at a time, each when its arrival time is reached. */
export class Feed {
  readonly #options: FeedOptions;
  readonly #requests: AsyncIterator<TraceRequest>;
  #turn: Promise<unknown> = Promise.resolve();
  #startMs: number | null = null;
  #given = 0;

  constructor(options: FeedOptions) {
    this.#options = options;
    this.#requests = options.trace.requests()[Symbol.asyncIterator]();
  }

  /** Returns the next request; null at the end of the trace. */
  next(): Promise<TraceRequest | null> {
    const next = this.#turn.then(() => this.#take());
    this.#turn = next.catch(() => null);
    return next;
  }

  async #take(): Promise<TraceRequest | null> {
    const { requestsMax, speed, signal } = this.#options;
    if (signal?.aborted) throw new HearthError("ABORTED", "the replay was interrupted");
    if (this.#given === requestsMax) return null;
    const { done, value } = await this.#requests.next();
    if (done) return null;
    this.#given++;
    if (speed > 0) await this.#wait(value.arrivalMs / speed);
    return value;
  }

  async #wait(dueMs: number): Promise<void> {
    const now = systemClock.monotonicMs();
    this.#startMs ??= now - dueMs;
    const early = this.#startMs + dueMs - now;
    if (early > 0) await sleep(systemClock, early, this.#options.signal);
  }
}

/** Collects durations for quantiles. If there are very many, it keeps an evenly spaced sample. */
export class Durations {
  readonly #kept: number[] = [];
  #stride = 1;
  #seen = 0;

  add(ns: number): void {
    if (this.#seen++ % this.#stride !== 0) return;
    this.#kept.push(ns);
    if (this.#kept.length < KEPT_MAX) return;
    for (let i = 0; i * 2 < KEPT_MAX; i++) this.#kept[i] = this.#kept[i * 2];
    this.#kept.length = KEPT_MAX / 2;
    this.#stride *= 2;
  }

  /** Returns a quantile in microseconds; 0 if nothing was measured. */
  quantileUs(quantile: number): number {
    if (this.#kept.length === 0) return 0;
    const sorted = [...this.#kept].sort((a, b) => a - b);
    const at = Math.min(sorted.length - 1, Math.floor(sorted.length * quantile));
    return sorted[at] / 1_000;
  }
}

const KEPT_MAX = 2 ** 16;

/** Counters of a running replay. */
export class ReplayTally {
  requests = 0;
  blocksAsked = 0;
  blocksHit = 0;
  tokensAsked = 0;
  tokensHit = 0;
  blocksWritten = 0;
  /** Number of blocks that the agent refused as `full`. */
  blocksFull = 0;
  /** Number of blocks that another client wrote or was writing. */
  blocksShared = 0;
  blocksRejected = 0;
  wrongBytes = 0;
  getBytes = 0;
  getNs = 0;
  putBytes = 0;
  putNs = 0;
  readonly acquireNs = new Durations();
  readonly #blockTokens: number;

  constructor(blockTokens: number) {
    this.#blockTokens = blockTokens;
  }

  countHit(request: TraceRequest, blocks: number): void {
    this.blocksHit += blocks;
    this.tokensAsked += request.inputTokens;
    this.tokensHit += Math.min(request.inputTokens, blocks * this.#blockTokens);
  }

  countRefused(outcome: number): void {
    if (outcome === Outcome.present || outcome === Outcome.pending) this.blocksShared++;
    else this.blocksRejected++;
  }
}

/**
 * Summary of a replay, with the member names of the documented JSON. Rates are in 10^9 bytes per
 * second.
 */
export type ReplaySummary = ReturnType<typeof summarise>;

export function summarise(
  tally: ReplayTally,
  about: { trace: string; blockBytes: number; seconds: number; clients: number },
) {
  const round = (value: number, digits: number) => Number(value.toFixed(digits));
  const rate = (bytes: number, ns: number) => (ns === 0 ? 0 : round(bytes / ns, 3));
  return {
    trace: about.trace,
    requests: tally.requests,
    blocks_asked: tally.blocksAsked,
    blocks_hit: tally.blocksHit,
    /** Blocks hit divided by blocks requested. */
    hit_ratio: tally.blocksAsked === 0 ? 0 : round(tally.blocksHit / tally.blocksAsked, 4),
    tokens_asked: tally.tokensAsked,
    tokens_hit: tally.tokensHit,
    blocks_written: tally.blocksWritten,
    blocks_full: tally.blocksFull,
    blocks_shared: tally.blocksShared,
    blocks_rejected: tally.blocksRejected,
    wrong_bytes: tally.wrongBytes,
    block_bytes: about.blockBytes,
    bytes_read: tally.getBytes,
    bytes_written: tally.putBytes,
    /** Rate per client of copying out of the arena with checksums. */
    get_gbps: rate(tally.getBytes, tally.getNs),
    /** Rate per client of reserving, copying into the arena with checksums, and committing. */
    put_gbps: rate(tally.putBytes, tally.putNs),
    acquire_p50_us: round(tally.acquireNs.quantileUs(0.5), 1),
    acquire_p99_us: round(tally.acquireNs.quantileUs(0.99), 1),
    seconds: round(about.seconds, 3),
    clients: about.clients,
  };
}

/**
 * Assumed prefill speed in tokens per second for the estimate of saved time: about one H100 with an
 * 8B model. --prefill-rate overrides it.
 */
export const PREFILL_TOKENS_PER_S = 20_000;

/** Formats the summary as text. */
export function formatSummary(summary: ReplaySummary, prefillTokensPerS: number): string {
  const saved = summary.tokens_hit / prefillTokensPerS;
  const percent = (part: number, whole: number) =>
    whole === 0 ? "-" : `${((100 * part) / whole).toFixed(2)} %`;
  const rows: [string, string][] = [
    ["requests", count(summary.requests)],
    ["blocks asked", count(summary.blocks_asked)],
    [
      "blocks hit",
      `${count(summary.blocks_hit)} (${percent(summary.blocks_hit, summary.blocks_asked)})`,
    ],
    ["blocks written", count(summary.blocks_written)],
    ["blocks without room", count(summary.blocks_full)],
    ...refusedRow(summary),
    ["wrong bytes", count(summary.wrong_bytes)],
    ["read", `${formatBytes(summary.bytes_read)} at ${summary.get_gbps} GB/s`],
    ["written", `${formatBytes(summary.bytes_written)} at ${summary.put_gbps} GB/s`],
    ["acquire", `p50 ${summary.acquire_p50_us} us, p99 ${summary.acquire_p99_us} us`],
    [
      "prefill saved",
      `${count(summary.tokens_hit)} of ${count(summary.tokens_asked)} tokens ` +
        `(${percent(summary.tokens_hit, summary.tokens_asked)})`,
    ],
    [
      "",
      `about ${duration(saved)} of GPU time at ${count(prefillTokensPerS)} tokens/s, ` +
        `in ${duration(summary.seconds)}`,
    ],
  ];
  const width = Math.max(...rows.map(([name]) => name.length));
  return rows.map(([name, value]) => `  ${name.padEnd(width)}  ${value}`).join("\n");
}

/** Returns a row about rejected blocks, if there were any. */
function refusedRow({ blocks_rejected, block_bytes }: ReplaySummary): [string, string][] {
  if (blocks_rejected === 0) return [];
  const why = `too many slots held, or ${formatBytes(block_bytes)} too long for this agent`;
  return [["blocks refused", `${count(blocks_rejected)} (${why})`]];
}

function count(value: number): string {
  return value.toLocaleString("en-US");
}

function duration(seconds: number): string {
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  return `${(seconds / 60).toFixed(1)} min`;
}
