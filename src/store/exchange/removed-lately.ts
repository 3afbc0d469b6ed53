import type { Clock } from "../../core/index.ts";

/** So long other hosts may take to carry out what was told to all of them. */
export const REMEMBERED_MS = 30_000;
/** Blocks told apart; each costs some hundred bytes. */
const KEYS_MAX = 65_536;

/**
 * What commands removed here in the last 30 seconds, wherever it was: hosts that have yet to do the
 * same may still offer it. Of more than can be told apart nothing is forgotten: for 30 seconds all
 * counts as removed, since a miss is legal and a block that comes back is not.
 */
export class RemovedLately {
  readonly #clock: Clock;
  /** Until when, by `BlockKey` in hex; the first is the oldest. */
  readonly #keys = new Map<string, number>();
  /** Before this no key has to be forgotten: looking for the first one is not always cheap. */
  #nextUntil = Number.NEGATIVE_INFINITY;
  #everythingUntil = Number.NEGATIVE_INFINITY;
  #transientsUntil = Number.NEGATIVE_INFINITY;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Nothing was, as far as single blocks go. */
  get hasNoKeys(): boolean {
    return this.#keys.size === 0;
  }

  get transients(): boolean {
    return this.#clock.monotonicMs() < this.#transientsUntil;
  }

  add(key: string): void {
    this.#forget();
    this.#keys.delete(key);
    this.#keys.set(key, this.#later());
    if (this.#keys.size > KEYS_MAX) this.addEverything();
  }

  addEverything(): void {
    this.#keys.clear();
    this.#everythingUntil = this.#later();
  }

  addTransients(): void {
    this.#transientsUntil = this.#later();
  }

  has(key: string): boolean {
    this.#forget();
    return this.#clock.monotonicMs() < this.#everythingUntil || this.#keys.has(key);
  }

  /** An engine of this host wrote it anew. */
  delete(key: string): void {
    this.#keys.delete(key);
  }

  clear(): void {
    this.#keys.clear();
    this.#everythingUntil = Number.NEGATIVE_INFINITY;
    this.#transientsUntil = Number.NEGATIVE_INFINITY;
  }

  #later(): number {
    return this.#clock.monotonicMs() + REMEMBERED_MS;
  }

  #forget(): void {
    const now = this.#clock.monotonicMs();
    if (now < this.#nextUntil) return;
    this.#nextUntil = this.#later();
    for (const [key, until] of this.#keys) {
      if (now < until) {
        this.#nextUntil = until;
        return;
      }
      this.#keys.delete(key);
    }
  }
}
