/** What a host does for others at once; may change while it runs. */
export interface ServeLimits {
  /** Of blocks lent to peers, in bytes: in all, and to one of them. A single block always fits. */
  readonly bytesMax: number;
  readonly peerBytesMax: number;
  /** Pulls and summaries of one peer that are under way. */
  readonly peerRequestsMax: number;
  /** Blocks that are brought up from SSD: in all, and for one pull. */
  readonly readsMax: number;
  readonly pullReadsMax: number;
  /** A pull ends after so long, whatever its asker would wait. */
  readonly deadlineMaxMs: number;
  /** Keys (hex) of the namespaces that peers may ask for; null: all. */
  readonly namespaces: ReadonlySet<string> | null;
  /** A summary is made anew at most so often where blocks came, and so often where none did. */
  readonly summaryMs: number;
  readonly summaryStaleMs: number;
}

export const SERVE_LIMITS: ServeLimits = {
  bytesMax: 512 * 2 ** 20,
  peerBytesMax: 128 * 2 ** 20,
  peerRequestsMax: 64,
  readsMax: 32,
  pullReadsMax: 8,
  deadlineMaxMs: 60_000,
  namespaces: null,
  summaryMs: 3_000,
  summaryStaleMs: 60_000,
};
