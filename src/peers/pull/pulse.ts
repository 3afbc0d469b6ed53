import type { Clock } from "../../core/index.ts";

/** Less than this is no progress: a peer that sends byte by byte holds its places as a dead one. */
const PROGRESS_BYTES = 64 << 10;
/** Where it is not known how long answers take, and the least that is told apart. */
const UNKNOWN_MS = 250;
const SLOW_MS_MIN = 3;
/** A timer that fires so much later says that this process stood still, not that the peer did. */
const STOOD_STILL_MS = 5;
/** Then what came meanwhile is looked at first. */
const CATCH_UP_MS = 10;

export interface PulseWatch {
  /** How long the first answer, or the next, takes at most as a rule; null: not known. */
  usualMs(first: boolean): number | null;
  /** Without progress for so long it has stalled. */
  patienceMs(): number;
  /** Once for each answer that takes too long; `silent`: not even bytes came. */
  slow(silent: boolean, afterMs: number): void;
  stalled(afterMs: number): void;
}

/** Watches whether a request goes on. */
export class Pulse {
  readonly #clock: Clock;
  readonly #watch: PulseWatch;
  #timer: Disposable | null = null;
  #startMs = 0;
  #answerMs = 0;
  #progressMs = 0;
  #bytes = 0;
  #dueMs = 0;
  #silent = true;
  #told = false;
  #answered = false;

  constructor(clock: Clock, watch: PulseWatch) {
    this.#clock = clock;
    this.#watch = watch;
  }

  start(): Disposable {
    this.#startMs = this.#clock.monotonicMs();
    this.#answerMs = this.#startMs;
    this.#progressMs = this.#startMs;
    this.#arm();
    return { [Symbol.dispose]: () => this.#timer?.[Symbol.dispose]() };
  }

  /** It goes out, for the first time or once more: from now on the peer's answer is waited for. */
  sent(): void {
    this.#progressMs = this.#clock.monotonicMs();
    this.#answerMs = this.#progressMs;
  }

  moved(bytes: number): void {
    this.#silent = false;
    this.#bytes += bytes;
    if (this.#bytes < PROGRESS_BYTES) return;
    this.#bytes = 0;
    this.#progressMs = this.#clock.monotonicMs();
  }

  /** A block was answered: how long that took, from the request or from the answer before. */
  answer(): { readonly first: boolean; readonly ms: number } {
    const nowMs = this.#clock.monotonicMs();
    const waited = { first: !this.#answered, ms: nowMs - this.#answerMs };
    this.#answered = true;
    this.#silent = true;
    this.#bytes = 0;
    this.#answerMs = nowMs;
    this.#progressMs = nowMs;
    if (this.#told) {
      this.#told = false;
      this.#timer?.[Symbol.dispose]();
      this.#arm();
    }
    return waited;
  }

  #slowMs(): number {
    const patienceMs = this.#watch.patienceMs();
    const usualMs = this.#watch.usualMs(!this.#answered) ?? Math.min(UNKNOWN_MS, patienceMs / 4);
    return Math.min(Math.max(usualMs, SLOW_MS_MIN), patienceMs);
  }

  #arm(leastMs = 1): void {
    const nowMs = this.#clock.monotonicMs();
    const stallMs = this.#progressMs + this.#watch.patienceMs() - nowMs;
    const slowMs = this.#told ? stallMs : this.#answerMs + this.#slowMs() - nowMs;
    const ms = Math.max(Math.min(stallMs, slowMs), leastMs);
    this.#dueMs = nowMs + ms;
    this.#timer = this.#clock.after(ms, () => this.#look());
  }

  #look(): void {
    const nowMs = this.#clock.monotonicMs();
    const stoodMs = nowMs - this.#dueMs;
    if (stoodMs > STOOD_STILL_MS) {
      this.#progressMs = Math.min(this.#progressMs + stoodMs, nowMs);
      this.#answerMs = Math.min(this.#answerMs + stoodMs, nowMs);
      this.#arm(CATCH_UP_MS);
      return;
    }
    if (nowMs - this.#progressMs >= this.#watch.patienceMs()) {
      this.#watch.stalled(nowMs - this.#progressMs);
      return;
    }
    if (!this.#told && nowMs - this.#answerMs >= this.#slowMs()) {
      this.#told = true;
      this.#watch.slow(this.#silent, nowMs - this.#startMs);
    }
    this.#arm();
  }
}
