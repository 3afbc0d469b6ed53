/**
 * What frames carry, as columns. Decoders fill the first `count` entries of the caller's arrays and
 * never grow them; the batches of `tiers/` have these shapes and more.
 */

/** Blocks by name: digest `i` is `digests[32 i, 32 i + 32)`; one layer for all of them. */
export interface DigestItems {
  count: number;
  layer: number;
  readonly digests: Uint8Array;
}

/** Blocks to be written or mirrored; a parent of 32 zero bytes is no parent. */
export interface BlockItems extends DigestItems {
  readonly parents: Uint8Array;
  /** Low and high half of the engine's 64-bit hash; zero without `BlockFlag.aliasGiven`. */
  readonly aliasLo: Uint32Array;
  readonly aliasHi: Uint32Array;
  readonly bytes: Uint32Array;
  readonly flags: Uint32Array;
}

/** Slots by number and generation. */
export interface HandleItems {
  count: number;
  readonly slot: Uint32Array;
  readonly generation: Uint32Array;
}

/** Slots whose bytes are complete; checksum and MAC count only with their `CommitFlag`. */
export interface CommitItems extends HandleItems {
  readonly checksum: BigUint64Array;
  readonly flags: Uint32Array;
}

export interface OutcomeItems {
  count: number;
  readonly outcome: Uint32Array;
}

/** Slots handed out. `bytes` is a reserved slot's capacity, an acquired block's length. */
export interface SlotItems extends OutcomeItems, HandleItems {
  readonly bytes: Uint32Array;
  /** Offset in the arena, in bytes. */
  readonly offset: Float64Array;
}

export interface AcquiredItems extends SlotItems {
  readonly checksum: BigUint64Array;
}
