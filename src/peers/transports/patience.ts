import type { Clock } from "../../core/index.ts";
import type { LinkFault } from "../transport.ts";

/** A caller's signal and deadline as one signal; disposed when nobody waits any more. */
export class Patience implements Disposable {
  readonly #over = new AbortController();
  readonly #theirs: AbortSignal | undefined;
  readonly #timer: Disposable;
  readonly #clock: Clock;
  readonly #endMs: number;
  readonly #onAbort = () => this.#over.abort();

  constructor(clock: Clock, deadlineMs: number, signal: AbortSignal | undefined) {
    this.#clock = clock;
    this.#endMs = clock.monotonicMs() + deadlineMs;
    this.#theirs = signal;
    this.#timer = clock.after(deadlineMs, this.#onAbort);
    signal?.addEventListener("abort", this.#onAbort, { once: true });
    if (signal?.aborted) this.#over.abort();
  }

  get signal(): AbortSignal {
    return this.#over.signal;
  }

  get leftMs(): number {
    return Math.max(0, this.#endMs - this.#clock.monotonicMs());
  }

  /** Why it is over, once it is. */
  get fault(): LinkFault {
    return this.#theirs?.aborted
      ? { kind: "aborted", why: "the request was given up" }
      : { kind: "stalled", why: "the deadline passed" };
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
    this.#theirs?.removeEventListener("abort", this.#onAbort);
  }
}
