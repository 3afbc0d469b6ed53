import { assert, DIGEST_BYTES } from "../core/index.ts";

/**
 * Hash functions of the native library. They are a parameter, so that this folder does not open the
 * library.
 */
export interface Hashing {
  /** BLAKE3-256: 32 bytes. */
  blake3(data: Uint8Array): Uint8Array;
  /** BLAKE3-256 with a 32-byte key: 32 bytes. */
  blake3Keyed(key: Uint8Array, data: Uint8Array): Uint8Array;
  /** BLAKE3 in key derivation mode: 32 bytes. `context` is a constant of the program. */
  blake3DeriveKey(context: string, material: Uint8Array): Uint8Array;
  /**
   * Keyed BLAKE3 of each prefix that ends with a full block, over the tokens as u32 little-endian.
   * Writes `floor(tokens / blockTokens)` digests of 32 bytes to `out` and returns their number.
   */
  prefixDigests(key: Uint8Array, tokens: Uint32Array, blockTokens: number, out: Uint8Array): number;
  /**
   * Keyed BLAKE3 of each item of `itemBytes` bytes on its own. Writes 32 bytes per item to `out`
   * and returns the number of items.
   */
  chainDigests(key: Uint8Array, items: Uint8Array, itemBytes: number, out: Uint8Array): number;
  /** Writes `BLAKE3(digest ‖ layer u32 LE)` of each 32 bytes of `digests` to `out`. */
  blockKeys(digests: Uint8Array, layer: number, out: Uint8Array): void;
  /** XXH3-64, seed 0. */
  xxh3_64(data: Uint8Array): bigint;
  /** XXH3-128, seed 0: 16 bytes, big-endian. */
  xxh3_128(data: Uint8Array): Uint8Array;
}

/**
 * Digests or keys in one array, 32 bytes each. A prompt of 15,000 tokens has hundreds of them, and
 * native code and frames take them in this form.
 */
export type PackedDigests = Uint8Array;

/**
 * The digest of every full block of a prompt: BLAKE3, keyed with the namespace key, over all tokens
 * from the start of the prompt to the end of the block as u32 little-endian. Tokens after the last
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
 * Length of an engine's chain key: 32 for SHA-256 (SGLang, vLLM's SHA-256 kinds), 16 for XXH3-128
 * (vLLM's xxhash kinds), 8 for a u64 hash in little-endian.
 */
export type ChainKeyBytes = 8 | 16 | 32;

/**
 * Digests for engines that provide only their own chain keys (SGLang's storage calls): keyed BLAKE3
 * of each key. A chain key already covers the whole prefix. In the same namespace these digests
 * differ from those of the tokens.
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
 * Keys of blocks, by which tables and files are addressed: `BLAKE3(digest ‖ layer u32 LE)` of each.
 */
export function blockKeys(hashing: Hashing, digests: PackedDigests, layer: number): Uint8Array {
  assert(digests.length % DIGEST_BYTES === 0, "whole digests");
  const packed = new Uint8Array(digests.length);
  if (packed.length > 0) hashing.blockKeys(digests, layer, packed);
  return packed;
}
