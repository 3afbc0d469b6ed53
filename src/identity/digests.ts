import { assert, DIGEST_BYTES } from "../core/index.ts";

/**
 * Hash functions of the native library. Callers pass them in, so that this folder does not open the
 * library.
 */
export interface Hashing {
  /** Returns the BLAKE3-256 hash of `data`: 32 bytes. */
  blake3(data: Uint8Array): Uint8Array;
  /** Returns the BLAKE3-256 hash of `data` under a 32-byte key: 32 bytes. */
  blake3Keyed(key: Uint8Array, data: Uint8Array): Uint8Array;
  /**
   * Returns 32 bytes derived from `material` with BLAKE3's key derivation mode. `context`
   * identifies the purpose and is a constant in the source code.
   */
  blake3DeriveKey(context: string, material: Uint8Array): Uint8Array;
  /**
   * Computes the keyed BLAKE3 of each prefix of the prompt that ends with a full block. Tokens are
   * hashed as u32 little-endian. Writes `floor(tokens / blockTokens)` digests of 32 bytes to `out`
   * and returns their number.
   */
  prefixDigests(key: Uint8Array, tokens: Uint32Array, blockTokens: number, out: Uint8Array): number;
  /**
   * Computes the keyed BLAKE3 of each item separately. Each item has `itemBytes` bytes. Writes 32
   * bytes per item to `out` and returns the number of items.
   */
  chainDigests(key: Uint8Array, items: Uint8Array, itemBytes: number, out: Uint8Array): number;
  /** Writes `BLAKE3(digest ‖ layer as u32 LE)` to `out` for each 32-byte digest in `digests`. */
  blockKeys(digests: Uint8Array, layer: number, out: Uint8Array): void;
  /** Returns the XXH3-64 hash of `data` with seed 0. */
  xxh3_64(data: Uint8Array): bigint;
  /** Returns the XXH3-128 hash of `data` with seed 0: 16 bytes, big-endian. */
  xxh3_128(data: Uint8Array): Uint8Array;
}

/**
 * Digests or block keys of 32 bytes each, concatenated in one array. Native code and network
 * messages use this form; a prompt of 15,000 tokens has hundreds of digests.
 */
export type PackedDigests = Uint8Array;

/**
 * Computes the digest of every full block of a prompt: BLAKE3, keyed with the namespace key, over
 * all tokens from the start of the prompt to the end of the block. Tokens are hashed as u32
 * little-endian. Tokens after the last full block are not hashed.
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
 * Length in bytes of a key that an engine computes for a block: 32 for SHA-256 (SGLang, and vLLM
 * with SHA-256), 16 for XXH3-128 (vLLM with xxhash), 8 for a u64 hash in little-endian.
 */
export type ChainKeyBytes = 8 | 16 | 32;

/**
 * Computes digests for engines that provide only their own block keys, such as SGLang's storage
 * interface: the keyed BLAKE3 of each key. An engine's key already covers the whole prefix. The
 * digests differ from those that `digestsOfPrompt` computes in the same namespace.
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

/**
 * Computes the keys under which blocks are stored in tables and files: `BLAKE3(digest ‖ layer as
 * u32 LE)` for each digest.
 */
export function blockKeys(hashing: Hashing, digests: PackedDigests, layer: number): Uint8Array {
  assert(digests.length % DIGEST_BYTES === 0, "whole digests");
  const packed = new Uint8Array(digests.length);
  if (packed.length > 0) hashing.blockKeys(digests, layer, packed);
  return packed;
}
