import type { Clock } from "../../core/index.ts";

/** What goes to the disk; who stands further left goes first. */
export const DISK_WORK = ["read", "remove", "write", "sync", "warm", "scrub"] as const;
export type DiskWork = (typeof DISK_WORK)[number];

interface Waiting {
  readonly ticket: number | null;
  start(as: DiskWork): void;
  giveUp(): void;
}

/** Of all seats, so many at most for one kind (at least one): writes leave seats to reads. */
const SHARES: Readonly<Record<DiskWork, number>> = {
  read: 1,
  remove: 0.75,
  write: 0.5,
  sync: 0,
  warm: 0.25,
  scrub: 0,
};

/**
 * Seats in front of the disk. An operation that has its seat cannot be given up: it is over when
 * the kernel says so. What still waits for one can.
 */
export class DiskSchedule {
  readonly #depth: number;
  readonly #clock: Clock;
  readonly #waiting: Record<DiskWork, Waiting[]> = {
    read: [],
    remove: [],
    write: [],
    sync: [],
    warm: [],
    scrub: [],
  };
  readonly #seated: Record<DiskWork, number> = {
    ...{ read: 0, remove: 0, write: 0 },
    ...{ sync: 0, warm: 0, scrub: 0 },
  };
  /** When each running operation began, the oldest first; null: it may take its time. */
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
   * Milliseconds since the longest running operation began; 0 where none runs. A sync is none of
   * them: it waits for what everybody else wrote to the file system.
   */
  oldestMs(): number {
    for (const startedMs of this.#started.values()) {
      if (startedMs !== null) return this.#clock.monotonicMs() - startedMs;
    }
    return 0;
  }

  /**
   * What the operation answered; null where the wait for a seat was given up. `ticket`: what
   * `hasten` will know it by.
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

  /** Somebody wants it now: what waits among `warm` with this ticket goes with the reads. */
  hasten(ticket: number): void {
    const at = this.#waiting.warm.findIndex((waiting) => waiting.ticket === ticket);
    const [waiting] = at < 0 ? [] : this.#waiting.warm.splice(at, 1);
    if (waiting === undefined) return;
    if (this.#hasSeat("read")) waiting.start("read");
    else this.#waiting.read.push(waiting);
  }

  /** Those who wait for a seat get none. */
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
