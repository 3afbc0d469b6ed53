/**
 * What happened to one block of a request. The numbers are the engine protocol's
 * (docs/engine-protocol.md), so that the store's answer goes on the wire as it is.
 */
export const BlockOutcome = {
  ok: 0,
  miss: 1,
  full: 2,
  present: 3,
  stale: 4,
  corrupt: 5,
  tooLarge: 6,
  late: 7,
  pending: 8,
  skipped: 9,
  rejected: 10,
  device: 11,
} as const;
export type BlockOutcome = (typeof BlockOutcome)[keyof typeof BlockOutcome];

/** Bits of the flags of a block to be written, or mirrored. */
export const BlockFlag = { transient: 1, aliasGiven: 2 } as const;

/** Bits of the flags of a slot to be committed. */
export const CommitFlag = { checksumGiven: 1, macGiven: 2 } as const;
