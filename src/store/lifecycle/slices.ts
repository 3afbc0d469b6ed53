import { type Clock, yieldToLoop } from "../../core/index.ts";

/** What long work takes of the event loop at once. */
const SLICE_MS = 2;
/** Looks between two at the clock, and at most in one slice. */
const LOOKS_A_GLANCE = 16;
const LOOKS_A_SLICE = 4_096;
/** How often progress is told. */
const PROGRESS_MS = 100;

/** Cuts long work into pieces between which everything else has its turn. */
export class Slices {
  readonly #clock: Clock;
  #startedMs: number;
  #looks = 0;
  #toldMs: number;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#startedMs = clock.monotonicMs();
    this.#toldMs = this.#startedMs;
  }

  /** To be asked for each block: whether it is time for `turn`. */
  isOver(): boolean {
    if (++this.#looks % LOOKS_A_GLANCE !== 0) return false;
    if (this.#looks >= LOOKS_A_SLICE) return true;
    return this.isLate();
  }

  /** After something that takes longer than a look: as `isOver`, by the clock at once. */
  isLate(): boolean {
    return this.#clock.monotonicMs() - this.#startedMs >= SLICE_MS;
  }

  /** Resolves when the others have had their turn. */
  async turn(): Promise<void> {
    await yieldToLoop();
    this.#looks = 0;
    this.#startedMs = this.#clock.monotonicMs();
  }

  /** True ten times a second at most. */
  mayTell(): boolean {
    const nowMs = this.#clock.monotonicMs();
    if (nowMs - this.#toldMs < PROGRESS_MS) return false;
    this.#toldMs = nowMs;
    return true;
  }
}
