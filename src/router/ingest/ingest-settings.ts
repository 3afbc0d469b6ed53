export const INGEST_DEFAULTS = {
  /** Maximum sources followed. Messages of further sources are counted (`overfull`) and dropped. */
  targetsMax: 4_096,
  /** Missed heartbeats after which a source is stale (`staleBeats`) or gone (`goneBeats`). */
  staleBeats: 3,
  goneBeats: 15,
  /** Time allowed for reordered messages to close a gap in the sequence numbers. */
  reorderMs: 20,
  /** Buffer of out-of-order batches: hashes of all sources, and batches of one source. */
  pending: { hashesMax: 4 * 2 ** 20, batchesPerSourceMax: 1_024 },
  /**
   * Concurrent recoveries, and the delay after the first failure. The delay doubles with each
   * failure, with jitter.
   */
  recovery: { atOnceMax: 8, retryMinMs: 200, retryMaxMs: 30_000 },
  /** Timeout of one request to a source. */
  answerMs: 2_000,
  /** Maximum blocks in a snapshot. A larger snapshot is rejected. */
  snapshotBlocksMax: 2 ** 25,
};

export type IngestSettings = Readonly<typeof INGEST_DEFAULTS>;

/** Counters since start, for metrics. */
export class IngestCounts {
  batches = 0;
  changes = 0;
  heartbeats = 0;
  /** Batches already applied. */
  duplicates = 0;
  /** Batches that arrived before a batch they follow. */
  early = 0;
  /** Messages of an earlier incarnation than the followed one. */
  stale = 0;
  /** Batches of sources without a heartbeat so far. */
  unannounced = 0;
  incarnations = 0;
  gaps = 0;
  ranges = 0;
  snapshots = 0;
  snapshotsFailed = 0;
  /** Digests that differed from the source's. */
  mismatches = 0;
  /** Digests that differed from another router's. */
  doubts = 0;
  /** Messages that are malformed or name another source than their subject. */
  refused = 0;
  /** Messages of sources beyond `targetsMax`. */
  overfull = 0;
}
