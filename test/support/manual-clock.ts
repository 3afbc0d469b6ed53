import type { Clock } from "../../src/core/index.ts";

interface Timer {
  dueMs: number;
  readonly order: number;
  readonly everyMs: number | undefined;
  readonly run: () => void;
}

/**
 * A clock that stands still until a test moves it. Timers fire in the order in which they are due.
 */
export class ManualClock implements Clock {
  readonly #wallStartMs: number;
  readonly #timers = new Set<Timer>();
  #nowMs = 0;
  #wallJumpMs = 0;
  #created = 0;
  #bootStartMs = 5_000_000;
  #boots = 1;
  bootId = "boot-1";

  constructor(wallStartMs = 1_700_000_000_000) {
    this.#wallStartMs = wallStartMs;
  }

  monotonicMs(): number {
    return this.#nowMs;
  }

  wallMs(): number {
    return this.#wallStartMs + this.#wallJumpMs + this.#nowMs;
  }

  /** Advances with the monotonic clock, whatever the wall clock does. */
  bootMs(): number {
    return this.#bootStartMs + this.#nowMs;
  }

  /** As after a reboot: boot time starts over, under another name. */
  reboot(): void {
    this.bootId = `boot-${++this.#boots}`;
    this.#bootStartMs = -this.#nowMs;
  }

  after(ms: number, run: () => void): Disposable {
    return this.#add(ms, undefined, run);
  }

  every(ms: number, run: () => void): Disposable {
    return this.#add(ms, Math.max(ms, 1), run);
  }

  /** How many timers wait: zero after an orderly stop. */
  get pending(): number {
    return this.#timers.size;
  }

  /** Moves both clocks by `ms` and fires what becomes due, each at its own time. */
  advance(ms: number): void {
    const end = this.#nowMs + ms;
    for (let timer = this.#nextDue(end); timer !== undefined; timer = this.#nextDue(end)) {
      this.#nowMs = Math.max(this.#nowMs, timer.dueMs);
      if (timer.everyMs === undefined) this.#timers.delete(timer);
      else timer.dueMs = this.#nowMs + timer.everyMs;
      timer.run();
    }
    this.#nowMs = end;
  }

  /** As `advance`, in steps, letting promises settle after each of them. */
  async advanceAsync(ms: number, stepMs = ms): Promise<void> {
    for (let left = ms; left > 0; left -= stepMs) {
      this.advance(Math.min(left, stepMs));
      await new Promise((resolve) => setImmediate(resolve));
    }
  }

  /**
   * Advances in steps until `promise` settles, and returns its value. For deadlines that start only
   * after native threads have done something, which takes real time.
   */
  async advanceUntil<T>(promise: Promise<T>, stepMs: number): Promise<T> {
    let isPending = true;
    const settled = promise.finally(() => {
      isPending = false;
    });
    while (isPending) await this.advanceAsync(stepMs);
    return settled;
  }

  /** As a process that stood still for `ms`: what became due meanwhile fires once, late. */
  stall(ms: number): void {
    this.#nowMs += ms;
    for (const timer of [...this.#timers]) {
      if (timer.dueMs > this.#nowMs) continue;
      if (timer.everyMs === undefined) this.#timers.delete(timer);
      else timer.dueMs = this.#nowMs + timer.everyMs;
      timer.run();
    }
  }

  /** Moves the wall clock only, as an operator or NTP would. */
  jumpWall(ms: number): void {
    this.#wallJumpMs += ms;
  }

  #add(ms: number, everyMs: number | undefined, run: () => void): Disposable {
    const timer = { dueMs: this.#nowMs + Math.max(ms, 0), order: this.#created++, everyMs, run };
    this.#timers.add(timer);
    return { [Symbol.dispose]: () => void this.#timers.delete(timer) };
  }

  #nextDue(endMs: number): Timer | undefined {
    let next: Timer | undefined;
    for (const timer of this.#timers) {
      if (timer.dueMs > endMs) continue;
      const sooner = next === undefined || timer.dueMs < next.dueMs;
      if (sooner || (timer.dueMs === next?.dueMs && timer.order < next.order)) next = timer;
    }
    return next;
  }
}
