import { type Clock, type Random, randomBelow } from "../../core/index.ts";
import type { BreakerState } from "./puller.ts";

/** Of the cooldown, at random: hosts that lost the same peer do not come back to it as one. */
const JITTER = 0.25;

export interface Cooldowns {
  readonly cooldownMs: number;
  readonly cooldownMaxMs: number;
}

/**
 * Leaves alone what failed. After a failure nothing may enter for a while, then one may try; its
 * success closes the breaker, its failure opens it again for twice as long.
 */
export class Breaker {
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #limits: () => Cooldowns;
  #state: BreakerState = "closed";
  #inRow = 0;
  /** While open the end of the cooldown; while in trial until when its result is waited for. */
  #untilMs = 0;

  constructor(clock: Clock, random: Random, limits: () => Cooldowns) {
    this.#clock = clock;
    this.#random = random;
    this.#limits = limits;
  }

  get state(): BreakerState {
    return this.#state;
  }

  /** Until the next trial; null: nothing has to wait. */
  get waitMs(): number | null {
    if (this.#state === "closed") return null;
    return Math.max(this.#untilMs - this.#clock.monotonicMs(), 0);
  }

  /** Whether `enter` would let one in. */
  get allows(): boolean {
    return this.#state === "closed" || this.#clock.monotonicMs() >= this.#untilMs;
  }

  /** False: leave it alone. A trial that is never heard of again gives way after a cooldown. */
  enter(): boolean {
    if (!this.allows) return false;
    if (this.#state === "closed") return true;
    this.#state = "trial";
    this.#untilMs = this.#clock.monotonicMs() + this.#limits().cooldownMaxMs;
    return true;
  }

  /** It came to nothing for reasons that are not the other side's: the next may try. */
  withdraw(): void {
    if (this.#state !== "trial") return;
    this.#state = "open";
    this.#untilMs = this.#clock.monotonicMs();
  }

  /** True where this closed it. */
  succeeded(): boolean {
    const was = this.#state;
    this.#state = "closed";
    this.#inRow = 0;
    return was !== "closed";
  }

  /**
   * The cooldown in milliseconds where this opened it; null where it was open already. `before`: at
   * least so many failures came before this one.
   */
  failed(before = 0): number | null {
    if (this.#state === "open") return null;
    const { cooldownMs, cooldownMaxMs } = this.#limits();
    this.#inRow = Math.max(this.#inRow, before);
    const full = Math.min(cooldownMs * 2 ** Math.min(this.#inRow++, 30), cooldownMaxMs);
    const ms = full * (1 - (JITTER * randomBelow(this.#random, 1_000)) / 1_000);
    this.#state = "open";
    this.#untilMs = this.#clock.monotonicMs() + ms;
    return ms;
  }

  /** As new: another process answers now under the same name. */
  reset(): void {
    this.#state = "closed";
    this.#inRow = 0;
  }
}
