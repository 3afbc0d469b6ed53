import type { Clock } from "../../../core/index.ts";

interface Timer {
  dueMs: number;
  readonly everyMs: number | null;
  readonly run: () => void;
}

/** Time of a simulation: it moves when it is told to. */
export class SimClock implements Clock {
  readonly bootId = "simulated";
  readonly #timers = new Set<Timer>();
  #nowMs = 0;

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
    return this.#add({ dueMs: this.#nowMs + Math.max(0, ms), everyMs: null, run });
  }

  every(ms: number, run: () => void): Disposable {
    return this.#add({ dueMs: this.#nowMs + ms, everyMs: ms, run });
  }

  /** Fires what is due by then, each at its own time; what waits for it goes on in between. */
  async advanceTo(ms: number): Promise<void> {
    for (let timer = this.#next(ms); timer !== null; timer = this.#next(ms)) {
      this.#nowMs = Math.max(this.#nowMs, timer.dueMs);
      if (timer.everyMs === null) this.#timers.delete(timer);
      else timer.dueMs = this.#nowMs + timer.everyMs;
      timer.run();
      await null;
      await null;
    }
    this.#nowMs = Math.max(this.#nowMs, ms);
  }

  #add(timer: Timer): Disposable {
    this.#timers.add(timer);
    return { [Symbol.dispose]: () => void this.#timers.delete(timer) };
  }

  /** Timers are kept in the order in which they were set: of equal ones the first. */
  #next(untilMs: number): Timer | null {
    let next: Timer | null = null;
    for (const timer of this.#timers) {
      if (timer.dueMs > untilMs) continue;
      if (next === null || timer.dueMs < next.dueMs) next = timer;
    }
    return next;
  }
}
