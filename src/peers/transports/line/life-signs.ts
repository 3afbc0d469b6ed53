import type { Clock } from "../../../core/index.ts";
import type { LineLimits } from "./limits.ts";
import type { MessageLine } from "./message-line.ts";

export interface LifeSignsOptions {
  readonly line: Pick<MessageLine<never>, "send" | "heardMs" | "partialSinceMs" | "clogSinceMs">;
  readonly clock: Clock;
  readonly limits: Pick<LineLimits, "pingMs" | "silentMs">;
  /** The asker asks, the other side answers; both notice silence. */
  readonly asks: boolean;
  onRtt(ms: number): void;
  onDead(why: string): void;
}

/**
 * Notices an end that does nothing any more: that is silent, that stops within a message, or that
 * does not take what is written to it.
 */
export class LifeSigns implements Disposable {
  readonly #options: LifeSignsOptions;
  readonly #timer: Disposable;
  #nonce = 0;
  /** Null: nothing is asked. */
  #askedMs: number | null = null;

  constructor(options: LifeSignsOptions) {
    this.#options = options;
    this.#timer = options.clock.every(options.limits.pingMs, () => this.#look());
  }

  answered(nonce: number): void {
    if (this.#askedMs === null || nonce !== this.#nonce) return;
    this.#options.onRtt(this.#options.clock.monotonicMs() - this.#askedMs);
    this.#askedMs = null;
  }

  #look(): void {
    const { line, clock, asks, onDead } = this.#options;
    const why = this.#whyDead();
    if (why !== null) onDead(why);
    if (why !== null || !asks || this.#askedMs !== null) return;
    this.#askedMs = clock.monotonicMs();
    this.#nonce = (this.#nonce + 1) % 2 ** 32;
    line.send({ kind: "ping", nonce: this.#nonce });
  }

  #whyDead(): string | null {
    const { line, clock, limits } = this.#options;
    const oldest = clock.monotonicMs() - limits.silentMs;
    // While it does not take what is sent nothing is read of it either.
    if (line.clogSinceMs !== null) {
      return line.clogSinceMs < oldest ? "it does not take what is sent" : null;
    }
    if ((line.partialSinceMs ?? oldest) < oldest) return "a message did not end";
    return line.heardMs < oldest ? "nothing was heard of it" : null;
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
  }
}
