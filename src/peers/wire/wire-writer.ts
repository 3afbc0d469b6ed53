import { assert, isU64 } from "../../core/index.ts";

const U32_RANGE = 2 ** 32;
const utf8 = new TextEncoder();

/** Bytes of a text. */
export function utf8Bytes(text: string): Uint8Array {
  return utf8.encode(text);
}

/** Writes fields one after another into an array that grows. What does not fit its field throws. */
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

  /** A length in 64 bits. */
  size(value: number): this {
    assert(Number.isSafeInteger(value) && value >= 0, "a length is a safe integer");
    return this.u32(value % U32_RANGE).u32(Math.floor(value / U32_RANGE));
  }

  raw(value: Uint8Array): this {
    const at = this.#take(value.length);
    this.#bytes.set(value, at);
    return this;
  }

  /** Exactly `bytes` bytes. */
  fixed(value: Uint8Array, bytes: number): this {
    assert(value.length === bytes, `the field has ${bytes} bytes`);
    return this.raw(value);
  }

  /** A length in 8 bits, then the text. */
  text(value: string): this {
    const bytes = utf8.encode(value);
    return this.u8(bytes.length).raw(bytes);
  }

  /** A length in 16 or 32 bits, then what `write` writes: fields to which later versions add. */
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

  /** What was written. The writer is not used afterwards. */
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
