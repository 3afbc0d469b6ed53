import { Outcome } from "../../engine/index.ts";
import type { TraceRequest } from "../traces/index.ts";

/** Durations whose quantiles are wanted: kept whole, thinned evenly when there are very many. */
export class Durations {
  readonly #kept: number[] = [];
  #stride = 1;
  #seen = 0;

  add(ns: number): void {
    if (this.#seen++ % this.#stride !== 0) return;
    this.#kept.push(ns);
    if (this.#kept.length < KEPT_MAX) return;
    for (let i = 0; i * 2 < KEPT_MAX; i++) this.#kept[i] = this.#kept[i * 2]!;
    this.#kept.length = KEPT_MAX / 2;
    this.#stride *= 2;
  }

  /** In microseconds; 0 where nothing was measured. */
  quantileUs(quantile: number): number {
    if (this.#kept.length === 0) return 0;
    const sorted = [...this.#kept].sort((a, b) => a - b);
    const at = Math.min(sorted.length - 1, Math.floor(sorted.length * quantile));
    return sorted[at]! / 1_000;
  }
}

const KEPT_MAX = 2 ** 16;

/** What a replay has seen so far. */
export class ReplayTally {
  requests = 0;
  blocksAsked = 0;
  blocksHit = 0;
  tokensAsked = 0;
  tokensHit = 0;
  blocksWritten = 0;
  /** Blocks that the agent had no room for. */
  blocksFull = 0;
  /** Blocks that another client wrote, or was writing. */
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

/** The summary of a replay; its names are the documented JSON. Rates are 10^9 bytes a second. */
export interface ReplaySummary {
  readonly trace: string;
  readonly requests: number;
  readonly blocks_asked: number;
  readonly blocks_hit: number;
  /** Blocks hit / blocks asked. */
  readonly hit_ratio: number;
  readonly tokens_asked: number;
  readonly tokens_hit: number;
  readonly blocks_written: number;
  readonly blocks_full: number;
  readonly blocks_shared: number;
  readonly blocks_rejected: number;
  readonly wrong_bytes: number;
  readonly block_bytes: number;
  readonly bytes_read: number;
  readonly bytes_written: number;
  /** Copying out of the arena with its checksum, per client. */
  readonly get_gbps: number;
  /** Reserving, copying into the arena with its checksum and committing, per client. */
  readonly put_gbps: number;
  readonly acquire_p50_us: number;
  readonly acquire_p99_us: number;
  readonly seconds: number;
  readonly clients: number;
}

export function summarise(
  tally: ReplayTally,
  about: { trace: string; blockBytes: number; seconds: number; clients: number },
): ReplaySummary {
  const round = (value: number, digits: number) => Number(value.toFixed(digits));
  const rate = (bytes: number, ns: number) => (ns === 0 ? 0 : round(bytes / ns, 3));
  return {
    trace: about.trace,
    requests: tally.requests,
    blocks_asked: tally.blocksAsked,
    blocks_hit: tally.blocksHit,
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
    get_gbps: rate(tally.getBytes, tally.getNs),
    put_gbps: rate(tally.putBytes, tally.putNs),
    acquire_p50_us: round(tally.acquireNs.quantileUs(0.5), 1),
    acquire_p99_us: round(tally.acquireNs.quantileUs(0.99), 1),
    seconds: round(about.seconds, 3),
    clients: about.clients,
  };
}
