import type { Clock } from "./clock.ts";

interface Timer {
  dueMs: number;
  readonly order: number;
  /** Interval of the timer in ms. Null: it fires once. */
  readonly everyMs: number | null;
  readonly run: () => void;
  isOff: boolean;
}

/**
 * A clock for tests and simulations. Its time stands still until the test moves it. Timers fire in
 * the order of their due times; of several due at the same time, the one created first fires first.
 */
export class SimulatedClock implements Clock {
  bootId = "simulated";
  /**
   * Timers sorted by due time, the next one last. A disposed timer stays in the list until its due
   * time.
   */
  readonly #timers: Timer[] = [];
  #nowMs = 0;
  #created = 0;

  monotonicMs(): number {
    return this.#nowMs;
  }

  wallMs(): number {
    return this.#nowMs;
  }

  bootMs(): number {
    return this.#nowMs;
  }

  after(ms: number, run: () => void): Disposable {
    return this.#add(ms, null, run);
  }

  every(ms: number, run: () => void): Disposable {
    return this.#add(ms, Math.max(ms, 1), run);
  }

  /** Number of timers that are waiting. */
  get pending(): number {
    return this.#timers.filter(({ isOff }) => !isOff).length;
  }

  /** Moves the clock to `ms` and fires all timers that are due by then, each at its own time. */
  moveTo(ms: number): void {
    while (this.step(ms));
  }

  /**
   * Moves the clock to the next timer due by `ms` and fires it. If there is none, moves the clock
   * to `ms` and returns false.
   */
  step(ms: number): boolean {
    const timer = this.#timers.at(-1);
    if (timer === undefined || timer.dueMs > ms) {
      this.#nowMs = Math.max(this.#nowMs, ms);
      return false;
    }
    this.#timers.pop();
    if (timer.isOff) return true;
    this.#nowMs = Math.max(this.#nowMs, timer.dueMs);
    this.#fire(timer);
    return true;
  }

  /**
   * Simulates a pause of the process: moves the clock by `ms` at once. Timers that became due
   * meanwhile fire late, once each, in the order of their creation.
   */
  stall(ms: number): void {
    this.#nowMs += ms;
    const isDue = ({ dueMs }: Timer) => dueMs <= this.#nowMs;
    const due = this.#timers.filter(isDue).sort((a, b) => a.order - b.order);
    this.#timers.splice(this.#timers.findIndex(isDue), due.length);
    for (const timer of due) if (!timer.isOff) this.#fire(timer);
  }

  #add(ms: number, everyMs: number | null, run: () => void): Disposable {
    const dueMs = this.#nowMs + Math.max(ms, 0);
    const timer = { dueMs, order: this.#created++, everyMs, run, isOff: false };
    this.#insert(timer);
    return {
      [Symbol.dispose]: () => {
        timer.isOff = true;
      },
    };
  }

  #fire(timer: Timer): void {
    if (timer.everyMs === null) timer.isOff = true;
    else {
      timer.dueMs = this.#nowMs + timer.everyMs;
      this.#insert(timer);
    }
    timer.run();
  }

  #insert(timer: Timer): void {
    let [low, high] = [0, this.#timers.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      const other = this.#timers[middle];
      const isLater =
        other.dueMs > timer.dueMs || (other.dueMs === timer.dueMs && other.order > timer.order);
      if (isLater) low = middle + 1;
      else high = middle;
    }
    this.#timers.splice(low, 0, timer);
  }
}
