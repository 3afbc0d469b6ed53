import { type Clock, type Random, randomBelow } from "../../core/index.ts";
import type { IngestSettings } from "./ingest-settings.ts";

/**
 * A follower that can recover missed changes. The queue runs at most one recovery of it at a time.
 */
export interface Recoverable {
  /**
   * Recovers. Resolves true if nothing is missing any more, false if it failed and must be retried.
   */
  recover(signal: AbortSignal): Promise<boolean>;
}

interface Entry {
  failures: number;
  /** `again`: another recovery was requested while one is running. */
  state: "waiting" | "queued" | "running" | "again";
  timer: Disposable | null;
}

/**
 * Runs recoveries in the order requested, few at a time, with exponential backoff after failures.
 * When all workers are new at once, this limits the number of simultaneous requests to them.
 */
export class RecoveryQueue implements AsyncDisposable {
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #limits: IngestSettings["recovery"];
  readonly #entries = new Map<Recoverable, Entry>();
  readonly #queue: Recoverable[] = [];
  readonly #stopping = new AbortController();
  readonly #running = new Set<Promise<void>>();

  constructor(clock: Clock, random: Random, limits: IngestSettings["recovery"]) {
    this.#clock = clock;
    this.#random = random;
    this.#limits = limits;
  }

  get waiting(): number {
    return Math.max(0, this.#entries.size - this.#running.size);
  }
  get running(): number {
    return this.#running.size;
  }

  /**
   * Schedules a recovery in `delayMs` milliseconds unless one is scheduled. A call during a
   * recovery causes one more recovery.
   */
  want(one: Recoverable, delayMs = 0): void {
    const before = this.#entries.get(one);
    if (before?.state === "running") before.state = "again";
    if (before !== undefined || this.#stopping.signal.aborted) return;
    const entry: Entry = { failures: 0, state: "queued", timer: null };
    this.#entries.set(one, entry);
    if (delayMs > 0) {
      this.#wait(one, entry, delayMs);
    } else {
      this.#queue.push(one);
      this.#pump();
    }
  }

  /**
   * Cancels scheduled recoveries of a follower. A running one continues and must check whether it
   * is still needed.
   */
  forget(one: Recoverable): void {
    const entry = this.#entries.get(one);
    entry?.timer?.[Symbol.dispose]();
    const at = this.#queue.indexOf(one);
    if (at >= 0) this.#queue.splice(at, 1);
    this.#entries.delete(one);
  }

  /** Starts all waiting recoveries now, for example after a reconnect. */
  retryNow(): void {
    for (const [one, entry] of this.#entries) {
      if (entry.state !== "waiting") continue;
      entry.timer?.[Symbol.dispose]();
      this.#enqueue(one, entry);
    }
    this.#pump();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping.abort();
    for (const entry of this.#entries.values()) entry.timer?.[Symbol.dispose]();
    this.#entries.clear();
    this.#queue.length = 0;
    await Promise.all(this.#running);
  }

  #pump(): void {
    while (this.#running.size < this.#limits.atOnceMax) {
      const one = this.#queue.shift();
      if (one === undefined) return;
      const entry = this.#entries.get(one);
      if (entry === undefined) continue;
      entry.state = "running";
      const run = this.#run(one, entry).finally(() => {
        this.#running.delete(run);
        this.#pump();
      });
      this.#running.add(run);
    }
  }

  async #run(one: Recoverable, entry: Entry): Promise<void> {
    const isDone = await one.recover(this.#stopping.signal).catch(() => false);
    const isOver = this.#stopping.signal.aborted || this.#entries.get(one) !== entry;
    if (isOver) return;
    if (!isDone) this.#later(one, entry);
    else if (entry.state === "again") this.#enqueue(one, entry);
    else this.#entries.delete(one);
  }

  #enqueue(one: Recoverable, entry: Entry): void {
    entry.state = "queued";
    this.#queue.push(one);
  }

  #later(one: Recoverable, entry: Entry): void {
    const { retryMinMs, retryMaxMs } = this.#limits;
    const wholeMs = Math.min(retryMaxMs, retryMinMs * 2 ** Math.min(20, entry.failures++));
    this.#wait(one, entry, wholeMs / 2 + randomBelow(this.#random, Math.ceil(wholeMs / 2) + 1));
  }

  #wait(one: Recoverable, entry: Entry, ms: number): void {
    entry.state = "waiting";
    entry.timer = this.#clock.after(ms, () => {
      this.#enqueue(one, entry);
      this.#pump();
    });
  }
}
