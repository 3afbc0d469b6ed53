import type { Clock } from "../../core/index.ts";
import type { Link } from "./link.ts";

export interface InFlightLimits {
  /** So many bytes may be on their way without a sign that the broker has them. */
  readonly windowBytes: number;
  /** How often a silent link is asked for a sign of life. */
  readonly pingMs: number;
  /** How long the answer may take before the link counts as dead. */
  readonly silenceMs: number;
}

/**
 * What was handed to one link and not confirmed yet. Client libraries and kernels buffer without
 * bounds towards a peer that stands still; this bounds it, and finds such a peer out.
 */
export class InFlight implements Disposable {
  readonly #link: Link;
  readonly #clock: Clock;
  readonly #limits: InFlightLimits;
  readonly #onRoom: () => void;
  readonly #timer: Disposable;
  #messages = 0;
  #bytes = 0;
  #askedAtMs: number | null = null;

  /** `onRoom`: some of it was confirmed. */
  constructor(link: Link, clock: Clock, limits: InFlightLimits, onRoom: () => void) {
    this.#link = link;
    this.#clock = clock;
    this.#limits = limits;
    this.#onRoom = onRoom;
    this.#timer = clock.every(limits.pingMs, () => this.#tick());
  }

  /** Messages that nobody confirmed so far. */
  get messages(): number {
    return this.#messages;
  }

  get isFull(): boolean {
    return this.#bytes >= this.#limits.windowBytes;
  }

  add(bytes: number): void {
    this.#messages++;
    this.#bytes += bytes;
    if (this.#bytes >= this.#limits.windowBytes / 4) this.#ask();
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
  }

  #tick(): void {
    if (this.#askedAtMs === null) {
      this.#ask();
      return;
    }
    const silentMs = this.#clock.monotonicMs() - this.#askedAtMs;
    if (silentMs < this.#limits.silenceMs) return;
    this.#link.end(`no sign of life for ${Math.round(silentMs / 1_000)} s`);
  }

  #ask(): void {
    if (this.#askedAtMs !== null) return;
    const messages = this.#messages;
    const bytes = this.#bytes;
    this.#askedAtMs = this.#clock.monotonicMs();
    this.#link.confirm().then(
      () => {
        this.#askedAtMs = null;
        this.#messages -= messages;
        this.#bytes -= bytes;
        if (this.#bytes >= this.#limits.windowBytes / 4) this.#ask();
        this.#onRoom();
      },
      // The link is over, which `closed` says as well.
      () => undefined,
    );
  }
}
