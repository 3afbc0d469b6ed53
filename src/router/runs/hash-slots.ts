/**
 * Values by 64-bit hash: open addressing with linear probing over two columns of 32 bits, so that
 * no hash ever becomes an object. `seed` keeps whoever sends hashes from aiming at one slot.
 */
export class HashSlots<T> {
  readonly #seed: number;
  #low: Uint32Array;
  #high: Uint32Array;
  #values: (T | undefined)[];
  #mask: number;
  #size = 0;

  constructor(seed: number) {
    this.#seed = seed >>> 0;
    this.#mask = 1_023;
    this.#low = new Uint32Array(this.#mask + 1);
    this.#high = new Uint32Array(this.#mask + 1);
    this.#values = new Array(this.#mask + 1);
  }

  get size(): number {
    return this.#size;
  }

  get(low: number, high: number): T | undefined {
    const mask = this.#mask;
    for (let at = this.#home(low, high); ; at = (at + 1) & mask) {
      const value = this.#values[at];
      if (value === undefined) return undefined;
      if (this.#low[at] === low && this.#high[at] === high) return value;
    }
  }

  /** Of a hash that has no value yet. */
  add(low: number, high: number, value: T): void {
    if ((this.#size + 1) * 2 > this.#mask) this.#grow();
    this.#place(low, high, value);
    this.#size++;
  }

  delete(low: number, high: number): void {
    const mask = this.#mask;
    let hole = this.#home(low, high);
    while (this.#low[hole] !== low || this.#high[hole] !== high) {
      if (this.#values[hole] === undefined) return;
      hole = (hole + 1) & mask;
    }
    if (this.#values[hole] === undefined) return;
    this.#size--;
    // What was pushed past the hole moves back, so that no probe ends too early.
    for (let at = (hole + 1) & mask; this.#values[at] !== undefined; at = (at + 1) & mask) {
      const home = this.#home(this.#low[at]!, this.#high[at]!);
      if (((at - home) & mask) < ((at - hole) & mask)) continue;
      this.#low[hole] = this.#low[at]!;
      this.#high[hole] = this.#high[at]!;
      this.#values[hole] = this.#values[at];
      hole = at;
    }
    this.#values[hole] = undefined;
  }

  #place(low: number, high: number, value: T): void {
    let at = this.#home(low, high);
    while (this.#values[at] !== undefined) at = (at + 1) & this.#mask;
    this.#low[at] = low;
    this.#high[at] = high;
    this.#values[at] = value;
  }

  #grow(): void {
    const [low, high, values] = [this.#low, this.#high, this.#values];
    const slots = (this.#mask + 1) * 2;
    this.#mask = slots - 1;
    this.#low = new Uint32Array(slots);
    this.#high = new Uint32Array(slots);
    this.#values = new Array(slots);
    for (let at = 0; at < values.length; at++) {
      const value = values[at];
      if (value !== undefined) this.#place(low[at]!, high[at]!, value);
    }
  }

  /** Two rounds of multiplication and shift (constants of MurmurHash3's 32-bit finaliser). */
  #home(low: number, high: number): number {
    let mixed = Math.imul(low ^ this.#seed, 0x85ebca6b);
    mixed = Math.imul(mixed ^ (mixed >>> 15) ^ high, 0xc2b2ae35);
    return (mixed ^ (mixed >>> 13)) & this.#mask;
  }
}
