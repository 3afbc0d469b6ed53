import type { Clock, WorkerId } from "../core/index.ts";

const FIRST_MS = 1_000;
const LONGEST_MS = 30_000;
const WORKERS_MAX = 4_096;

interface Down {
  readonly untilMs: number;
  readonly forMs: number;
}

/**
 * Workers that could not be connected to: left alone for a second, then for twice as long each time
 * they fail again, up to half a minute.
 */
export class DownWorkers {
  readonly #clock: Clock;
  readonly #down = new Map<WorkerId, Down>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  failed(worker: WorkerId): void {
    const nowMs = this.#clock.monotonicMs();
    const before = this.#down.get(worker);
    if (before !== undefined && before.untilMs > nowMs) return;
    const forMs = before === undefined ? FIRST_MS : Math.min(before.forMs * 2, LONGEST_MS);
    if (before === undefined && this.#down.size >= WORKERS_MAX) this.#forgetOldest();
    this.#down.set(worker, { untilMs: nowMs + forMs, forMs });
  }

  worked(worker: WorkerId): void {
    this.#down.delete(worker);
  }

  /** Those to leave alone now. */
  now(): WorkerId[] {
    if (this.#down.size === 0) return [];
    const nowMs = this.#clock.monotonicMs();
    return [...this.#down].flatMap(([worker, { untilMs }]) => (untilMs > nowMs ? [worker] : []));
  }

  #forgetOldest(): void {
    const [oldest] = this.#down.keys();
    if (oldest !== undefined) this.#down.delete(oldest);
  }
}
