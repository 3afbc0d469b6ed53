export const INGEST_DEFAULTS = {
  /**
   * Maximum sources to follow. Messages of further sources are dropped and counted in `overfull`.
   */
  targetsMax: 4_096,
  /**
   * Number of missing heartbeats after which a source is stale (`staleBeats`) or gone
   * (`goneBeats`).
   */
  staleBeats: 3,
  goneBeats: 15,
  /** Time in ms to wait for reordered messages to close a gap in the sequence numbers. */
  reorderMs: 20,
  /**
   * Buffer limits for out-of-order batches: hashes of all sources together, and batches of one
   * source.
   */
  pending: { hashesMax: 4 * 2 ** 20, batchesPerSourceMax: 1_024 },
  /**
   * Maximum concurrent recoveries, and the delay in ms after a failed one. The delay doubles with
   * each failure, with jitter.
   */
  recovery: { atOnceMax: 8, retryMinMs: 200, retryMaxMs: 30_000 },
  /** Timeout in ms of one request to a source. */
  answerMs: 2_000,
  /** Maximum blocks in a snapshot. Larger snapshots are rejected. */
  snapshotBlocksMax: 2 ** 25,
};

export type IngestSettings = Readonly<typeof INGEST_DEFAULTS>;

/** Counters since the router started, for metrics. */
export class IngestCounts {
  batches = 0;
  changes = 0;
  heartbeats = 0;
  /** Batches whose changes were all applied before. */
  duplicates = 0;
  /** Batches that arrived before the batch they should follow. */
  early = 0;
  /** Messages of an earlier run of a source. */
  stale = 0;
  /** Batches of sources that have not sent a heartbeat yet. */
  unannounced = 0;
  incarnations = 0;
  gaps = 0;
  ranges = 0;
  snapshots = 0;
  snapshotsFailed = 0;
  /** Heartbeats whose digests differed from the index. */
  mismatches = 0;
  /** Announcements of other routers whose digests differed from the index. */
  doubts = 0;
  /** Messages that are malformed or name a different source than their subject. */
  refused = 0;
  /** Messages dropped because `targetsMax` sources are already followed. */
  overfull = 0;
}
