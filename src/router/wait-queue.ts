import { type Clock, HearthError } from "../core/index.ts";
import type { RouterSettings } from "./settings.ts";

export interface Waiting<Item> {
  readonly item: Item;
  readonly priority: number;
  readonly sinceMs: number;
}

interface Entry<Item, Result> extends Waiting<Item> {
  resolve(result: Result): void;
  timer: Disposable | null;
}

/**
 * Requests that wait for a worker, by priority and then by arrival. Holds at most `requestsMax`
 * requests, each for at most `waitMs` milliseconds.
 */
export class WaitQueue<Item, Result> implements Disposable {
  readonly #clock: Clock;
  readonly #settings: RouterSettings["queue"];
  readonly #giveUp: (item: Item, waitedMs: number) => Result;
  readonly #entries: Entry<Item, Result>[] = [];

  /** `giveUp` returns the result of a request that times out or is still waiting at disposal. */
  constructor(
    clock: Clock,
    settings: RouterSettings["queue"],
    giveUp: (item: Item, waitedMs: number) => Result,
  ) {
    this.#clock = clock;
    this.#settings = settings;
    this.#giveUp = giveUp;
  }

  get length(): number {
    return this.#entries.length;
  }

  /**
   * Queues a request and resolves with its result. Returns null if the queue is full or disabled.
   * The promise rejects with ABORTED if the signal fires.
   */
  wait(item: Item, priority: number, signal: AbortSignal | undefined): Promise<Result> | null {
    const { requestsMax, waitMs } = this.#settings;
    if (this.#entries.length >= requestsMax || waitMs <= 0) return null;
    return new Promise((resolve, reject) => {
      const aborted = () => new HearthError("ABORTED", "the request was aborted while queued");
      if (signal?.aborted) return reject(aborted());
      const onAbort = () => {
        this.#take(entry);
        reject(aborted());
      };
      const entry: Entry<Item, Result> = {
        item,
        priority,
        sinceMs: this.#clock.monotonicMs(),
        timer: null,
        resolve: (result) => {
          signal?.removeEventListener("abort", onAbort);
          resolve(result);
        },
      };
      entry.timer = this.#clock.after(waitMs, () => this.#end(entry));
      signal?.addEventListener("abort", onAbort, { once: true });
      this.#insert(entry);
    });
  }

  /**
   * Calls `offer` for each waiting request, in queue order. A result ends the request's wait; null
   * leaves it waiting.
   */
  serve(offer: (waiting: Waiting<Item>) => Result | null): void {
    for (const entry of [...this.#entries]) {
      if (entry.timer === null) continue;
      const result = offer(entry);
      if (result === null) continue;
      this.#take(entry);
      entry.resolve(result);
    }
  }

  /** Ends the wait of all requests with the result of `giveUp`. */
  [Symbol.dispose](): void {
    for (const entry of [...this.#entries]) this.#end(entry);
  }

  #end(entry: Entry<Item, Result>): void {
    this.#take(entry);
    entry.resolve(this.#giveUp(entry.item, this.#clock.monotonicMs() - entry.sinceMs));
  }

  #take(entry: Entry<Item, Result>): void {
    entry.timer?.[Symbol.dispose]();
    entry.timer = null;
    const at = this.#entries.indexOf(entry);
    if (at !== -1) this.#entries.splice(at, 1);
  }

  #insert(entry: Entry<Item, Result>): void {
    let [low, high] = [0, this.#entries.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#entries[middle].priority >= entry.priority) low = middle + 1;
      else high = middle;
    }
    this.#entries.splice(low, 0, entry);
  }
}
