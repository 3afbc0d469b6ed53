import { type Clock, yieldToLoop } from "../core/index.ts";
import type { SlotAllocator } from "./blocks/index.ts";
import type { Sessions } from "./pins/index.ts";
import type { RamTier } from "./ram-tier.ts";
import type { StoreStats } from "./stats.ts";

/** Shares of the arena: above `high` the walk begins, at `low` it stops. */
export interface WaterMarks {
  readonly high: number;
  readonly low: number;
}

/** Blocks dropped before other work gets its turn: a fraction of a millisecond. */
const DROPS_A_SLICE = 128;

/**
 * Keeps room free in the background: looks at least every `intervalMs`, and at once when woken by a
 * writer that found the arena above its high-water mark.
 */
export class Evictor implements AsyncDisposable {
  readonly #ram: RamTier;
  readonly #slots: SlotAllocator;
  readonly #stats: StoreStats;
  readonly #clock: Clock;
  readonly #sessions: Sessions;
  #marks: WaterMarks;
  #timer: Disposable | null = null;
  #walk: Promise<void> | null = null;
  #stopped = false;
  #growthOver = false;

  constructor(
    parts: {
      ram: RamTier;
      slots: SlotAllocator;
      stats: StoreStats;
      clock: Clock;
      sessions: Sessions;
    },
    marks: WaterMarks,
  ) {
    this.#ram = parts.ram;
    this.#slots = parts.slots;
    this.#stats = parts.stats;
    this.#clock = parts.clock;
    this.#sessions = parts.sessions;
    this.#marks = marks;
  }

  start(intervalMs: number): void {
    this.#timer?.[Symbol.dispose]();
    this.#timer = this.#clock.every(intervalMs, () => {
      this.#sessions.endIdle();
      this.wake();
    });
  }

  setMarks(marks: WaterMarks): void {
    this.#marks = marks;
    this.wake();
  }

  /** No more memory will come: what is ready is all there is. */
  growthIsOver(): void {
    this.#growthOver = true;
  }

  /** Begins a walk where the arena is above the mark and none is under way. */
  wake(): void {
    if (this.#walk !== null || this.#stopped || !this.#above(this.#marks.high)) return;
    this.#stats.evictionRuns++;
    this.#walk = this.#run().finally(() => {
      this.#walk = null;
    });
  }

  /** Memory that is still to come is no reason to drop anything. */
  #above(share: number): boolean {
    const { usedBytes, readyBytes, arenaBytes } = this.#slots;
    const grown = this.#growthOver || readyBytes === arenaBytes;
    return grown && usedBytes - this.#ram.leavingBytes > share * readyBytes;
  }

  async #run(): Promise<void> {
    while (!this.#stopped) {
      for (let i = 0; i < DROPS_A_SLICE; i++) {
        if (!this.#above(this.#marks.low) || this.#ram.dropOne() === "none") return;
      }
      await yieldToLoop();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopped = true;
    this.#timer?.[Symbol.dispose]();
    await this.#walk;
  }
}
