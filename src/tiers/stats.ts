/**
 * What the store counted since it started. Read by metrics and status; written by the store alone.
 */
export interface StoreStats {
  matchBlocks: number;
  acquireHits: number;
  /** Of these, brought from SSD. */
  acquireHitsSsd: number;
  acquireMisses: number;
  reservedBlocks: number;
  presentBlocks: number;
  fullBlocks: number;
  committedBlocks: number;
  committedBytes: number;
  abortedBlocks: number;
  corruptBlocks: number;
  evictedBlocks: number;
  evictedBytes: number;
  evictionRuns: number;
  quarantinedSlots: number;
}

export function emptyStats(): StoreStats {
  return {
    matchBlocks: 0,
    acquireHits: 0,
    acquireHitsSsd: 0,
    acquireMisses: 0,
    reservedBlocks: 0,
    presentBlocks: 0,
    fullBlocks: 0,
    committedBlocks: 0,
    committedBytes: 0,
    abortedBlocks: 0,
    corruptBlocks: 0,
    evictedBlocks: 0,
    evictedBytes: 0,
    evictionRuns: 0,
    quarantinedSlots: 0,
  };
}
