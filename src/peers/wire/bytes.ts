import { assert, isU64 } from "../../core/index.ts";
import { MUST_UNDERSTAND, WIRE_VERSION } from "./layout.ts";

const U32_RANGE = 2 ** 32;
const NOTHING = new Uint8Array(0);
const strictUtf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const CONTROL = /\p{Cc}/u;

/**
 * Reads fields in order, never beyond the end of the message. The first error is kept in `why`.
 * Every later field then reads as zero or empty, and the caller must discard all values read.
 */
export class WireReader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = 0;
  #end: number;
  #why: string | null = null;
  /** Protocol version of the sender, after `version` has read it. */
  #version = WIRE_VERSION;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#end = bytes.length;
  }

  /** The first error. Null if there is none. */
  get why(): string | null {
    return this.#why;
  }

  get ok(): boolean {
    return this.#why === null;
  }

  /**
   * Number of bytes not yet read in the current record, or in the message if no record is being
   * read.
   */
  get left(): number {
    return this.#end - this.#at;
  }

  /** Returns whether the sender knows the fields that protocol version `version` added. */
  since(version: number): boolean {
    return this.#version >= version;
  }

  /** True if the sender's protocol version is newer than this host's. */
  get newer(): boolean {
    return this.#version > WIRE_VERSION;
  }

  fail(why: string): void {
    this.#why ??= why;
    this.#at = this.#end;
  }

  u8(what: string): number {
    return this.#take(1, what) ? this.#view.getUint8(this.#at - 1) : 0;
  }

  u16(what: string): number {
    return this.#take(2, what) ? this.#view.getUint16(this.#at - 2, true) : 0;
  }

  u32(what: string): number {
    return this.#take(4, what) ? this.#view.getUint32(this.#at - 4, true) : 0;
  }

  u64(what: string): bigint {
    return this.#take(8, what) ? this.#view.getBigUint64(this.#at - 8, true) : 0n;
  }

  /**
   * Reads a 64-bit length of at most `max`. Lengths that a number cannot represent exactly count as
   * too large.
   */
  size(max: number, what: string): number {
    if (!this.#take(8, what)) return 0;
    const high = this.#view.getUint32(this.#at - 4, true);
    const value = high * U32_RANGE + this.#view.getUint32(this.#at - 8, true);
    if (value <= max) return value;
    this.fail(`${what}: more than ${max}`);
    return 0;
  }

  /** Reads the next `length` bytes and returns a copy. */
  bytes(length: number, what: string): Uint8Array {
    if (!this.#take(length, what)) return NOTHING;
    return this.#bytes.slice(this.#at - length, this.#at);
  }

  /** Returns all remaining bytes as a view, not a copy. */
  rest(): Uint8Array {
    const from = this.#at;
    this.#at = this.#end;
    return this.#bytes.subarray(from, this.#end);
  }

  /** Reads `length` bytes of UTF-8 without control characters. */
  utf8(length: number, what: string): string {
    if (!this.#take(length, what)) return "";
    try {
      const text = strictUtf8.decode(this.#bytes.subarray(this.#at - length, this.#at));
      if (!CONTROL.test(text)) return text;
    } catch (thrown) {
      if (!(thrown instanceof TypeError)) throw thrown;
    }
    this.fail(`${what}: not text`);
    return "";
  }

  /** Reads text: its length in one byte, then UTF-8. */
  text(what: string): string {
    return this.utf8(this.u8(what), what);
  }

  /**
   * Reads a 32-bit count of at most `max` elements. The remaining bytes must be sufficient for
   * elements of `bytesMin` bytes.
   */
  count(max: number, bytesMin: number, what: string): number {
    const count = this.u32(what);
    if (count > max) this.fail(`${what}: more than ${max}`);
    else if (count * bytesMin > this.left) this.fail(`${what}: more than the message holds`);
    return this.ok ? count : 0;
  }

  /**
   * Reads the sender's protocol version (16 bits). It must be this host's, the previous or the next
   * version.
   */
  version(what: string): void {
    const version = this.u16(what);
    if (Math.abs(version - WIRE_VERSION) > 1) this.fail(`${what}: unsupported`);
    this.#version = version;
  }

  /**
   * Reads the version again, in a part of the message that can also be decoded alone, and checks
   * that it is the same.
   */
  sameVersion(what: string): void {
    if (this.u16(what) !== this.#version) this.fail(`${what}: differs from the message's version`);
  }

  /**
   * Reads a word of 32 flags. Unknown flags are ignored if they are in the lower half and the
   * sender is newer; otherwise they are an error.
   */
  flags(known: number, what: string): number {
    const flags = this.u32(what);
    const refused = this.newer ? MUST_UNDERSTAND : 0xffff_ffff;
    if ((flags & ~known & refused) !== 0) this.fail(`${what}: unknown flag`);
    return (flags & known) >>> 0;
  }

  /**
   * Reads a record: a 16- or 32-bit length, then fields, using `read`. Skips fields that a newer
   * sender has added.
   */
  record<T>(lengthBits: 16 | 32, what: string, read: () => T): T {
    const length = lengthBits === 16 ? this.u16(what) : this.u32(what);
    if (length > this.left) this.fail(`${what}: longer than the message`);
    const end = this.#end;
    if (this.ok) this.#end = this.#at + length;
    const value = read();
    this.finish(what);
    this.#end = end;
    if (!this.ok) this.#at = end;
    return value;
  }

  /** Checks that the record or message ends here. Skips additional fields of a newer sender. */
  finish(what: string): void {
    if (this.newer) this.#at = this.#end;
    else if (this.#at < this.#end) this.fail(`${what}: unexpected trailing bytes`);
  }

  /**
   * Checks that the message ends here. New protocol versions add fields only within records, so
   * this applies to every version.
   */
  end(what: string): void {
    if (this.#at < this.#end) this.fail(`${what}: unexpected trailing bytes`);
  }

  #take(length: number, what: string): boolean {
    if (this.#why !== null) return false;
    if (length <= this.#end - this.#at) {
      this.#at += length;
      return true;
    }
    this.fail(`${what}: cut off`);
    return false;
  }
}

const utf8 = new TextEncoder();

/** Encodes text as UTF-8. */
export function utf8Bytes(text: string): Uint8Array {
  return utf8.encode(text);
}

/** Writes fields in order into a growing array. Throws if a value does not fit its field. */
export class WireWriter {
  #bytes: Uint8Array<ArrayBuffer>;
  #view: DataView;
  #length = 0;

  constructor(bytes = 256) {
    this.#bytes = new Uint8Array(bytes);
    this.#view = new DataView(this.#bytes.buffer);
  }

  u8(value: number): this {
    assert(value >>> 0 === value && value < 0x100, "the value fits in 8 bits");
    const at = this.#take(1);
    this.#view.setUint8(at, value);
    return this;
  }

  u16(value: number): this {
    assert(value >>> 0 === value && value < 0x1_0000, "the value fits in 16 bits");
    const at = this.#take(2);
    this.#view.setUint16(at, value, true);
    return this;
  }

  u32(value: number): this {
    assert(value >>> 0 === value, "the value fits in 32 bits");
    const at = this.#take(4);
    this.#view.setUint32(at, value, true);
    return this;
  }

  u64(value: bigint): this {
    assert(isU64(value), "the value fits in 64 bits");
    const at = this.#take(8);
    this.#view.setBigUint64(at, value, true);
    return this;
  }

  /** Writes a 64-bit length. */
  size(value: number): this {
    assert(Number.isSafeInteger(value) && value >= 0, "a length is a safe integer");
    return this.u32(value % U32_RANGE).u32(Math.floor(value / U32_RANGE));
  }

  raw(value: Uint8Array): this {
    const at = this.#take(value.length);
    this.#bytes.set(value, at);
    return this;
  }

  /** Writes `value`, which must have exactly `bytes` bytes. */
  fixed(value: Uint8Array, bytes: number): this {
    assert(value.length === bytes, `the field has ${bytes} bytes`);
    return this.raw(value);
  }

  /** Writes text: its length in one byte, then UTF-8. */
  text(value: string): this {
    const bytes = utf8.encode(value);
    return this.u8(bytes.length).raw(bytes);
  }

  /**
   * Writes a record: a 16- or 32-bit length, then fields, using `write`. Later protocol versions
   * can add fields to a record.
   */
  record(lengthBits: 16 | 32, write: () => void): this {
    const at = this.#take(lengthBits / 8);
    const start = this.#length;
    write();
    const length = this.#length - start;
    if (lengthBits === 32) this.#view.setUint32(at, length, true);
    else {
      assert(length < 0x1_0000, "a record's length fits in 16 bits");
      this.#view.setUint16(at, length, true);
    }
    return this;
  }

  /** Returns the written bytes. The writer must not be used afterwards. */
  done(): Uint8Array<ArrayBuffer> {
    return this.#bytes.subarray(0, this.#length);
  }

  #take(more: number): number {
    const at = this.#length;
    this.#length += more;
    if (this.#length > this.#bytes.length) {
      const grown = new Uint8Array(2 * this.#length);
      grown.set(this.#bytes.subarray(0, at));
      this.#bytes = grown;
      this.#view = new DataView(grown.buffer);
    }
    return at;
  }
}
