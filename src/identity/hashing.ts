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
