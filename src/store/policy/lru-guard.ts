import { AGE_FROM, AGE_WIDTH, AGES } from "./age.ts";

/** LRU misses of what returned, as a share of all returns: below, there is nothing to win. */
const MISSED_SHARE = 0.012;
/** Once it was worth it, less is enough to go on. */
const STILL_MISSED_SHARE = 0.7 * MISSED_SHARE;
/** Blocks that returned without a miss and are taken for granted. */
const DOUBT = 64;
/** Missed stretches that it takes to begin: fewer may be chance, and the model knows as little. */
const STRETCHES_MIN = 64;

/**
 * Says whether LRU leaves anything to be won. Where a cache holds nearly all that returns, LRU is
 * nearly perfect, and any other order can only lose; as long as nothing is known, too. An LRU cache
 * evicts at the age at which the blocks used since fill it: what returned later is a miss of its.
 */
export class LruGuard {
  #evictsAt = Number.POSITIVE_INFINITY;
  #missed = 0;
  #returned = 0;
  #missedStretches = 0;
  #isBeaten = false;

  /** Whether an order that learned is to be trusted. */
  get isBeaten(): boolean {
    return this.#isBeaten;
  }

  /** `stretches`: the part of a stretch that the blocks are. */
  returned(age: number, blocks: number, stretches: number): void {
    this.#returned += blocks;
    if (age <= this.#evictsAt) return;
    this.#missed += blocks;
    this.#missedStretches += stretches;
  }

  /** `blocksAt`: blocks last used at each step of age, resident or not; `resident`: of them. */
  look(blocksAt: Float64Array, resident: number): void {
    let younger = 0;
    let step = 0;
    while (step < AGES && younger + blocksAt[step]! < resident) younger += blocksAt[step++]!;
    this.#evictsAt =
      step === AGES
        ? Number.POSITIVE_INFINITY
        : AGE_FROM[step]! + (AGE_WIDTH[step]! * (resident - younger)) / blocksAt[step]!;
    const share = this.#missed / (this.#returned + DOUBT);
    this.#isBeaten = this.#isBeaten
      ? share > STILL_MISSED_SHARE
      : share > MISSED_SHARE && this.#missedStretches >= STRETCHES_MIN;
  }

  fade(): void {
    this.#missed /= 2;
    this.#returned /= 2;
    this.#missedStretches /= 2;
  }
}
