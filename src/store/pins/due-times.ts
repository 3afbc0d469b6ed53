import type { Hold } from "./hold.ts";
import { MinHeap } from "./min-heap.ts";

interface Due {
  readonly atBootMs: number;
  readonly hold: Hold;
}

/** Entries that say nothing any more, beyond which they are cleared away. */
const STALE_MIN = 1_024;

/** Which hold the timer must look at next. A hold has one time at most; setting it moves it. */
export class DueTimes {
  readonly #heap = new MinHeap<Due>((a, b) => a.atBootMs < b.atBootMs);
  #waiting = 0;

  /** Holds that have a time. */
  get size(): number {
    return this.#waiting;
  }

  /** Null: never. */
  set(hold: Hold, atBootMs: number | null): void {
    if (hold.dueBootMs !== null) this.#waiting--;
    hold.dueBootMs = atBootMs;
    if (atBootMs !== null) {
      this.#waiting++;
      this.#heap.push({ atBootMs, hold });
    }
    if (this.#heap.size > this.#waiting * 2 + STALE_MIN) this.#heap.retain(isCurrent);
  }

  /** The earliest time; null where no hold has one. */
  next(): number | null {
    for (let first = this.#heap.peek(); first !== undefined; first = this.#heap.peek()) {
      if (isCurrent(first)) return first.atBootMs;
      this.#heap.pop();
    }
    return null;
  }

  /** Takes out the earliest whose time has come; null where there is none. */
  take(bootMs: number): Hold | null {
    const next = this.next();
    if (next === null || next > bootMs) return null;
    const { hold } = this.#heap.pop()!;
    this.set(hold, null);
    return hold;
  }
}

function isCurrent({ hold, atBootMs }: Due): boolean {
  return hold.dueBootMs === atBootMs;
}
