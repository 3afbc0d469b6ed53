/** Bytes read as decisions. Past the end every decision is 0. */
export class Script {
  readonly #bytes: Uint8Array;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  get over(): boolean {
    return this.#at >= this.#bytes.length;
  }

  u8(): number {
    return this.#bytes[this.#at++] ?? 0;
  }

  u32(): number {
    return (this.u8() | (this.u8() << 8) | (this.u8() << 16) | (this.u8() << 24)) >>> 0;
  }

  /** A whole number in [0, below), `below` at most 256. */
  below(below: number): number {
    return this.u8() % below;
  }

  oneOf<T>(list: readonly T[]): T {
    return list[this.below(list.length)]!;
  }
}
