import type { Clock } from "./clock.ts";

interface Timer {
  dueMs: number;
  readonly order: number;
  /** Null: fires once. */
  readonly everyMs: number | null;
  readonly run: () => void;
  isOff: boolean;
}

/**
 * Time for tests and simulations, which stands still until it is moved. Timers fire in the order in
 * which they are due; of those due at one time, the one set first.
 */
export class SimulatedClock implements Clock {
  bootId = "simulated";
  /** Sorted, the next one last. A disposed timer stays until it is due. */
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

  /** Timers that are waiting. */
  get pending(): number {
    return this.#timers.filter(({ isOff }) => !isOff).length;
  }

  /** Moves to `ms` and fires what becomes due, each at its own time. */
  moveTo(ms: number): void {
    while (this.step(ms));
  }

  /** Fires the next timer due by `ms`, at its time. False if there is none: then it is `ms`. */
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

  /** Stands still for `ms`: what became due meanwhile fires once, late, in the order of creation. */
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
      const other = this.#timers[middle]!;
      const isLater =
        other.dueMs > timer.dueMs || (other.dueMs === timer.dueMs && other.order > timer.order);
      if (isLater) low = middle + 1;
      else high = middle;
    }
    this.#timers.splice(low, 0, timer);
  }
}
