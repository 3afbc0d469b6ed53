import { SimulatedClock } from "../../src/core/index.ts";

/** A simulated clock whose wall and boot time a test can change. */
export class ManualClock extends SimulatedClock {
  readonly #wallStartMs: number;
  #wallJumpMs = 0;
  #bootStartMs = 5_000_000;
  #boots = 1;
  override bootId = "boot-1";

  constructor(wallStartMs = 1_700_000_000_000) {
    super();
    this.#wallStartMs = wallStartMs;
  }

  override wallMs(): number {
    return this.#wallStartMs + this.#wallJumpMs + this.monotonicMs();
  }

  /** Advances with the monotonic clock, whatever the wall clock does. */
  override bootMs(): number {
    return this.#bootStartMs + this.monotonicMs();
  }

  /** As after a reboot: boot time starts over, under another name. */
  reboot(): void {
    this.bootId = `boot-${++this.#boots}`;
    this.#bootStartMs = -this.monotonicMs();
  }

  /** Moves both clocks by `ms` and fires what becomes due, each at its own time. */
  advance(ms: number): void {
    // The base class: a test may read the time with a delay.
    this.moveTo(super.monotonicMs() + ms);
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

  /** Moves the wall clock only, as an operator or NTP would. */
  jumpWall(ms: number): void {
    this.#wallJumpMs += ms;
  }
}
