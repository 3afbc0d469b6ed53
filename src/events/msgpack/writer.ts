import { assert } from "../../core/index.ts";

const utf8 = new TextEncoder();

/**
 * Writes MessagePack, each integer in its shortest form: what Rust's and Python's encoders make,
 * and all that a strict reader takes for a `u64`.
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

  /** An integer from -2^63 to 2^64 - 1. */
  int(value: number | bigint): this {
    if (typeof value === "bigint") return this.#bigInt(value);
    assert(Number.isSafeInteger(value), "a whole number");
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
    const bytes = utf8.encode(value);
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

  /** Bytes that are MessagePack already. */
  raw(bytes: Uint8Array): this {
    this.#room(bytes.length);
    this.#bytes.set(bytes, this.#length);
    this.#length += bytes.length;
    return this;
  }

  /** A copy of all that was written. */
  done(): Uint8Array {
    return this.#bytes.slice(0, this.#length);
  }

  #bigInt(value: bigint): this {
    assert(value >= -(1n << 63n) && value < 1n << 64n, "an integer of 64 bits");
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

  /** A length behind the head of its width; `short` is null where there is none of one byte. */
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
