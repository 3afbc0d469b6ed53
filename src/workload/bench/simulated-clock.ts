import type { Clock } from "../../core/index.ts";

interface Due {
  readonly atMs: number;
  readonly order: number;
  readonly run: () => void;
  isOff: boolean;
}

/** Simulated time, which advances only on request and fires due timers in order. */
export class SimulatedClock implements Clock {
  readonly bootId = "simulated";
  /** A binary heap, the next one first. */
  readonly #due: Due[] = [];
  #nowMs = 0;
  #order = 0;

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
    const due = { atMs: this.#nowMs + Math.max(ms, 0), order: this.#order++, run, isOff: false };
    this.#push(due);
    return {
      [Symbol.dispose]: () => {
        due.isOff = true;
      },
    };
  }

  every(ms: number, run: () => void): Disposable {
    let next = this.after(ms, again);
    const self = this;
    function again(): void {
      next = self.after(ms, again);
      run();
    }
    return { [Symbol.dispose]: () => next[Symbol.dispose]() };
  }

  moveTo(ms: number): void {
    while (this.#runNext(ms));
    this.#nowMs = Math.max(this.#nowMs, ms);
  }

  /** As `moveTo`. Tasks that wait for a timer run before the next timer. */
  async advanceTo(ms: number): Promise<void> {
    while (this.#runNext(ms)) {
      await null;
      await null;
    }
    this.#nowMs = Math.max(this.#nowMs, ms);
  }

  /** Fires the next timer, at its own time. False if none is due until `untilMs`. */
  #runNext(untilMs: number): boolean {
    const [next] = this.#due;
    if (next === undefined || next.atMs > untilMs) return false;
    this.#pop();
    this.#nowMs = Math.max(this.#nowMs, next.atMs);
    if (!next.isOff) next.run();
    return true;
  }

  #push(due: Due): void {
    let at = this.#due.push(due) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!isBefore(due, this.#due[parent]!)) break;
      this.#due[at] = this.#due[parent]!;
      at = parent;
    }
    this.#due[at] = due;
  }

  #pop(): void {
    const last = this.#due.pop()!;
    if (this.#due.length === 0) return;
    let at = 0;
    for (;;) {
      let child = at * 2 + 1;
      if (child >= this.#due.length) break;
      const right = child + 1;
      if (right < this.#due.length && isBefore(this.#due[right]!, this.#due[child]!)) child = right;
      if (!isBefore(this.#due[child]!, last)) break;
      this.#due[at] = this.#due[child]!;
      at = child;
    }
    this.#due[at] = last;
  }
}

function isBefore(a: Due, b: Due): boolean {
  return a.atMs < b.atMs || (a.atMs === b.atMs && a.order < b.order);
}
