import type { Clock, WorkerId } from "../../core/index.ts";
import type { AffinitySettings } from "../settings.ts";

interface Place {
  readonly worker: WorkerId;
  readonly rank: number;
  readonly untilMs: number;
}

/** Longer names of sessions are not remembered. */
const NAME_MAX = 512;

/** Where each session went last; those not heard of for the longest are forgotten first. */
export class Affinity {
  readonly #clock: Clock;
  readonly #settings: AffinitySettings;
  readonly #places = new Map<string, Place>();

  constructor(clock: Clock, settings: AffinitySettings) {
    this.#clock = clock;
    this.#settings = settings;
  }

  get sessions(): number {
    return this.#places.size;
  }

  find(session: string): Place | null {
    const place = this.#places.get(session);
    if (place === undefined) return null;
    if (place.untilMs > this.#clock.monotonicMs()) return place;
    this.#places.delete(session);
    return null;
  }

  remember(session: string, worker: WorkerId, rank: number): void {
    const { ttlMs, sessionsMax } = this.#settings;
    if (ttlMs <= 0 || sessionsMax <= 0 || session.length > NAME_MAX) return;
    this.#places.delete(session);
    if (this.#places.size >= sessionsMax) this.#places.delete(this.#places.keys().next().value!);
    this.#places.set(session, { worker, rank, untilMs: this.#clock.monotonicMs() + ttlMs });
  }
}
