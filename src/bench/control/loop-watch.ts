import { sleep, systemClock } from "../../core/index.ts";

const REST_MS = 1;

/**
 * Asks over and over, a millisecond after the answer before, until disposed. As somebody nearly
 * always waits, what the longest answer took is how long the other's event loop was busy with
 * something else, but for a millisecond; and what the host's scheduler adds.
 */
export class LoopWatch implements AsyncDisposable {
  longestMs = 0;
  answers = 0;
  readonly #over: Promise<void>;
  #isEnding = false;

  constructor(ask: () => Promise<void>) {
    this.#over = this.#run(ask);
    // Whoever disposes hears of it.
    this.#over.catch(() => undefined);
  }

  async #run(ask: () => Promise<void>): Promise<void> {
    while (!this.#isEnding) {
      const startMs = systemClock.monotonicMs();
      await ask();
      this.longestMs = Math.max(this.longestMs, systemClock.monotonicMs() - startMs);
      this.answers++;
      await sleep(systemClock, REST_MS);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isEnding = true;
    await this.#over;
  }
}
