import { assert, type BlockKey, DIGEST_BYTES, type Digest } from "../core/index.ts";

/**
 * What identity needs of the native library. `loadNative()` gives an object with these calls; it
 * comes in as a parameter, so that nothing here opens a library.
 */
export interface Hashing {
  /** BLAKE3-256: 32 bytes. */
  blake3(data: Uint8Array): Uint8Array;
  /** BLAKE3-256 keyed with 32 bytes: 32 bytes. */
  blake3Keyed(key: Uint8Array, data: Uint8Array): Uint8Array;
  /** BLAKE3 in key derivation mode: 32 bytes. `context` is fixed in the program. */
  blake3DeriveKey(context: string, material: Uint8Array): Uint8Array;
  /**
   * Keyed BLAKE3 of each prefix that ends with a full block, over the tokens as u32 little endian:
   * `floor(tokens / blockTokens)` times 32 bytes into `out`. Returns their number.
   */
  prefixDigests(key: Uint8Array, tokens: Uint32Array, blockTokens: number, out: Uint8Array): number;
  /**
   * Keyed BLAKE3 of each item of `itemBytes` alone: 32 bytes each into `out`. Returns their number.
   */
  chainDigests(key: Uint8Array, items: Uint8Array, itemBytes: number, out: Uint8Array): number;
  /** `BLAKE3(digest ‖ layer u32 LE)` for each 32 bytes of `digests`, into `out`. */
  blockKeys(digests: Uint8Array, layer: number, out: Uint8Array): void;
  /** XXH3-64, seed 0. */
  xxh3_64(data: Uint8Array): bigint;
  /** XXH3-128, seed 0: 16 bytes, big endian. */
  xxh3_128(data: Uint8Array): Uint8Array;
}

/**
 * Many digests or keys lie one after another in one array, 32 bytes each: a prompt of 15,000 tokens
 * has hundreds of them, and they cross to native code and into frames as they are.
 */
export type PackedDigests = Uint8Array;

/** Digest of block `index`: a view, not a copy. */
export function digestAt(packed: PackedDigests, index: number): Digest {
  assert((index + 1) * DIGEST_BYTES <= packed.length, "a digest with that index");
  return packed.subarray(index * DIGEST_BYTES, (index + 1) * DIGEST_BYTES) as Digest;
}

/** Key of block `index`: a view, not a copy. */
export function blockKeyAt(packed: Uint8Array, index: number): BlockKey {
  return digestAt(packed, index) as Uint8Array as BlockKey;
}

/**
 * The digest of every full block of a prompt: keyed BLAKE3, with the namespace key, over all tokens
 * from the start of the prompt to the end of the block as u32 little endian. Tokens behind the last
 * full block have no digest.
 */
export function digestsOfPrompt(
  hashing: Hashing,
  namespaceKey: Uint8Array,
  tokens: Uint32Array,
  blockTokens: number,
): PackedDigests {
  assert(Number.isInteger(blockTokens) && blockTokens > 0, "a block of at least one token");
  const packed = new Uint8Array(Math.floor(tokens.length / blockTokens) * DIGEST_BYTES);
  if (packed.length > 0) hashing.prefixDigests(namespaceKey, tokens, blockTokens, packed);
  return packed;
}

/**
 * Bytes of an engine's chain key: 32 of SHA-256 (SGLang, vLLM's SHA-256 kinds), 16 of XXH3-128
 * (vLLM's xxhash kinds), or a u64 hash as eight bytes, little endian.
 */
export type ChainKeyBytes = 8 | 16 | 32;

/**
 * Digests where the engine gives only its own chain keys (SGLang's storage calls): keyed BLAKE3 of
 * each key. A chain key stands for the whole prefix already, so nothing else goes in. In one
 * namespace these are other digests than those of the tokens.
 */
export function digestsOfChainKeys(
  hashing: Hashing,
  namespaceKey: Uint8Array,
  keys: Uint8Array,
  keyBytes: ChainKeyBytes,
): PackedDigests {
  assert(keys.length % keyBytes === 0, "whole chain keys");
  const packed = new Uint8Array((keys.length / keyBytes) * DIGEST_BYTES);
  if (packed.length > 0) hashing.chainDigests(namespaceKey, keys, keyBytes, packed);
  return packed;
}

/** The keys of blocks: `BLAKE3(digest ‖ layer u32 LE)` for each, what tables and files go by. */
export function blockKeys(hashing: Hashing, digests: PackedDigests, layer: number): Uint8Array {
  assert(digests.length % DIGEST_BYTES === 0, "whole digests");
  const packed = new Uint8Array(digests.length);
  if (packed.length > 0) hashing.blockKeys(digests, layer, packed);
  return packed;
}
