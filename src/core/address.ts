import type { Brand } from "./ids.ts";

export const DIGEST_BYTES = 32;
export const BLOCK_KEY_BYTES = 32;
export const BLOCK_ADDRESS_BYTES = 36;
/** The layer of a block whose layers all lie in one object. */
export const LAYER_ALL = 0xffff_ffff;

/** BLAKE3-256 over (namespace, all prefix tokens up to the block's end): 32 bytes. */
export type Digest = Brand<Uint8Array, "Digest">;
/** `BLAKE3(digest ‖ layer u32 LE)`: 32 bytes; what tables and files are keyed by. */
export type BlockKey = Brand<Uint8Array, "BlockKey">;

export interface BlockAddress {
  readonly digest: Digest;
  readonly layer: number;
}

/** Writes the 36 bytes `digest ‖ layer u32 LE` at `offset`. */
export function writeBlockAddress(address: BlockAddress, into: Uint8Array, offset = 0): void {
  into.set(address.digest, offset);
  const layer = address.layer >>> 0;
  into[offset + 32] = layer & 0xff;
  into[offset + 33] = (layer >>> 8) & 0xff;
  into[offset + 34] = (layer >>> 16) & 0xff;
  into[offset + 35] = layer >>> 24;
}

/** Reads the 36 bytes back; the digest is a copy. */
export function readBlockAddress(from: Uint8Array, offset = 0): BlockAddress {
  const digest = from.slice(offset, offset + DIGEST_BYTES) as Digest;
  const at = offset + DIGEST_BYTES;
  const layer =
    (from[at]! | (from[at + 1]! << 8) | (from[at + 2]! << 16) | (from[at + 3]! << 24)) >>> 0;
  return { digest, layer };
}
