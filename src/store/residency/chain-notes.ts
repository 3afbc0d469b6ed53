import type { ResidencyChange, ResidencyTier } from "../../observability/activity/index.ts";

/** Hashes in one change at most. */
export const CHANGE_HASHES_MAX = 4_096;

/** Blocks that came to a tier, put together to chains where one follows the other. */
export class StoredNotes {
  readonly #hashes: Uint32Array;
  readonly #parents: Uint32Array;
  #count = 0;

  constructor(capacity: number) {
    this.#hashes = new Uint32Array(capacity * 2);
    this.#parents = new Uint32Array(capacity * 2);
  }

  get count(): number {
    return this.#count;
  }

  /** `words`: the hash, then its parent's; two zeros where it has none. */
  add(words: Uint32Array): void {
    const at = this.#count++ * 2;
    this.#hashes[at] = words[0]!;
    this.#hashes[at + 1] = words[1]!;
    this.#parents[at] = words[2]!;
    this.#parents[at + 1] = words[3]!;
  }

  drop(): void {
    this.#count = 0;
  }

  /** What was added since the last call. */
  take(tier: ResidencyTier, into: ResidencyChange[]): void {
    let from = 0;
    for (let i = 1; i <= this.#count; i++) {
      if (i < this.#count && i - from < CHANGE_HASHES_MAX && this.#follows(i)) continue;
      const hashes = wordsToHashes(this.#hashes, from, i);
      into.push({ kind: "stored", tier, parent: this.#parentOf(from), hashes, tokenHashes: null });
      from = i;
    }
    this.#count = 0;
  }

  #follows(i: number): boolean {
    const [hashes, parents, at] = [this.#hashes, this.#parents, i * 2];
    return parents[at] === hashes[at - 2] && parents[at + 1] === hashes[at - 1];
  }

  #parentOf(i: number): bigint | null {
    const lo = this.#parents[i * 2]!;
    const hi = this.#parents[i * 2 + 1]!;
    return lo === 0 && hi === 0 ? null : (BigInt(hi) << 32n) | BigInt(lo);
  }
}

/** Blocks that left a tier. */
export class RemovedNotes {
  readonly #hashes: Uint32Array;
  #count = 0;

  constructor(capacity: number) {
    this.#hashes = new Uint32Array(capacity * 2);
  }

  get count(): number {
    return this.#count;
  }

  add(words: Uint32Array): void {
    const at = this.#count++ * 2;
    this.#hashes[at] = words[0]!;
    this.#hashes[at + 1] = words[1]!;
  }

  drop(): void {
    this.#count = 0;
  }

  take(tier: ResidencyTier, into: ResidencyChange[]): void {
    for (let from = 0; from < this.#count; from += CHANGE_HASHES_MAX) {
      const end = Math.min(this.#count, from + CHANGE_HASHES_MAX);
      into.push({ kind: "removed", tier, hashes: wordsToHashes(this.#hashes, from, end) });
    }
    this.#count = 0;
  }
}

/** Low word first, as in memory. */
function wordsToHashes(words: Uint32Array, from: number, end: number): BigUint64Array {
  const hashes = new BigUint64Array(end - from);
  new Uint32Array(hashes.buffer).set(words.subarray(from * 2, end * 2));
  return hashes;
}
