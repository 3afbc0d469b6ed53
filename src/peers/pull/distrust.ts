import type { Clock, WorkerId } from "../../core/index.ts";

const KEPT_MAX = 4_096;
const FOR_MS = 600_000;

/** Who sent something else than a certain block is not asked for that block for ten minutes. */
export class Distrust {
  readonly #clock: Clock;
  /** In the order of their ends. */
  readonly #untilMs = new Map<string, number>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  add(worker: WorkerId, key: string): void {
    const name = `${key} ${worker}`;
    this.#untilMs.delete(name);
    this.#untilMs.set(name, this.#clock.monotonicMs() + FOR_MS);
    for (const [oldest, untilMs] of this.#untilMs) {
      if (this.#untilMs.size <= KEPT_MAX && untilMs > this.#clock.monotonicMs()) break;
      this.#untilMs.delete(oldest);
    }
  }

  /** So that nobody has to name a key where there is nothing to look up. */
  get empty(): boolean {
    return this.#untilMs.size === 0;
  }

  has(worker: WorkerId, key: string): boolean {
    if (this.empty) return false;
    const untilMs = this.#untilMs.get(`${key} ${worker}`);
    return untilMs !== undefined && untilMs > this.#clock.monotonicMs();
  }
}
