import { assert } from "./assert.ts";

/** Lower-case hex of all bytes. */
export function toHex(bytes: Uint8Array): string {
  return bytes.toHex();
}

/** Bytes of a hex string, or null where it is not hex of an even length. */
export function fromHex(text: string): Uint8Array | null {
  if (text.length % 2 !== 0 || !/^[0-9a-fA-F]*$/.test(text)) return null;
  return Uint8Array.fromHex(text);
}

export function equalBytes(a: Uint8Array, b: Uint8Array): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return false;
  return true;
}

const U64_MAX = 0xffff_ffff_ffff_ffffn;

/** Big-endian u64 at `offset`. */
export function readU64BE(bytes: Uint8Array, offset = 0): bigint {
  assert(offset + 8 <= bytes.length, "eight bytes to read");
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength).getBigUint64(offset, false);
}

/** The same 64 bits read as signed (SGLang prints its hashes so). */
export function asI64(value: bigint): bigint {
  return BigInt.asIntN(64, value);
}

/** The same 64 bits read as unsigned: the form in which Hearth compares engine hashes. */
export function asU64(value: bigint): bigint {
  return BigInt.asUintN(64, value);
}

export function isU64(value: bigint): boolean {
  return value >= 0n && value <= U64_MAX;
}
