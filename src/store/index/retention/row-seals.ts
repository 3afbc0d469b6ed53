import { assert } from "../../../core/index.ts";
import type { CommandRow, IssuerRow, PartRow, RetentionRow } from "./retention-ledger.ts";

/**
 * The bytes of a row that its seal covers: the kind of row, then the columns. Numbers are
 * little-endian, strings are UTF-8 after their length, nullable columns follow a presence byte.
 * This encoding is part of the file format: a change would make the seals of existing rows invalid.
 */

const KIND = { hold: 1, command: 3, issuer: 4, part: 5 } as const;
const HOLD_KINDS = ["pin", "retain", "lease"] as const;
const FIRST_BYTES = 64 * 1024;

let bytes = Buffer.from(new ArrayBuffer(FIRST_BYTES));
let view = new DataView(bytes.buffer);
let length = 0;

/**
 * Returns the seal of a pin's row: XXH3-64 of the encoded row. It detects accidental damage, as the
 * seals of the block index do.
 */
export function sealOfHold(row: RetentionRow): bigint {
  begin(KIND.hold);
  f64(row.id);
  u8(HOLD_KINDS.indexOf(row.kind));
  string(row.owner);
  orNull(row.name, string);
  orNull(row.deadlineBootMs, f64);
  string(row.bootId);
  orNull(row.priority, f64);
  orNull(row.idleMs, f64);
  f64(row.createdWallMs);
  blob(row.blocks);
  // Encode it only if true, so that the seals of rows from older versions stay valid.
  if (row.purges) u8(1);
  return Bun.hash.xxHash3(bytes.subarray(0, length));
}

export function sealOfPart(row: PartRow): bigint {
  begin(KIND.part);
  f64(row.hold);
  u32(row.part);
  blob(row.blocks);
  return Bun.hash.xxHash3(bytes.subarray(0, length));
}

/**
 * Returns the seal of a command's row. It also covers the position of the row; position 0 is
 * encoded like no position.
 */
export function sealOfCommand(row: CommandRow, position: number): bigint {
  begin(KIND.command);
  string(row.issuer);
  string(row.id);
  string(row.receipt);
  return Bun.hash.xxHash3(bytes.subarray(0, length), BigInt(position));
}

/** Returns the seal of an issuer's row, which covers its position as in `sealOfCommand`. */
export function sealOfIssuer(row: IssuerRow, position: number): bigint {
  begin(KIND.issuer);
  string(row.issuer);
  u64(row.epoch);
  u64(row.seq);
  return Bun.hash.xxHash3(bytes.subarray(0, length), BigInt(position));
}

function begin(kind: number): void {
  length = 0;
  u8(kind);
}

function room(more: number): void {
  if (length + more <= bytes.length) return;
  const grown = Buffer.from(new ArrayBuffer(Math.max(length + more, 2 * bytes.length)));
  grown.set(bytes.subarray(0, length));
  bytes = grown;
  view = new DataView(grown.buffer);
}

function u8(value: number): void {
  room(1);
  view.setUint8(length, value);
  length += 1;
}

function u32(value: number): void {
  room(4);
  view.setUint32(length, value, true);
  length += 4;
}

function u64(value: bigint): void {
  room(8);
  view.setBigUint64(length, value, true);
  length += 8;
}

function f64(value: number): void {
  assert(Number.isFinite(value), "a number is finite");
  room(8);
  // Adding 0 turns -0 into 0, because SQLite does not store the sign of zero.
  view.setFloat64(length, value + 0, true);
  length += 8;
}

function string(value: string): void {
  room(4 + 3 * value.length);
  const written = bytes.write(value, length + 4, "utf8");
  u32(written);
  length += written;
}

function blob(value: Uint8Array): void {
  u32(value.length);
  room(value.length);
  bytes.set(value, length);
  length += value.length;
}

function orNull<Value>(value: Value | null, write: (value: Value) => void): void {
  u8(value === null ? 0 : 1);
  if (value !== null) write(value);
}
