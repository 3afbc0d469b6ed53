import { isUtf8 } from "node:buffer";
import { assert } from "../core/index.ts";

/** Input that does not match the expected format. Thrown and caught inside `src/events` only. */
export class Unreadable extends Error {}

const utf8Decoder = new TextDecoder("utf-8", { ignoreBOM: true });

/** Maximum nesting that `skip` follows; deeper values are rejected. */
const DEPTH_MAX = 32;
const SKIP_STEP = 4_096;
const SHORT_TEXT = 24;
const U32_MAX = 0xffff_ffff;

/** Encoding of a length: in the head itself, or in 1, 2 or 4 bytes after one of three heads. */
const LENGTHS = {
  str: { from: 0xa0, to: 0xbf, wide: [0xd9, 0xda, 0xdb] },
  bin: { from: 1, to: 0, wide: [0xc4, 0xc5, 0xc6] },
  array: { from: 0x90, to: 0x9f, wide: [-1, 0xdc, 0xdd] },
  map: { from: 0x80, to: 0x8f, wide: [-1, 0xde, 0xdf] },
} as const;

export type MsgpackKind = "nil" | "bool" | "int" | "float" | "str" | "bin" | "array" | "map";

/**
 * Reads untrusted MessagePack value by value. Checks each length against the remaining bytes before
 * it allocates. Integers are exact. Throws only `Unreadable`; `at` is then at the offending value
 * or after it.
 */
export class MsgpackReader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  at = 0;

  constructor(bytes: Uint8Array) {
    // The `slice` of a Buffer would not copy the bytes returned by `bin`.
    this.#bytes = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get isAtEnd(): boolean {
    return this.at === this.#bytes.length;
  }

  kind(): MsgpackKind {
    const head = this.#peek();
    if (head < 0x80 || head >= 0xe0 || (head >= 0xcc && head <= 0xd3)) return "int";
    if (head < 0x90 || head === 0xde || head === 0xdf) return "map";
    if (head < 0xa0 || head === 0xdc || head === 0xdd) return "array";
    if (head < 0xc0 || (head >= 0xd9 && head <= 0xdb)) return "str";
    if (head === 0xc0) return "nil";
    if (head === 0xc2 || head === 0xc3) return "bool";
    if (head >= 0xc4 && head <= 0xc6) return "bin";
    if (head === 0xca || head === 0xcb) return "float";
    throw new Unreadable("extension types are not accepted");
  }

  /** Returns whether the value is nil, and consumes it if so. */
  nil(): boolean {
    if (this.#peek() !== 0xc0) return false;
    this.at++;
    return true;
  }

  bool(): boolean {
    const head = this.#peek();
    if (head !== 0xc2 && head !== 0xc3) throw new Unreadable("not a boolean");
    this.at++;
    return head === 0xc3;
  }

  /** Reads an integer from 0 to `max`, at most the largest safe integer. */
  uint(max = Number.MAX_SAFE_INTEGER): number {
    const head = this.#peek();
    if (head < 0x80) {
      if (head > max) throw new Unreadable(`number above ${max}`);
      this.at++;
      return head;
    }
    const value = this.int();
    if (value < 0n || value > BigInt(max)) throw new Unreadable(`number outside 0 to ${max}`);
    return Number(value);
  }

  /** Reads non-negative 32-bit integers until `into` is full; for long token lists. */
  u32s(into: Uint32Array): void {
    const bytes = this.#bytes;
    let { at } = this;
    for (let i = 0; i < into.length; i++) {
      const head = bytes[at] ?? 0xc1;
      const width =
        head < 0x80 ? 0 : head === 0xcc ? 1 : head === 0xcd ? 2 : head === 0xce ? 4 : -1;
      if (width < 0 || at + width >= bytes.length) {
        this.at = at;
        into[i] = this.uint(U32_MAX);
        at = this.at;
        continue;
      }
      let value = width === 0 ? head : 0;
      for (let k = 1; k <= width; k++) value = value * 256 + bytes[at + k]!;
      into[i] = value;
      at += 1 + width;
    }
    this.at = at;
  }

  /** Reads a 64-bit integer, signed ones bit for bit. */
  u64(): bigint {
    if (this.#peek() === 0xcf) {
      this.#need(9);
      this.at += 9;
      return this.#view.getBigUint64(this.at - 8);
    }
    return BigInt.asUintN(64, this.int());
  }

  /** Reads any integer. */
  int(): bigint {
    const head = this.#peek();
    if (head < 0x80) return BigInt(this.#take(1, head));
    if (head >= 0xe0) return BigInt(this.#take(1, head - 0x100));
    if (head < 0xcc || head > 0xd3) throw new Unreadable("not an integer");
    const width = 1 << ((head - 0xcc) & 3);
    this.#need(1 + width);
    const at = this.at + 1;
    this.at += 1 + width;
    const view = this.#view;
    if (head === 0xcf) return view.getBigUint64(at);
    if (head === 0xd3) return view.getBigInt64(at);
    if (head === 0xcc) return BigInt(view.getUint8(at));
    if (head === 0xcd) return BigInt(view.getUint16(at));
    if (head === 0xce) return BigInt(view.getUint32(at));
    if (head === 0xd0) return BigInt(view.getInt8(at));
    return BigInt(head === 0xd1 ? view.getInt16(at) : view.getInt32(at));
  }

  /** Reads a float, or an integer as a float. */
  number(): number {
    const head = this.#peek();
    if (head !== 0xca && head !== 0xcb) return Number(this.int());
    const width = head === 0xca ? 4 : 8;
    this.#need(1 + width);
    const at = this.at + 1;
    this.at += 1 + width;
    return width === 4 ? this.#view.getFloat32(at) : this.#view.getFloat64(at);
  }

  str(bytesMax: number): string {
    const length = this.#length("str");
    if (length > bytesMax) throw new Unreadable(`text longer than ${bytesMax} bytes`);
    this.#need(length);
    const { at } = this;
    this.at += length;
    if (length <= SHORT_TEXT) {
      const short = this.#shortText(at, length);
      if (short !== null) return short;
    }
    const text = this.#bytes.subarray(at, at + length);
    if (!isUtf8(text)) throw new Unreadable("invalid UTF-8");
    return utf8Decoder.decode(text);
  }

  /** Returns a view of the input; copy it to keep it. */
  bin(bytesMax: number): Uint8Array {
    const length = this.#length("bin");
    if (length > bytesMax) throw new Unreadable(`binary longer than ${bytesMax} bytes`);
    this.#need(length);
    this.at += length;
    return this.#bytes.subarray(this.at - length, this.at);
  }

  /** Reads the head of a list and returns its number of items. */
  array(itemsMax: number): number {
    const items = this.#length("array");
    if (items > itemsMax) throw new Unreadable(`list of more than ${itemsMax} items`);
    this.#need(items);
    return items;
  }

  /** Reads the head of a map and returns its number of members. */
  map(membersMax: number): number {
    const members = this.#length("map");
    if (members > membersMax) throw new Unreadable(`map of more than ${membersMax} members`);
    this.#need(members * 2);
    return members;
  }

  /** Returns whether the next bytes equal `bytes`, and consumes them if so. */
  literal(bytes: Uint8Array): boolean {
    if (this.at + bytes.length > this.#bytes.length) return false;
    for (let i = 0; i < bytes.length; i++) {
      if (this.#bytes[this.at + i] !== bytes[i]) return false;
    }
    this.at += bytes.length;
    return true;
  }

  /** Skips one value of any type. */
  skip(): void {
    const steps = this.skipSteps();
    while (steps.next().done !== true);
  }

  /** Skips one value, in steps of some thousand values. */
  *skipSteps(): Generator<void, void> {
    const left = [1];
    for (let values = 0; left.length > 0; values++) {
      if (values > 0 && values % SKIP_STEP === 0) yield;
      if (left[left.length - 1] === 0) {
        left.pop();
        continue;
      }
      left[left.length - 1]!--;
      const items = this.#skipHead();
      if (items === 0) continue;
      if (left.length >= DEPTH_MAX) throw new Unreadable(`more than ${DEPTH_MAX} nested lists`);
      left.push(items);
    }
  }

  /** Skips a scalar, or the head of a list or map; returns the number of nested values. */
  #skipHead(): number {
    switch (this.kind()) {
      case "nil":
      case "bool":
        this.at++;
        return 0;
      case "int":
        this.int();
        return 0;
      case "float":
        this.number();
        return 0;
      case "str":
        return this.#skipBytes(this.#length("str"));
      case "bin":
        return this.#skipBytes(this.#length("bin"));
      case "array":
        return this.array(this.#bytes.length);
      case "map":
        return this.map(this.#bytes.length) * 2;
    }
  }

  #skipBytes(length: number): 0 {
    this.#need(length);
    this.at += length;
    return 0;
  }

  #length(what: keyof typeof LENGTHS): number {
    const { from, to, wide } = LENGTHS[what];
    const head = this.#peek();
    if (head >= from && head <= to) {
      this.at++;
      return head - from;
    }
    const step = head === wide[0] ? 0 : head === wide[1] ? 1 : head === wide[2] ? 2 : -1;
    if (step < 0) throw new Unreadable(`no ${what}`);
    const width = 1 << step;
    this.#need(1 + width);
    const at = this.at + 1;
    this.at += 1 + width;
    if (width === 1) return this.#view.getUint8(at);
    return width === 2 ? this.#view.getUint16(at) : this.#view.getUint32(at);
  }

  /** Decodes short ASCII without a TextDecoder; null if it is not ASCII. */
  #shortText(at: number, length: number): string | null {
    let text = "";
    for (let i = at; i < at + length; i++) {
      const byte = this.#bytes[i]!;
      if (byte >= 0x80) return null;
      text += String.fromCharCode(byte);
    }
    return text;
  }

  #take(bytes: number, value: number): number {
    this.at += bytes;
    return value;
  }

  #peek(): number {
    const head = this.#bytes[this.at];
    if (head === undefined) throw new Unreadable("truncated");
    return head;
  }

  #need(bytes: number): void {
    if (this.at + bytes > this.#bytes.length) throw new Unreadable("truncated");
  }
}

const utf8Encoder = new TextEncoder();

/**
 * Writes MessagePack with each integer in its shortest form, as Rust's and Python's encoders do and
 * strict readers of a `u64` require.
 */
export class MsgpackWriter {
  #bytes = new Uint8Array(512);
  #view = new DataView(this.#bytes.buffer);
  #length = 0;

  get length(): number {
    return this.#length;
  }

  nil(): this {
    return this.#byte(0xc0);
  }

  bool(value: boolean): this {
    return this.#byte(value ? 0xc3 : 0xc2);
  }

  /** Writes an integer from -2^63 to 2^64 - 1. */
  int(value: number | bigint): this {
    if (typeof value === "bigint") return this.#bigInt(value);
    assert(Number.isSafeInteger(value), "not a safe integer");
    if (value >= 0 && value < 0x80) return this.#byte(value);
    if (value >= 0 && value < 2 ** 32) return this.#unsigned(value);
    return this.#bigInt(BigInt(value));
  }

  f64(value: number): this {
    this.#byte(0xcb).#room(8);
    this.#view.setFloat64(this.#length, value);
    this.#length += 8;
    return this;
  }

  str(value: string): this {
    const bytes = utf8Encoder.encode(value);
    if (bytes.length < 32) this.#byte(0xa0 | bytes.length);
    else this.#head(bytes.length, 0xd9, 0xda, 0xdb);
    return this.raw(bytes);
  }

  bin(value: Uint8Array): this {
    return this.#head(value.length, 0xc4, 0xc5, 0xc6).raw(value);
  }

  array(items: number): this {
    if (items < 16) return this.#byte(0x90 | items);
    return this.#head(items, null, 0xdc, 0xdd);
  }

  map(members: number): this {
    if (members < 16) return this.#byte(0x80 | members);
    return this.#head(members, null, 0xde, 0xdf);
  }

  /** Appends bytes that are already MessagePack. */
  raw(bytes: Uint8Array): this {
    this.#room(bytes.length);
    this.#bytes.set(bytes, this.#length);
    this.#length += bytes.length;
    return this;
  }

  /** Returns a copy of the written bytes. */
  done(): Uint8Array {
    return this.#bytes.slice(0, this.#length);
  }

  #bigInt(value: bigint): this {
    assert(value >= -(1n << 63n) && value < 1n << 64n, "not a 64-bit integer");
    if (value >= 0n && value < 1n << 32n) return this.int(Number(value));
    if (value >= 0n) {
      this.#byte(0xcf).#room(8);
      this.#view.setBigUint64(this.#length, value);
      this.#length += 8;
      return this;
    }
    return this.#negative(value);
  }

  #unsigned(value: number): this {
    if (value < 0x100) return this.#byte(0xcc).#byte(value);
    const bytes = value < 0x1_0000 ? 2 : 4;
    this.#byte(bytes === 2 ? 0xcd : 0xce).#room(4);
    if (bytes === 2) this.#view.setUint16(this.#length, value);
    else this.#view.setUint32(this.#length, value);
    this.#length += bytes;
    return this;
  }

  #negative(value: bigint): this {
    if (value >= -32n) return this.#byte(Number(value) & 0xff);
    const bits = [8, 16, 32].find((width) => value >= -(1n << BigInt(width - 1))) ?? 64;
    this.#byte({ 8: 0xd0, 16: 0xd1, 32: 0xd2, 64: 0xd3 }[bits]!).#room(8);
    if (bits === 8) this.#view.setInt8(this.#length, Number(value));
    else if (bits === 16) this.#view.setInt16(this.#length, Number(value));
    else if (bits === 32) this.#view.setInt32(this.#length, Number(value));
    else this.#view.setBigInt64(this.#length, value);
    this.#length += bits / 8;
    return this;
  }

  /**
   * Writes a length after the head of its width. `short` is null for types without a one-byte form.
   */
  #head(length: number, short: number | null, middle: number, long: number): this {
    if (length < 0x100 && short !== null) return this.#byte(short).#byte(length);
    const bytes = length < 0x1_0000 ? 2 : 4;
    this.#byte(bytes === 2 ? middle : long).#room(4);
    if (bytes === 2) this.#view.setUint16(this.#length, length);
    else this.#view.setUint32(this.#length, length);
    this.#length += bytes;
    return this;
  }

  #byte(value: number): this {
    this.#room(1);
    this.#bytes[this.#length++] = value;
    return this;
  }

  #room(bytes: number): void {
    if (this.#length + bytes <= this.#bytes.length) return;
    const grown = new Uint8Array(Math.max(this.#bytes.length * 2, this.#length + bytes));
    grown.set(this.#bytes.subarray(0, this.#length));
    this.#bytes = grown;
    this.#view = new DataView(grown.buffer);
  }
}
