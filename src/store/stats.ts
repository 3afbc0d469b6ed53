/**
 * What the store counted since it started. Read by metrics and status; written by the store alone.
 */
export interface StoreStats {
  matchBlocks: number;
  acquireHits: number;
  /** Of these, brought from SSD. */
  acquireHitsSsd: number;
  /** Brought from another host. */
  acquireHitsPeer: number;
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
  /** From other hosts, whole and right; and those that were not, of which nothing was kept. */
  pulledBlocks: number;
  pulledBytes: number;
  peerCorruptBlocks: number;
  /** Lent to other hosts. */
  lentBlocks: number;
  lentBytes: number;
}

export function emptyStats(): StoreStats {
  return {
    matchBlocks: 0,
    acquireHits: 0,
    acquireHitsSsd: 0,
    acquireHitsPeer: 0,
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
    pulledBlocks: 0,
    pulledBytes: 0,
    peerCorruptBlocks: 0,
    lentBlocks: 0,
    lentBytes: 0,
  };
}
