import { yieldToLoop } from "../../core/index.ts";
import type { SsdParts } from "./ssd-parts.ts";

/** An operation that takes longer than this belongs to a disk that hangs. */
const HUNG_MS = 5_000;

/** Whether the disk answers at all, and what to do with those who wait for it when it does not. */
export class HangWatch {
  readonly #parts: SsdParts;
  readonly #onHang: () => void;
  readonly #waits = new Set<() => void>();
  #hung = false;

  constructor(parts: SsdParts, onHang: () => void) {
    this.#parts = parts;
    this.#onHang = onHang;
  }

  get hung(): boolean {
    return this.#hung;
  }

  /** To be called now and then. */
  look(): void {
    const { schedule, log } = this.#parts;
    const hung = schedule.oldestMs() > HUNG_MS;
    if (hung === this.#hung) return;
    this.#hung = hung;
    log(hung ? "error" : "info", hung ? "the SSD hangs: going on without it" : "the SSD is back", {
      operations: schedule.running,
    });
    if (!hung) return;
    this.#onHang();
    this.giveUpWaits();
  }

  /** What comes of `work`, or null where the disk hangs before that; the work goes on. */
  orHung<T>(work: Promise<T>): Promise<T | null> {
    return new Promise((resolve, reject) => {
      const giveUp = () => resolve(null);
      this.#waits.add(giveUp);
      // What needs no disk is over by then.
      if (this.#hung) void yieldToLoop().then(giveUp);
      work.then(resolve, reject).finally(() => this.#waits.delete(giveUp));
    });
  }

  /** Nobody waits for the disk any longer. */
  giveUpWaits(): void {
    for (const giveUp of this.#waits) giveUp();
    this.#waits.clear();
  }
}
