import type { PendingLimits } from "./pending.ts";
import type { RecoveryLimits } from "./recovery-queue.ts";

export interface IngestSettings {
  /** Maximum sources followed. Messages of further sources are counted (`overfull`) and dropped. */
  readonly targetsMax: number;
  /** Missed heartbeats after which a source is stale (`staleBeats`) or gone (`goneBeats`). */
  readonly staleBeats: number;
  readonly goneBeats: number;
  /** Time allowed for reordered messages to close a gap in the sequence numbers. */
  readonly reorderMs: number;
  readonly pending: PendingLimits;
  readonly recovery: RecoveryLimits;
  /** Timeout of one request to a source. */
  readonly answerMs: number;
  /** Maximum blocks in a snapshot. A larger snapshot is rejected. */
  readonly snapshotBlocksMax: number;
}

export const INGEST_DEFAULTS: IngestSettings = {
  targetsMax: 4_096,
  staleBeats: 3,
  goneBeats: 15,
  reorderMs: 20,
  pending: { hashesMax: 4 * 2 ** 20, batchesPerSourceMax: 1_024 },
  recovery: { atOnceMax: 8, retryMinMs: 200, retryMaxMs: 30_000 },
  answerMs: 2_000,
  snapshotBlocksMax: 2 ** 25,
};

/** Counters since start, for metrics. */
export interface IngestCounts {
  batches: number;
  changes: number;
  heartbeats: number;
  /** Batches already applied. */
  duplicates: number;
  /** Batches that arrived before a batch they follow. */
  early: number;
  /** Messages of an earlier incarnation than the followed one. */
  stale: number;
  /** Batches of sources without a heartbeat so far. */
  unannounced: number;
  incarnations: number;
  gaps: number;
  ranges: number;
  snapshots: number;
  snapshotsFailed: number;
  /** Digests that differed from the source's. */
  mismatches: number;
  /** Digests that differed from another router's. */
  doubts: number;
  /** Messages that are malformed or name another source than their subject. */
  refused: number;
  /** Messages of sources beyond `targetsMax`. */
  overfull: number;
}

export function noCounts(): IngestCounts {
  return {
    ...{ batches: 0, changes: 0, heartbeats: 0, duplicates: 0, early: 0, stale: 0 },
    ...{ unannounced: 0, incarnations: 0, gaps: 0, ranges: 0, snapshots: 0, snapshotsFailed: 0 },
    ...{ mismatches: 0, doubts: 0, refused: 0, overfull: 0 },
  };
}

export interface IngestStats extends IngestCounts {
  readonly sources: number;
  readonly known: number;
  readonly stalled: number;
  /** Out-of-order batches dropped because the buffer was full. */
  readonly pendingDropped: number;
  readonly pendingHashes: number;
  readonly recoveriesRunning: number;
  readonly recoveriesWaiting: number;
}
