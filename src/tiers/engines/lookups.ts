import type { Clock } from "../../core/index.ts";
import type { Lookup } from "./lookup.ts";

/** Period in which waiting lookups are checked and send heartbeats if nothing comes. */
export const HEARTBEAT_MS = 25;

/** The lookups of all connections that wait for blocks. */
export class Lookups {
  readonly #clock: Clock;
  readonly #waiting = new Set<Lookup>();
  #timer: Disposable | null = null;
  #isDue = false;
  /** Monotonic ms at which a block last came to RAM while something waited. */
  lastArrivalMs = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get size(): number {
    return this.#waiting.size;
  }

  add(lookup: Lookup): void {
    this.#waiting.add(lookup);
    this.#timer ??= this.#clock.every(HEARTBEAT_MS, () => this.#stepAll(true));
  }

  remove(lookup: Lookup): void {
    this.#waiting.delete(lookup);
    if (this.#waiting.size > 0) return;
    this.#timer?.[Symbol.dispose]();
    this.#timer = null;
  }

  /** A block came to RAM: what waits is looked at behind the change that brought it. */
  arrived(): void {
    if (this.#waiting.size === 0) return;
    this.lastArrivalMs = this.#clock.monotonicMs();
    if (this.#isDue) return;
    this.#isDue = true;
    queueMicrotask(() => {
      this.#isDue = false;
      this.#stepAll(false);
    });
  }

  #stepAll(isTick: boolean): void {
    for (const lookup of [...this.#waiting]) lookup.step(isTick);
  }
}
