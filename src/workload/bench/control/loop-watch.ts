import { sleep, systemClock } from "../../../core/index.ts";

const REST_MS = 1;

/**
 * Asks over and over, a millisecond after the answer before, until disposed. As somebody nearly
 * always waits, what the longest answer took is how long the other's event loop was busy with
 * something else, but for a millisecond; and what the host's scheduler adds. `busyUs`: how long the
 * loop has been on a processor so far, which leaves that out.
 */
export class LoopWatch implements AsyncDisposable {
  longestMs = 0;
  longestBusyMs = 0;
  readonly #over: Promise<void>;
  #isEnding = false;

  constructor(ask: () => Promise<void>, busyUs: () => number) {
    this.#over = this.#run(ask, busyUs);
    // Whoever disposes hears of it.
    this.#over.catch(() => undefined);
  }

  async #run(ask: () => Promise<void>, busyUs: () => number): Promise<void> {
    while (!this.#isEnding) {
      const busyBeforeUs = busyUs();
      const startMs = systemClock.monotonicMs();
      await ask();
      this.longestMs = Math.max(this.longestMs, systemClock.monotonicMs() - startMs);
      this.longestBusyMs = Math.max(this.longestBusyMs, (busyUs() - busyBeforeUs) / 1_000);
      await sleep(systemClock, REST_MS);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isEnding = true;
    await this.#over;
  }
}
