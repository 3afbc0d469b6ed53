import type { Stretches } from "./stretches.ts";

/** Blocks chosen at a time: this share of the residents, or a few. */
const SHARE = 1 / 32;
const BLOCKS_MIN = 32;
/** Steps past blocks that are chosen already, for each of them, until it is time to choose anew. */
const STEPS_EACH = 64;
const STEPS_MIN = 65_536;
const ORDER_BITS = 26;
const ORDER = 2 ** ORDER_BITS;

/**
 * The stretches that go next, the first of all at the end. They are chosen from time to time, those
 * of the lowest keys; a stretch that gets a leaf in between takes its place if its key is as low.
 */
export class VictimQueue {
  readonly #stretches: Stretches;
  readonly #keyOf: (stretch: number) => number;
  readonly #queue: number[] = [];
  #highestKey = -1;
  #steps = 0;
  #sorted = new Float64Array(64);

  /** Keys are whole numbers from 0 below 2^27, low ones go first. */
  constructor(stretches: Stretches, keyOf: (stretch: number) => number) {
    this.#stretches = stretches;
    this.#keyOf = keyOf;
  }

  get bytes(): number {
    return this.#sorted.byteLength;
  }

  /** The leaf to go next, or 0 where the queue is empty. */
  first(): number {
    const { leaf } = this.#stretches;
    while (this.#queue.length > 0) {
      const stretch = this.#queue.at(-1)!;
      if (leaf[stretch] !== 0) return leaf[stretch]!;
      this.#queue.pop();
      this.#stretches.setQueued(stretch, false);
    }
    return 0;
  }

  /** The stretch has a leaf. */
  offer(stretch: number): void {
    if (this.#stretches.isQueued(stretch)) return;
    const key = this.#keyOf(stretch);
    if (key > this.#highestKey) return;
    this.#stretches.setQueued(stretch, true);
    let at = this.#queue.length;
    this.#queue.push(stretch);
    for (; at > 0 && this.#keyOf(this.#queue[at - 1]!) < key; at--) {
      this.#queue[at] = this.#queue[at - 1]!;
      this.#steps--;
    }
    this.#queue[at] = stretch;
    // Many leave that were not to go next: who wants a victim chooses anew.
    if (this.#steps < 0) this.clear();
  }

  /** Nothing is chosen, until `choose`. */
  clear(): void {
    for (const stretch of this.#queue) this.#stretches.setQueued(stretch, false);
    this.#queue.length = 0;
    this.#highestKey = -1;
  }

  /** Chooses anew; answers how many blocks may go until it is time again. */
  choose(resident: number): number {
    const stretches = this.#stretches;
    this.clear();
    const sorted = this.#sort();
    const wanted = Math.max(BLOCKS_MIN, resident * SHARE);
    let blocks = 0;
    for (let at = 0; at < sorted.length && blocks < wanted; at++) {
      const stretch = sorted[at]! % ORDER;
      this.#highestKey = Math.floor(sorted[at]! / ORDER);
      blocks += stretches.blocks[stretch]!;
      stretches.setQueued(stretch, true);
      this.#queue.push(stretch);
    }
    this.#queue.reverse();
    this.#steps = STEPS_MIN + STEPS_EACH * this.#queue.length;
    return Math.floor(wanted / 2);
  }

  /** Key and number in one, so that the sort needs no function to compare. */
  #sort(): Float64Array {
    const { leaf, end } = this.#stretches;
    if (this.#sorted.length < end) this.#sorted = new Float64Array(2 * end);
    let count = 0;
    for (let stretch = 1; stretch < end; stretch++) {
      if (leaf[stretch] === 0) continue;
      this.#sorted[count++] = this.#keyOf(stretch) * ORDER + stretch;
    }
    return this.#sorted.subarray(0, count).sort();
  }
}
