import { BLOCK_KEY_BYTES, DIGEST_BYTES } from "../core/index.ts";
import { MAC_BYTES, nativeBuffer } from "../native/index.ts";

const WORDS_PER_KEY = BLOCK_KEY_BYTES / 4;

/**
 * Addresses of blocks as columns. Requests reuse the columns. `keys` and `parentKeys` contain one
 * `BlockKey` of eight 32-bit words per block, which `deriveKeys` computes from the digests and the
 * layer.
 */
export type AddressBatch = ReturnType<typeof createAddressBatch>;

export function createAddressBatch(capacity: number) {
  const digests = nativeBuffer(capacity * DIGEST_BYTES);
  const parents = nativeBuffer(capacity * DIGEST_BYTES);
  const keys = nativeBuffer(capacity * BLOCK_KEY_BYTES);
  const parentKeys = nativeBuffer(capacity * BLOCK_KEY_BYTES);
  return {
    count: 0,
    layer: 0,
    capacity,
    /** Digests, 32 bytes per block. */
    digests: digests.bytes,
    keys: new Uint32Array(keys.bytes.buffer, 0, capacity * WORDS_PER_KEY),
    /**
     * Digests of the parents, 32 bytes per block; all zero means no parent. Used only when blocks
     * are written or mirrored.
     */
    parents: parents.bytes,
    parentKeys: new Uint32Array(parentKeys.bytes.buffer, 0, capacity * WORDS_PER_KEY),
    /**
     * Low and high word of the engine's 64-bit hash of the block. Valid if `BlockFlag.aliasGiven`
     * is set.
     */
    aliasLo: new Uint32Array(capacity),
    aliasHi: new Uint32Array(capacity),
    bytes: new Uint32Array(capacity),
    flags: new Uint32Array(capacity),
    /** The memory of the columns as native buffers, for native calls. */
    native: { digests, parents },
    keyBytes: keys.bytes,
    parentKeyBytes: parentKeys.bytes,
  };
}

/**
 * Slot handles (slot number and generation) with attributes, as columns. Requests fill some
 * columns, replies fill others.
 */
export type HandleBatch = ReturnType<typeof createHandleBatch>;

export function createHandleBatch(capacity: number) {
  return {
    count: 0,
    capacity,
    outcome: new Uint32Array(capacity),
    slot: new Uint32Array(capacity),
    generation: new Uint32Array(capacity),
    /**
     * Bytes per slot. In a reply to reserve: capacity of the slot. In a reply to acquire: length of
     * the block.
     */
    bytes: new Uint32Array(capacity),
    /** Byte offset of the slot in the arena. */
    offset: new Float64Array(capacity),
    checksum: new BigUint64Array(capacity),
    /** MACs, 16 bytes per block; all zero means no MAC. */
    mac: new Uint8Array(capacity * MAC_BYTES),
    /** Bits of `CommitFlag`; set in commit requests only. */
    flags: new Uint32Array(capacity),
    /**
     * In a reply to acquire: the `Tier` bit of the slowest tier that the request waited for; 0 if
     * it did not wait.
     */
    waitedFor: 0,
  };
}

/** Returns a new batch with copies of the first `count` entries. */
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

/** Returns whether block `index` has a parent: its parent digest is not all zero. */
export function hasParent(batch: AddressBatch, index: number): boolean {
  const start = index * DIGEST_BYTES;
  for (let i = start; i < start + DIGEST_BYTES; i++) if (batch.parents[i] !== 0) return true;
  return false;
}
