import { type Clock, type Random, randomBelow } from "../../core/index.ts";

export interface RecoveryLimits {
  /** So many sources are asked for what is missing at a time. */
  readonly atOnceMax: number;
  /** The wait after a first failure; doubled each time, with jitter. */
  readonly retryMinMs: number;
  readonly retryMaxMs: number;
}

/** Something that is asked for what it missed; one recovery of it runs at a time. */
export interface Recoverable {
  /** True: it is done, or there is nothing left to do. False: it failed, and is tried again. */
  recover(signal: AbortSignal): Promise<boolean>;
}

interface Entry {
  failures: number;
  /** `again`: asked for once more while it ran. */
  state: "waiting" | "queued" | "running" | "again";
  timer: Disposable | null;
}

/**
 * Lets few recoveries run at a time, in the order in which they were wanted, and makes those that
 * fail wait longer and longer: when all workers are new at once, none is asked by everybody.
 */
export class RecoveryQueue implements AsyncDisposable {
  readonly #clock: Clock;
  readonly #random: Random;
  readonly #limits: RecoveryLimits;
  readonly #entries = new Map<Recoverable, Entry>();
  readonly #queue: Recoverable[] = [];
  readonly #stopping = new AbortController();
  readonly #running = new Set<Promise<void>>();

  constructor(clock: Clock, random: Random, limits: RecoveryLimits) {
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
   * Asked for twice it runs once, and once more if it was running already. Not before `delayMs`
   * have passed, where it does not wait already.
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

  /** It is not tried again. What runs goes on to its end, and must look for itself. */
  forget(one: Recoverable): void {
    const entry = this.#entries.get(one);
    entry?.timer?.[Symbol.dispose]();
    const at = this.#queue.indexOf(one);
    if (at >= 0) this.#queue.splice(at, 1);
    this.#entries.delete(one);
  }

  /** Those that wait after a failure are tried at once: whoever was away is there again. */
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
