/** Bytes one after another, in an array that grows. */
export class ByteWriter {
  #bytes = new Uint8Array(1024);
  #view = new DataView(this.#bytes.buffer);
  #length = 0;

  u8(value: number): this {
    this.#room(1);
    this.#bytes[this.#length++] = value;
    return this;
  }

  u16(value: number, littleEndian: boolean): this {
    this.#room(2);
    this.#view.setUint16(this.#length, value, littleEndian);
    this.#length += 2;
    return this;
  }

  u32(value: number, littleEndian: boolean): this {
    this.#room(4);
    this.#view.setUint32(this.#length, value, littleEndian);
    this.#length += 4;
    return this;
  }

  u64(value: bigint, littleEndian: boolean): this {
    this.#room(8);
    this.#view.setBigUint64(this.#length, value, littleEndian);
    this.#length += 8;
    return this;
  }

  bytes(value: Uint8Array): this {
    this.#room(value.length);
    this.#bytes.set(value, this.#length);
    this.#length += value.length;
    return this;
  }

  /** A copy of what was written. */
  done(): Uint8Array {
    return this.#bytes.slice(0, this.#length);
  }

  #room(more: number): void {
    const needed = this.#length + more;
    if (needed <= this.#bytes.length) return;
    const grown = new Uint8Array(Math.max(needed, 2 * this.#bytes.length));
    grown.set(this.#bytes.subarray(0, this.#length));
    this.#bytes = grown;
    this.#view = new DataView(grown.buffer);
  }
}
