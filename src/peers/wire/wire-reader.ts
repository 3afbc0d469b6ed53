import { MUST_UNDERSTAND, WIRE_VERSION } from "./layout.ts";

const U32_RANGE = 2 ** 32;
const NOTHING = new Uint8Array(0);
const strictUtf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const CONTROL = /\p{Cc}/u;

/**
 * Reads fields one after another and never beyond the end. The first thing that is wrong is kept in
 * `why`; from then on every field reads as zero or nothing, and the result is thrown away.
 */
export class WireReader {
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  #at = 0;
  #end: number;
  #why: string | null = null;
  /** Of the sender, once `version` was read. */
  #version = WIRE_VERSION;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
    this.#view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.#end = bytes.length;
  }

  /** What is wrong, in words; null: nothing so far. */
  get why(): string | null {
    return this.#why;
  }

  get ok(): boolean {
    return this.#why === null;
  }

  /** Bytes left of the record, or of the message where no record is open. */
  get left(): number {
    return this.#end - this.#at;
  }

  /** Whether the sender knows fields that were new in this version. */
  since(version: number): boolean {
    return this.#version >= version;
  }

  /** Whether the sender may have written what we do not know. */
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

  /** A length in 64 bits, `max` at most. What a double would round is above any safe integer. */
  size(max: number, what: string): number {
    if (!this.#take(8, what)) return 0;
    const high = this.#view.getUint32(this.#at - 4, true);
    const value = high * U32_RANGE + this.#view.getUint32(this.#at - 8, true);
    if (value <= max) return value;
    this.fail(`${what}: more than ${max}`);
    return 0;
  }

  /** A copy of the next `length` bytes. */
  bytes(length: number, what: string): Uint8Array {
    if (!this.#take(length, what)) return NOTHING;
    return this.#bytes.slice(this.#at - length, this.#at);
  }

  /** Text of the next `length` bytes: UTF-8 without control characters. */
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

  /** A length in 8 bits, then text. */
  text(what: string): string {
    return this.utf8(this.u8(what), what);
  }

  /** A count in 32 bits, `max` at most, of things of at least `bytesMin` bytes that follow. */
  count(max: number, bytesMin: number, what: string): number {
    const count = this.u32(what);
    if (count > max) this.fail(`${what}: more than ${max}`);
    else if (count * bytesMin > this.left) this.fail(`${what}: more than the message holds`);
    return this.ok ? count : 0;
  }

  /** Version of the sender in 16 bits: ours, the one before or the one after. */
  version(what: string): void {
    const version = this.u16(what);
    if (Math.abs(version - WIRE_VERSION) > 1) this.fail(`${what}: not spoken here`);
    this.#version = version;
  }

  /** The version once more, where a part of the message can be understood by itself. */
  sameVersion(what: string): void {
    if (this.u16(what) !== this.#version) this.fail(`${what}: another than the message's`);
  }

  /** 32 flags. One that is not known is passed over only in the lower half, of a newer sender. */
  flags(known: number, what: string): number {
    const flags = this.u32(what);
    const refused = this.newer ? MUST_UNDERSTAND : 0xffff_ffff;
    if ((flags & ~known & refused) !== 0) this.fail(`${what}: a flag that is not known here`);
    return (flags & known) >>> 0;
  }

  /**
   * A length in 16 or 32 bits, then what `read` reads. Of a newer sender there may be more behind
   * it, which is passed over.
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

  /** Nothing is left of the record or message, but for what a newer sender may have added. */
  finish(what: string): void {
    if (this.newer) this.#at = this.#end;
    else if (this.#at < this.#end) this.fail(`${what}: something is left behind it`);
  }

  /** Nothing is left of the message, whoever sent it: what is new comes in records. */
  end(what: string): void {
    if (this.#at < this.#end) this.fail(`${what}: something is left behind it`);
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
