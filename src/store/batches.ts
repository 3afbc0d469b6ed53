import { BLOCK_KEY_BYTES, DIGEST_BYTES } from "../core/index.ts";
import { MAC_BYTES, type NativeBuffer, nativeBuffer } from "../native/index.ts";

const WORDS_PER_KEY = BLOCK_KEY_BYTES / 4;

/**
 * Blocks by address, as columns that requests reuse. `keys` and `parentKeys` hold `BlockKey`s of
 * eight words each. `deriveKeys` derives them from digests and layer.
 */
export interface AddressBatch {
  count: number;
  layer: number;
  readonly capacity: number;
  /** 32 bytes per block. */
  readonly digests: Uint8Array;
  readonly keys: Uint32Array;
  /**
   * 32 bytes per block; all zero means no parent. Used only when blocks are written or mirrored.
   */
  readonly parents: Uint8Array;
  readonly parentKeys: Uint32Array;
  /** The engine's 64-bit hash of the block, if `BlockFlag.aliasGiven` is set. */
  readonly aliasLo: Uint32Array;
  readonly aliasHi: Uint32Array;
  readonly bytes: Uint32Array;
  readonly flags: Uint32Array;
  /** Native memory of the columns, for calls that take addresses. */
  readonly native: { readonly digests: NativeBuffer; readonly parents: NativeBuffer };
  readonly keyBytes: Uint8Array;
  readonly parentKeyBytes: Uint8Array;
}

export function createAddressBatch(capacity: number): AddressBatch {
  const digests = nativeBuffer(capacity * DIGEST_BYTES);
  const parents = nativeBuffer(capacity * DIGEST_BYTES);
  const keys = nativeBuffer(capacity * BLOCK_KEY_BYTES);
  const parentKeys = nativeBuffer(capacity * BLOCK_KEY_BYTES);
  return {
    count: 0,
    layer: 0,
    capacity,
    digests: digests.bytes,
    keys: new Uint32Array(keys.bytes.buffer, 0, capacity * WORDS_PER_KEY),
    parents: parents.bytes,
    parentKeys: new Uint32Array(parentKeys.bytes.buffer, 0, capacity * WORDS_PER_KEY),
    aliasLo: new Uint32Array(capacity),
    aliasHi: new Uint32Array(capacity),
    bytes: new Uint32Array(capacity),
    flags: new Uint32Array(capacity),
    native: { digests, parents },
    keyBytes: keys.bytes,
    parentKeyBytes: parentKeys.bytes,
  };
}

/**
 * Slots by number and generation, with their attributes. Requests fill some columns, answers fill
 * others.
 */
export interface HandleBatch {
  count: number;
  readonly capacity: number;
  readonly outcome: Uint32Array;
  readonly slot: Uint32Array;
  readonly generation: Uint32Array;
  /** Capacity of a reserved slot, or length of an acquired block. */
  readonly bytes: Uint32Array;
  /** Offset of the slot in the arena. */
  readonly offset: Float64Array;
  readonly checksum: BigUint64Array;
  /** 16 bytes per block; all zero means no MAC. */
  readonly mac: Uint8Array;
  /** Bits of `CommitFlag`, in a commit. */
  readonly flags: Uint32Array;
  /** In an answer: the bit of the slowest tier that the request waited for; 0 for none. */
  waitedFor: number;
}

export function createHandleBatch(capacity: number): HandleBatch {
  return {
    count: 0,
    capacity,
    outcome: new Uint32Array(capacity),
    slot: new Uint32Array(capacity),
    generation: new Uint32Array(capacity),
    bytes: new Uint32Array(capacity),
    offset: new Float64Array(capacity),
    checksum: new BigUint64Array(capacity),
    mac: new Uint8Array(capacity * MAC_BYTES),
    flags: new Uint32Array(capacity),
    waitedFor: 0,
  };
}

/** Copies the first `count` entries. */
export function copyHandles(from: HandleBatch): HandleBatch {
  const { count } = from;
  const copy = createHandleBatch(Math.max(1, count));
  copy.count = count;
  for (const column of ["outcome", "slot", "generation", "bytes", "offset", "flags"] as const) {
    copy[column].set(from[column].subarray(0, count));
  }
  copy.checksum.set(from.checksum.subarray(0, count));
  copy.mac.set(from.mac.subarray(0, count * MAC_BYTES));
  return copy;
}

/** Whether block `index` has a parent. */
export function hasParent(batch: AddressBatch, index: number): boolean {
  const start = index * DIGEST_BYTES;
  for (let i = start; i < start + DIGEST_BYTES; i++) if (batch.parents[i] !== 0) return true;
  return false;
}
