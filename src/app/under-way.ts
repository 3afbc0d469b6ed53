import { type Clock, sleep } from "../core/index.ts";

/** Work that must be over before what it works on is given back. */
export class UnderWay {
  readonly #all = new Set<Promise<unknown>>();

  get size(): number {
    return this.#all.size;
  }

  run<T>(work: Promise<T>): Promise<T> {
    this.#all.add(work);
    return work.finally(() => this.#all.delete(work));
  }

  /** Waits for what is under way now, `ms` at most. */
  async over(clock: Clock, ms: number): Promise<void> {
    const over = new AbortController();
    const giveUp = sleep(clock, ms, over.signal).catch(() => undefined);
    await Promise.race([Promise.allSettled(this.#all), giveUp]);
    over.abort();
  }
}
