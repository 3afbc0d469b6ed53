import { assert } from "./errors.ts";

/**
 * Conversion between text and sizes or durations. Sizes have binary units only; "GB" is rejected.
 */

const SIZE_UNITS: Record<string, number> = {
  B: 1,
  KiB: 2 ** 10,
  MiB: 2 ** 20,
  GiB: 2 ** 30,
  TiB: 2 ** 40,
};

const DURATION_UNITS: Record<string, number> = {
  ms: 1,
  s: 1_000,
  m: 60_000,
  h: 3_600_000,
  d: 86_400_000,
};

export type Parsed =
  | { readonly ok: true; readonly value: number }
  | { readonly ok: false; readonly why: string };

function parseWithUnit(text: string, units: Record<string, number>, example: string): Parsed {
  const match = /^([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)$/.exec(text.trim());
  const names = Object.keys(units).join(", ");
  if (match === null)
    return { ok: false, why: `wants a number and a unit (${names}), as in "${example}"` };
  const unit = Object.hasOwn(units, match[2]) ? units[match[2]] : undefined;
  if (unit === undefined)
    return { ok: false, why: `unknown unit "${match[2]}": use one of ${names}` };
  const value = Number(match[1]) * unit;
  if (!Number.isSafeInteger(Math.round(value))) return { ok: false, why: "is too large" };
  if (Math.abs(value - Math.round(value)) > 1e-6)
    return { ok: false, why: "is not a whole number of its smallest unit" };
  return { ok: true, value: Math.round(value) };
}

/** Parses a size such as `"64GiB"` to bytes. */
export function parseBytes(text: string): Parsed {
  return parseWithUnit(text, SIZE_UNITS, "64GiB");
}

/** Parses a duration such as `"7d"` or `"250ms"` to milliseconds. */
export function parseDuration(text: string): Parsed {
  return parseWithUnit(text, DURATION_UNITS, "7d");
}

/**
 * Formats bytes for reading, such as 1610612736 as `"1.5GiB"`: in the largest unit that fits,
 * rounded to at most two decimals.
 */
export function formatBytes(bytes: number): string {
  const entries = Object.entries(SIZE_UNITS).reverse();
  for (const [unit, size] of entries) {
    if (bytes >= size) return `${Number((bytes / size).toFixed(2))}${unit}`;
  }
  return `${bytes}B`;
}

/**
 * Formats milliseconds, such as 90000 as `"90s"`: in the largest unit that divides the value, so
 * that parsing the text gives the same value.
 */
export function formatDuration(ms: number): string {
  for (const [unit, size] of Object.entries(DURATION_UNITS).reverse()) {
    if (ms >= size && ms % size === 0) return `${ms / size}${unit}`;
  }
  return `${ms}ms`;
}

/** Returns all bytes in lower-case hex. */
export function toHex(bytes: Uint8Array): string {
  return bytes.toHex();
}

/** Returns the bytes of a hex string. Null if it is not hex of even length. */
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

/** Reads a big-endian u64 at `offset`. */
export function readU64BE(bytes: Uint8Array, offset = 0): bigint {
  assert(offset + 8 <= bytes.length, "eight bytes to read");
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength).getBigUint64(offset, false);
}

/** Reinterprets the 64 bits as a signed integer, the form in which SGLang prints its hashes. */
export function asI64(value: bigint): bigint {
  return BigInt.asIntN(64, value);
}

export function isU64(value: bigint): boolean {
  return value >= 0n && value <= U64_MAX;
}
