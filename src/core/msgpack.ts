import { isUtf8 } from "node:buffer";
import { assert } from "./errors.ts";

/** Limits on one message. They are checked before any memory is allocated for its values. */
export interface MsgpackLimits {
  readonly bytesMax: number;
  /** Maximum nesting of lists and maps. */
  readonly depthMax: number;
  /** Maximum items of one list, and maximum members of one map. */
  readonly itemsMax: number;
  /** Maximum values in the whole message. Parsing time grows with their number. */
  readonly valuesMax: number;
}

/**
 * Limits by kind of message. A command is parsed in one turn of the event loop; with 1,024 blocks
 * this takes about a millisecond. A receipt lists as many blocks as a command names, or the blocks
 * that stayed, each with its holders. Events are read in steps, so their limits only bound memory.
 * The limits of commands and receipts also apply to JSON bodies.
 */
export const MSGPACK_LIMITS = {
  event: { bytesMax: 16 * 2 ** 20, depthMax: 31, itemsMax: 2 ** 22, valuesMax: 2 ** 24 },
  command: { bytesMax: 96 * 1024, depthMax: 16, itemsMax: 1_024, valuesMax: 2_048 },
  receipt: { bytesMax: 64 * 2 ** 20, depthMax: 16, itemsMax: 65_536, valuesMax: 2 ** 24 },
} as const satisfies Record<string, MsgpackLimits>;

/** Thrown if the input does not have the expected format or exceeds a limit. */
export class Unreadable extends Error {
  readonly code: "malformed" | "too_large" | "too_deep";

  constructor(message: string, code: Unreadable["code"] = "malformed") {
    super(message);
    this.code = code;
  }
}

const utf8Decoder = new TextDecoder("utf-8", { ignoreBOM: true });

const SKIP_STEP = 4_096;
const SHORT_TEXT = 24;
const U32_MAX = 0xffff_ffff;

export type MsgpackKind = "nil" | "bool" | "int" | "float" | "str" | "bin" | "array" | "map";

/**
 * Meaning of the first byte of a value. `fixed` is the length if no length bytes follow; for
 * numbers, the size of the value in bytes.
 */
interface Head {
  /** Kind of value. Null: an extension type, or a byte that MessagePack does not assign. */
  readonly kind: MsgpackKind | null;
  readonly lengthBytes: number;
  readonly fixed: number;
}

const HEADS: readonly Head[] = Array.from({ length: 256 }, (_, byte) => headOf(byte));

function headOf(byte: number): Head {
  const head = (kind: Head["kind"], lengthBytes: number, fixed = 0) => {
    return { kind, lengthBytes, fixed };
  };
  if (byte < 0x80 || byte >= 0xe0) return head("int", 0);
  if (byte < 0x90) return head("map", 0, byte - 0x80);
  if (byte < 0xa0) return head("array", 0, byte - 0x90);
  if (byte < 0xc0) return head("str", 0, byte - 0xa0);
  if (byte === 0xc0) return head("nil", 0);
  if (byte === 0xc2 || byte === 0xc3) return head("bool", 0);
  if (byte >= 0xc4 && byte <= 0xc6) return head("bin", 1 << (byte - 0xc4));
  if (byte === 0xca || byte === 0xcb) return head("float", 0, byte === 0xca ? 4 : 8);
  if (byte >= 0xcc && byte <= 0xd3) return head("int", 0, 1 << ((byte - 0xcc) & 3));
  if (byte >= 0xd9 && byte <= 0xdb) return head("str", 1 << (byte - 0xd9));
  if (byte === 0xdc || byte === 0xdd) return head("array", byte === 0xdc ? 2 : 4);
  if (byte === 0xde || byte === 0xdf) return head("map", byte === 0xde ? 2 : 4);
  return head(null, 0);
}

/**
 * Reads untrusted MessagePack value by value. Checks each length against the remaining bytes before
 * it allocates memory. Integers are exact. Throws only `Unreadable`; `at` is then the offset of the
 * invalid value, or of the byte behind it.
 */
export class MsgpackReader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  readonly #limits: MsgpackLimits;
  at = 0;

  /**
   * `limits` apply to skipped values. The methods that read single values have limits of their own.
   */
  constructor(bytes: Uint8Array, limits: MsgpackLimits = MSGPACK_LIMITS.event) {
    this.#limits = limits;
    // A Uint8Array is needed: `slice` of a Buffer would not copy the bytes that `bin` returns.
    this.#bytes = new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  }

  get isAtEnd(): boolean {
    return this.at === this.#bytes.length;
  }

  kind(): MsgpackKind {
    const { kind } = HEADS[this.#peek()];
    if (kind === null) throw new Unreadable("extension types are not accepted");
    return kind;
  }

  /** Returns true if the next value is nil, and consumes it in that case. */
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

  /** Reads an integer from 0 to `max`. `max` is at most the largest safe integer. */
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

  /** Reads non-negative 32-bit integers until `into` is full. Used for long lists of tokens. */
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
      for (let k = 1; k <= width; k++) value = value * 256 + bytes[at + k];
      into[i] = value;
      at += 1 + width;
    }
    this.at = at;
  }

  /** Reads a 64-bit integer. A signed one is reinterpreted bit for bit as unsigned. */
  u64(): bigint {
    if (this.#peek() === 0xcf) {
      this.#need(9);
      this.at += 9;
      return this.#view.getBigUint64(this.at - 8);
    }
    return BigInt.asUintN(64, this.int());
  }

  /** Reads an integer of any size and sign. */
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

  /** Reads a float, or an integer as a number. */
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

  /** Reads bytes. Returns a view of the input; the caller must copy it to keep it. */
  bin(bytesMax: number): Uint8Array {
    const length = this.#length("bin");
    if (length > bytesMax) throw new Unreadable(`binary longer than ${bytesMax} bytes`);
    this.#need(length);
    this.at += length;
    return this.#bytes.subarray(this.at - length, this.at);
  }

  /** Reads the head of a list and returns the number of items that follow. */
  array(itemsMax: number): number {
    const items = this.#length("array");
    this.#need(items);
    if (items > itemsMax) {
      throw new Unreadable(`a list of more than ${itemsMax} items`, "too_large");
    }
    return items;
  }

  /** Reads the head of a map and returns the number of members that follow. */
  map(membersMax: number): number {
    const members = this.#length("map");
    this.#need(members * 2);
    if (members > membersMax) {
      throw new Unreadable(`a map of more than ${membersMax} members`, "too_large");
    }
    return members;
  }

  /** Returns true if the next bytes equal `bytes`, and consumes them in that case. */
  literal(bytes: Uint8Array): boolean {
    if (this.at + bytes.length > this.#bytes.length) return false;
    for (let i = 0; i < bytes.length; i++) {
      if (this.#bytes[this.at + i] !== bytes[i]) return false;
    }
    this.at += bytes.length;
    return true;
  }

  /** Skips one value of any type and checks its format. */
  skip(): void {
    const steps = this.skipSteps();
    while (steps.next().done !== true);
  }

  /**
   * Skips one value of any type and checks its format and limits, in steps of some thousand values.
   */
  *skipSteps(): Generator<void, void> {
    const { depthMax, valuesMax } = this.#limits;
    const left = [1];
    for (let values = 0; left.length > 0; ) {
      if (left[left.length - 1] === 0) {
        left.pop();
        continue;
      }
      left[left.length - 1]--;
      if (++values > valuesMax) throw new Unreadable(`more than ${valuesMax} values`, "too_large");
      if (values % SKIP_STEP === 0) yield;
      const items = this.#skipHead();
      if (items === null) continue;
      // One entry of `left` counts the skipped value itself, not a nesting level.
      if (left.length > depthMax) {
        throw new Unreadable(`more than ${depthMax} nested lists or maps`, "too_deep");
      }
      left.push(items);
    }
  }

  /**
   * Skips a value without nested values and returns null, or skips the head of a list or map and
   * returns the number of its nested values.
   */
  #skipHead(): number | null {
    const kind = this.kind();
    switch (kind) {
      case "array":
        return this.array(this.#limits.itemsMax);
      case "map":
        return this.map(this.#limits.itemsMax) * 2;
      case "str":
      case "bin": {
        const length = this.#length(kind);
        this.#need(length);
        this.at += length;
        if (kind === "bin" || isUtf8(this.#bytes.subarray(this.at - length, this.at))) return null;
        throw new Unreadable("invalid UTF-8");
      }
      default: {
        const { fixed } = HEADS[this.#peek()];
        this.#need(1 + fixed);
        this.at += 1 + fixed;
        return null;
      }
    }
  }

  #length(what: MsgpackKind): number {
    const { kind, lengthBytes, fixed } = HEADS[this.#peek()];
    if (kind !== what) throw new Unreadable(`no ${what}`);
    this.#need(1 + lengthBytes);
    const at = this.at + 1;
    this.at += 1 + lengthBytes;
    if (lengthBytes === 0) return fixed;
    if (lengthBytes === 1) return this.#view.getUint8(at);
    return lengthBytes === 2 ? this.#view.getUint16(at) : this.#view.getUint32(at);
  }

  /** Decodes short ASCII text without a TextDecoder. Returns null if it is not ASCII. */
  #shortText(at: number, length: number): string | null {
    let text = "";
    for (let i = at; i < at + length; i++) {
      const byte = this.#bytes[i];
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
 * as strict readers of a `u64` require.
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

  /** Appends bytes that are already encoded as MessagePack. */
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
   * Writes a head byte and a length of matching width. `short` is null for types without a one-byte
   * form.
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
