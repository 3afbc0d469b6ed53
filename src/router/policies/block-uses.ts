import type { PromptChain } from "./prompt-chain.ts";

const SLOTS_AT_FIRST = 2 ** 12;
/** Slots used at most, of all. */
const FILL = 0.5;

/**
 * How many chains have each block: 12 bytes a slot, linear probing. Blocks go by 64 bits of their
 * digests, which are evenly spread.
 */
export class BlockUses {
  #lo = new Uint32Array(SLOTS_AT_FIRST);
  #hi = new Uint32Array(SLOTS_AT_FIRST);
  #count = new Uint32Array(SLOTS_AT_FIRST);
  #used = 0;

  /** Different blocks. */
  get size(): number {
    return this.#used;
  }

  add(chain: PromptChain, from: number, to: number): void {
    for (let block = from; block < to; block++) {
      if (this.#used >= this.#count.length * FILL) this.#grow();
      const [lo, hi] = [chain.lo(block), chain.hi(block)];
      const slot = this.#find(lo, hi);
      if (this.#count[slot]! === 0) {
        this.#lo[slot] = lo;
        this.#hi[slot] = hi;
        this.#used++;
      }
      this.#count[slot]!++;
    }
  }

  /** Of blocks that were added. */
  remove(chain: PromptChain, from: number, to: number): void {
    for (let block = from; block < to; block++) {
      const slot = this.#find(chain.lo(block), chain.hi(block));
      if (this.#count[slot]! === 0) continue;
      if (--this.#count[slot]! === 0) this.#vacate(slot);
    }
  }

  of(chain: PromptChain, block: number): number {
    return this.#count[this.#find(chain.lo(block), chain.hi(block))]!;
  }

  /** The first block that nobody has; `chain.blocks` where there is none such. */
  firstFree(chain: PromptChain): number {
    let [from, to] = [0, chain.blocks];
    while (from < to) {
      const middle = (from + to) >>> 1;
      if (this.of(chain, middle) > 0) from = middle + 1;
      else to = middle;
    }
    return from;
  }

  /** Its slot, or the free one where it would go. */
  #find(lo: number, hi: number): number {
    const mask = this.#count.length - 1;
    let slot = lo & mask;
    while (this.#count[slot]! > 0 && (this.#lo[slot]! !== lo || this.#hi[slot]! !== hi)) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  /** Moves what probed past the slot up, so that no search ends too early. */
  #vacate(slot: number): void {
    const mask = this.#count.length - 1;
    this.#used--;
    let hole = slot;
    for (let at = (hole + 1) & mask; this.#count[at]! > 0; at = (at + 1) & mask) {
      const home = this.#lo[at]! & mask;
      if (((at - home) & mask) < ((at - hole) & mask)) continue;
      this.#lo[hole] = this.#lo[at]!;
      this.#hi[hole] = this.#hi[at]!;
      this.#count[hole] = this.#count[at]!;
      this.#count[at] = 0;
      hole = at;
    }
  }

  #grow(): void {
    const [lo, hi, count] = [this.#lo, this.#hi, this.#count];
    this.#lo = new Uint32Array(lo.length * 2);
    this.#hi = new Uint32Array(lo.length * 2);
    this.#count = new Uint32Array(lo.length * 2);
    for (let at = 0; at < count.length; at++) {
      if (count[at] === 0) continue;
      const slot = this.#find(lo[at]!, hi[at]!);
      this.#lo[slot] = lo[at]!;
      this.#hi[slot] = hi[at]!;
      this.#count[slot] = count[at]!;
    }
  }
}
