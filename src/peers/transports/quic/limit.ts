import type { Clock } from "../../../core/index.ts";
import type { LinkFault } from "../../transport.ts";

/**
 * A caller's signal and deadline, for one who waits at a time. It has no signal of its own: in this
 * runtime those cost more than all else that a small request needs.
 */
export class Limit implements Disposable {
  /** Called once when it is over, if it is not yet. */
  onOver: (() => void) | null = null;
  /** Why it is over; null: it is not. */
  fault: LinkFault | null = null;
  readonly #signal: AbortSignal | undefined;
  readonly #clock: Clock;
  readonly #endMs: number;
  readonly #timer: Disposable;
  readonly #onAbort = () => this.#end({ kind: "aborted", why: "the request was given up" });

  constructor(clock: Clock, deadlineMs: number, signal: AbortSignal | undefined) {
    this.#clock = clock;
    this.#endMs = clock.monotonicMs() + deadlineMs;
    this.#signal = signal;
    this.#timer = clock.after(deadlineMs, () => {
      this.#end({ kind: "stalled", why: "the deadline passed" });
    });
    signal?.addEventListener("abort", this.#onAbort, { once: true });
    if (signal?.aborted) this.#onAbort();
  }

  get leftMs(): number {
    return Math.max(0, this.#endMs - this.#clock.monotonicMs());
  }

  #end(fault: LinkFault): void {
    if (this.fault !== null) return;
    this.fault = fault;
    this.onOver?.();
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
    this.#signal?.removeEventListener("abort", this.#onAbort);
  }
}
