import type { BlockName } from "../kvb/index.ts";

const WORDS = 5;
const FIRST_CAPACITY = 1024;
const FREE = 0;
const PAGE = 4096;

/**
 * The block files that were found, by name: some forty bytes each, so that millions of them can be
 * compared with the index. A name is key prefix, layer and variant.
 */
export class FileCatalogue {
  /** Low and high word of the prefix, layer, variant, and the pages of the file. */
  #words = new Uint32Array(FIRST_CAPACITY * WORDS);
  /** Open addressing: one more than the number of an entry, or `FREE`. */
  #places = new Uint32Array(FIRST_CAPACITY * 2);
  #taken = new Uint8Array(FIRST_CAPACITY);
  #count = 0;

  add(name: BlockName, fileBytes: number): void {
    if (this.#count === this.#taken.length) this.#grow();
    const low = Number.parseInt(name.keyPrefix.slice(8), 16);
    const high = Number.parseInt(name.keyPrefix.slice(0, 8), 16);
    const entry = this.#count++;
    // No block file has a length that is not whole pages: 0 is never right.
    const pages = fileBytes % PAGE === 0 ? fileBytes / PAGE : 0;
    const words = this.#words;
    const at = entry * WORDS;
    words[at] = low;
    words[at + 1] = high;
    words[at + 2] = name.layer;
    words[at + 3] = name.variant;
    words[at + 4] = pages;
    this.#place(entry);
  }

  /**
   * Takes the file of this name, given by the first and second four bytes of its key (big-endian),
   * layer and variant: its length, or null where there is none (or it was taken before).
   */
  take(high: number, low: number, layer: number, variant: number): number | null {
    const mask = this.#places.length - 1;
    for (let at = mix(low, layer, variant) & mask; ; at = (at + 1) & mask) {
      const place = this.#places[at]!;
      if (place === FREE) return null;
      const entry = place - 1;
      if (!this.#is(entry, low, high, layer, variant)) continue;
      if (this.#taken[entry] === 1) return null;
      this.#taken[entry] = 1;
      return this.#words[entry * WORDS + 4]! * PAGE;
    }
  }

  #is(entry: number, low: number, high: number, layer: number, variant: number): boolean {
    const at = entry * WORDS;
    const words = this.#words;
    const samePrefix = words[at] === low && words[at + 1] === high;
    return samePrefix && words[at + 2] === layer && words[at + 3] === variant;
  }

  /** The files nobody took. */
  *left(): Generator<{ readonly name: BlockName; readonly fileBytes: number }> {
    for (let entry = 0; entry < this.#count; entry++) {
      if (this.#taken[entry] === 1) continue;
      const at = entry * WORDS;
      const low = this.#words[at]!.toString(16).padStart(8, "0");
      const keyPrefix = this.#words[at + 1]!.toString(16).padStart(8, "0") + low;
      const name = { keyPrefix, layer: this.#words[at + 2]!, variant: this.#words[at + 3]! };
      yield { name, fileBytes: this.#words[at + 4]! * PAGE };
    }
  }

  #place(entry: number): void {
    const at = entry * WORDS;
    const words = this.#words;
    const mask = this.#places.length - 1;
    let place = mix(words[at]!, words[at + 2]!, words[at + 3]!) & mask;
    while (this.#places[place] !== FREE) place = (place + 1) & mask;
    this.#places[place] = entry + 1;
  }

  #grow(): void {
    const capacity = this.#taken.length * 2;
    const words = new Uint32Array(capacity * WORDS);
    words.set(this.#words);
    const taken = new Uint8Array(capacity);
    taken.set(this.#taken);
    this.#words = words;
    this.#taken = taken;
    this.#places = new Uint32Array(capacity * 2);
    for (let entry = 0; entry < this.#count; entry++) this.#place(entry);
  }
}

/** Prefixes are parts of hashes: their low word is spread well already. */
function mix(low: number, layer: number, variant: number): number {
  return (low ^ Math.imul(layer + 1, 0x9e37_79b1) ^ Math.imul(variant, 0x85eb_ca6b)) >>> 0;
}
