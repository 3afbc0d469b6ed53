import { KINDS, LEVELS, SHAPE_OF, SHAPES, TRAITS } from "./segments.ts";

/**
 * Pseudo-counts: number of observations above which data outweighs the coarser estimate. Results
 * change little if any of them is halved or doubled.
 */
const FOR_ALL = 60;
const FOR_SHAPE = 20;
const FOR_TRAIT = 30;
const FOR_KIND = 40;
/** Initial estimate: share of blocks that return in each octave of age, 0 to 1. */
const FIRST_GUESS = 0.02;
const LIKELY_MAX = 0.9;
const TRAIT_ROUNDS = 3;
/** Ages that less than this share of blocks reaches are ignored in the worth. */
const FEW_LEFT = 0.01;

/**
 * Learns when blocks are used again (return), by kind of use and by age in requests, and computes
 * the worth of keeping a block. Returns are rare and come in bursts. The estimate is therefore
 * refined in steps, each of which is the prior of the next: the share that returns at each age (of
 * all kinds, then of kinds alike in shape), a factor for each level of each trait, a factor for
 * each kind, and the kind's own share at each age.
 *
 * The worth is the highest hit rate obtainable by keeping the block for some time: the probability
 * that it returns within that time, divided by the mean time for which it would be kept (the
 * Gittins index of a job of unknown length: J. C. Gittins, 1979). The worth does not simply fall
 * with age: a block used just now may be worth less than an older one that is due to return.
 */
export class ReturnModel {
  /**
   * Number of blocks that have not returned yet, by kind and age. The caller of `fit` fills it in
   * before each call; `fit` resets it to zero.
   */
  readonly waiting: Float64Array = new Float64Array(KINDS * AGES);
  readonly #returned = new Float64Array(KINDS * AGES);
  readonly #lost = new Float64Array(KINDS * AGES);
  /**
   * Number of blocks that could return at each age, and number that did. A kind's rows are
   * smoothed.
   */
  readonly #could = new Float64Array(KINDS * AGES);
  readonly #did = new Float64Array(KINDS * AGES);
  readonly #seen = new Float64Array(KINDS);
  readonly #shape = new Float64Array(SHAPES * AGES);
  readonly #chance = new Float64Array(AGES);
  readonly #factor = new Float64Array(KINDS);
  /** Worth in hits per request, by kind and age. A kind's row is computed when it is needed. */
  readonly #worth = new Float32Array(KINDS * AGES);
  readonly #worthBits = new Uint32Array(this.#worth.buffer);
  readonly #isFitted = new Uint8Array(KINDS);
  /** Number of age steps reached since the start. */
  #steps = 1;

  /** Records that `weight` blocks of a kind were used again at this age step. */
  returned(kind: number, step: number, weight: number): void {
    const at = kind * AGES + step;
    this.#returned[at] = this.#returned[at] + weight;
  }

  /**
   * Records that `weight` blocks of a kind had not returned at this age step and are no longer
   * tracked.
   */
  lost(kind: number, step: number, weight: number): void {
    const at = kind * AGES + step;
    this.#lost[at] = this.#lost[at] + weight;
  }

  /** Halves the weight of all earlier observations. */
  fade(): void {
    for (let at = 0; at < KINDS * AGES; at++) {
      this.#returned[at] = this.#returned[at] / 2;
      this.#lost[at] = this.#lost[at] / 2;
    }
  }

  /**
   * Updates the model with the observations since the last call. `now`: number of requests since
   * the start. Takes a fixed amount of work.
   */
  fit(now: number): void {
    this.#steps = Math.min(AGES, ageStep(now) + 1);
    this.#count();
    this.#fitShapes();
    this.#fitFactors();
    this.#isFitted.fill(0);
    this.waiting.fill(0);
  }

  /**
   * Returns the worth of keeping a block of this kind at this age step, as the bits of a
   * non-negative 32-bit float, which sort like integers.
   */
  worthBits(kind: number, step: number): number {
    if (this.#isFitted[kind] === 0) this.#fitKind(kind);
    return this.#worthBits[kind * AGES + step];
  }

  #count(): void {
    const could = this.#could;
    const did = this.#did;
    for (let kind = 0; kind < KINDS; kind++) {
      let older = 0;
      for (let at = (kind + 1) * AGES - 1; at >= kind * AGES; at--) {
        const back = this.#returned[at];
        const away = this.#lost[at] + this.waiting[at];
        // Count blocks that left within the age step for half of it.
        could[at] = older + back + away / 2;
        did[at] = back;
        older += back + away;
      }
      this.#seen[kind] = older;
      if (older === 0) continue;
      smooth(could, kind * AGES);
      smooth(did, kind * AGES);
    }
  }

  #fitShapes(): void {
    const shape = this.#shape;
    const could = new Float64Array((SHAPES + 1) * AGES);
    const did = new Float64Array((SHAPES + 1) * AGES);
    for (let kind = 0; kind < KINDS; kind++) {
      if (this.#seen[kind] === 0) continue;
      for (let step = 0; step < AGES; step++) {
        const own = SHAPE_OF[kind] * AGES + step;
        const all = SHAPES * AGES + step;
        could[own] = could[own] + this.#could[kind * AGES + step];
        did[own] = did[own] + this.#did[kind * AGES + step];
        could[all] = could[all] + this.#could[kind * AGES + step];
        did[all] = did[all] + this.#did[kind * AGES + step];
      }
    }
    for (let step = 0; step < AGES; step++) {
      const all = SHAPES * AGES + step;
      const guess = (FIRST_GUESS * AGE_WIDTH[step]) / AGE_FROM[step + 1];
      const mean = (did[all] + FOR_ALL * guess) / (could[all] + FOR_ALL);
      for (let at = step; at < SHAPES * AGES; at += AGES) {
        shape[at] = (did[at] + FOR_SHAPE * mean) / (could[at] + FOR_SHAPE);
      }
    }
  }

  /** Computes one factor per kind: its return rate relative to the rate of its shape. */
  #fitFactors(): void {
    const observed = new Float64Array(KINDS);
    const expected = new Float64Array(KINDS);
    for (let kind = 0; kind < KINDS; kind++) {
      if (this.#seen[kind] === 0) continue;
      const shape = SHAPE_OF[kind] * AGES;
      for (let step = 0; step < AGES; step++) {
        observed[kind] = observed[kind] + this.#did[kind * AGES + step];
        expected[kind] =
          expected[kind] + this.#could[kind * AGES + step] * this.#shape[shape + step];
      }
    }
    const factor = this.#factor.fill(1);
    for (let round = 0; round < TRAIT_ROUNDS; round++) {
      for (const level of TRAITS) fitTrait(level, observed, expected, factor);
    }
    for (let kind = 0; kind < KINDS; kind++) {
      const own = expected[kind] * factor[kind];
      factor[kind] = (factor[kind] * (observed[kind] + FOR_TRAIT)) / (own + FOR_TRAIT);
    }
  }

  #fitKind(kind: number): void {
    this.#isFitted[kind] = 1;
    const factor = this.#factor[kind];
    const steps = this.#steps;
    const chance = this.#chance;
    const from = kind * AGES;
    const shape = SHAPE_OF[kind] * AGES;
    for (let step = 0; step < steps; step++) {
      const guess = Math.min(LIKELY_MAX, factor * this.#shape[shape + step]);
      const did = this.#did[from + step] + FOR_KIND * guess;
      chance[step] = did / (this.#could[from + step] + FOR_KIND);
    }
    for (let age = 0; age < steps; age++) {
      this.#worth[from + age] = bestRate(chance, age, steps);
    }
    this.#worth.fill(0, from + steps, from + AGES);
  }
}

/**
 * Fits the factors of one trait while those of the others are fixed, and multiplies them into the
 * factor of each kind.
 */
function fitTrait(
  level: Uint8Array,
  observed: Float64Array,
  expected: Float64Array,
  factor: Float64Array,
): void {
  const did = new Float64Array(LEVELS).fill(FOR_TRAIT);
  const should = new Float64Array(LEVELS).fill(FOR_TRAIT);
  for (let kind = 0; kind < KINDS; kind++) {
    const at = level[kind];
    did[at] = did[at] + observed[kind];
    should[at] = should[at] + expected[kind] * factor[kind];
  }
  for (let kind = 0; kind < KINDS; kind++) {
    const at = level[kind];
    factor[kind] = (factor[kind] * did[at]) / should[at];
  }
}

/** Returns the best hit rate over all times for which a block of age step `from` can be kept. */
function bestRate(chance: Float64Array, from: number, steps: number): number {
  let left = 1;
  let hits = 0;
  let time = 0;
  let best = 0;
  for (let step = from; step < steps && left > FEW_LEFT; step++) {
    const back = left * chance[step];
    time += AGE_WIDTH[step] * (left - back / 2);
    hits += back;
    left -= back;
    if (hits > best * time) best = hits / time;
  }
  return best;
}

/**
 * Smooths a row: each age step takes a quarter of each neighbour, because all returns of one
 * request have the same age.
 */
function smooth(table: Float64Array, from: number): void {
  let before = table[from];
  for (let at = from; at < from + AGES; at++) {
    const own = table[at];
    const after = at + 1 < from + AGES ? table[at + 1] : own;
    table[at] = before / 4 + own / 2 + after / 4;
    before = own;
  }
}

/**
 * Number of age steps. Ages are in requests and steps are half octaves: 1, 2, 3, 4-5, 6-7, 8-11,
 * 12-15 and so on, because the probability of a return varies slowly on a logarithmic scale of age.
 */
export const AGES = 44;

/**
 * Returns the step of an age. Ages below 1 count as 1, ages above the last step belong to the last
 * step.
 */
export function ageStep(age: number): number {
  if (age < 2) return 0;
  const octave = 31 - Math.clz32(age);
  const step = 2 * octave - 1 + ((age >>> (octave - 1)) & 1);
  return step < AGES ? step : AGES - 1;
}

/** First age of each step; one more entry for the end of the last step. */
export const AGE_FROM: Float64Array = Float64Array.from({ length: AGES + 1 }, (_, step) => {
  const octave = (step + 1) >> 1;
  return step === 0 ? 1 : 2 ** octave * ((step & 1) === 1 ? 1 : 1.5);
});

/** Number of different ages in each step. */
export const AGE_WIDTH: Float64Array = Float64Array.from(
  { length: AGES },
  (_, step) => AGE_FROM[step + 1] - AGE_FROM[step],
);
