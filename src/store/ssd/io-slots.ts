import type { Clock } from "../../core/index.ts";

/** Kinds of disk operations, highest priority first. */
const DISK_WORK = ["read", "remove", "write", "sync", "warm", "scrub"] as const;
type DiskWork = (typeof DISK_WORK)[number];

interface Waiting {
  readonly ticket: number | null;
  start(as: DiskWork): void;
  giveUp(): void;
}

/**
 * Share of all I/O slots, 0 to 1, that one kind of operation may use (at least one slot). Writes
 * therefore leave slots for reads.
 */
const SHARES: Readonly<Record<DiskWork, number>> = {
  read: 1,
  remove: 0.75,
  write: 0.5,
  sync: 0,
  warm: 0.25,
  scrub: 0,
};

function byWork<Value>(first: () => Value): Record<DiskWork, Value> {
  const values = DISK_WORK.map((work) => [work, first()] as const);
  return Object.fromEntries(values) as Record<DiskWork, Value>;
}

/**
 * Limits the number of concurrent disk operations. A waiting operation can be cancelled. A running
 * one cannot: it occupies its slot until the kernel reports its completion.
 */
export class IoSlots {
  readonly #depth: number;
  readonly #clock: Clock;
  readonly #waiting = byWork((): Waiting[] => []);
  readonly #seated = byWork(() => 0);
  /**
   * Start time of each running operation (monotonic ms), the oldest first; null if a long run does
   * not indicate a hung disk.
   */
  readonly #started = new Map<number, number | null>();
  #next = 0;

  constructor(depth: number, clock: Clock) {
    this.#depth = depth;
    this.#clock = clock;
  }

  get running(): number {
    return this.#started.size;
  }

  waiting(work: DiskWork): number {
    return this.#waiting[work].length;
  }

  /**
   * Returns the milliseconds since the oldest running operation started; 0 if none is running.
   * Ignores syncs, which wait for writes of other processes to the same file system.
   */
  oldestMs(): number {
    for (const startedMs of this.#started.values()) {
      if (startedMs !== null) return this.#clock.monotonicMs() - startedMs;
    }
    return 0;
  }

  /**
   * Runs the operation in an I/O slot and returns its result, or null if it was cancelled while
   * waiting. `ticket` identifies the operation for `hasten`.
   */
  run<T>(
    work: DiskWork,
    operation: () => Promise<T>,
    ticket: number | null = null,
  ): Promise<T | null> {
    return new Promise((resolve, reject) => {
      const start = (as: DiskWork) => {
        this.#run(as, operation).then(resolve, reject);
      };
      if (this.#hasSeat(work)) start(work);
      else this.#waiting[work].push({ ticket, start, giveUp: () => resolve(null) });
    });
  }

  /**
   * Gives a waiting `warm` operation the priority of a read, because a request waits for it now.
   */
  hasten(ticket: number): void {
    const at = this.#waiting.warm.findIndex((waiting) => waiting.ticket === ticket);
    const [waiting] = at < 0 ? [] : this.#waiting.warm.splice(at, 1);
    if (waiting === undefined) return;
    if (this.#hasSeat("read")) waiting.start("read");
    else this.#waiting.read.push(waiting);
  }

  /** Cancels all waiting operations of this kind. */
  giveUp(work: DiskWork): void {
    for (const waiting of this.#waiting[work].splice(0)) waiting.giveUp();
  }

  #hasSeat(work: DiskWork): boolean {
    const seats = Math.max(1, Math.floor(this.#depth * SHARES[work]));
    return this.#started.size < this.#depth && this.#seated[work] < seats;
  }

  async #run<T>(work: DiskWork, operation: () => Promise<T>): Promise<T> {
    const number = this.#next++;
    this.#seated[work]++;
    this.#started.set(number, work === "sync" ? null : this.#clock.monotonicMs());
    try {
      return await operation();
    } finally {
      this.#started.delete(number);
      this.#seated[work]--;
      for (const next of DISK_WORK) {
        while (this.#waiting[next].length > 0 && this.#hasSeat(next)) {
          this.#waiting[next].shift()!.start(next);
        }
      }
    }
  }
}
