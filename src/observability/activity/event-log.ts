import type { Clock, HolderKind } from "../../core/index.ts";

const KEPT = 4_096;

/** Keeps the last 4,096 events in order and passes new ones to listeners. */
export class EventLog {
  readonly #clock: Clock;
  readonly #kept: NumberedEvent[] = [];
  readonly #listeners = new Set<(event: NumberedEvent) => void>();
  #last = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get last(): number {
    return this.#last;
  }

  emit(event: HearthEvent): void {
    const numbered = { sequence: ++this.#last, wallMs: this.#clock.wallMs(), event };
    this.#kept.push(numbered);
    // Removes events in bulk, so that the array is copied only once per thousands of events.
    if (this.#kept.length >= KEPT * 2) this.#kept.splice(0, KEPT);
    for (const listener of this.#listeners) listener(numbered);
  }

  /** Calls the listener for each event from now on. A listener must not throw. */
  listen(listener: (event: NumberedEvent) => void): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => this.#listeners.delete(listener) };
  }

  /** Returns at most `max` events whose numbers are above `after`. */
  page(after: number, max: number): EventPage {
    const first = Math.max(this.#last - Math.min(this.#kept.length, KEPT), 0);
    const from = Math.max(after, first);
    const at = this.#kept.length - (this.#last - from);
    const events = this.#kept.slice(at, at + max);
    return { events, last: this.#last, lost: Math.max(0, from - after) };
  }
}

/**
 * Events about pins, leases, blocks, commands and peers. They contain only values that JSON can
 * represent.
 */
export type HearthEvent =
  /** Pins left too little room for new blocks, so the pin of the lowest value was evicted. */
  | {
      readonly kind: "hold_relieved";
      readonly hold: HolderKind;
      readonly owner: string;
      readonly name: string | null;
      readonly blocks: number;
      readonly bytes: number;
      readonly tier: "ram" | "ssd";
      readonly why: string;
    }
  | {
      readonly kind: "hold_expired";
      readonly hold: HolderKind;
      readonly owner: string;
      readonly name: string | null;
      readonly blocks: number;
      /** Number of blocks removed from the host because nothing else retained them. */
      readonly purged: number;
    }
  /** Pinned or paused blocks were lost: unreadable, or missing after a restart of the agent. */
  | {
      readonly kind: "hold_lost";
      readonly hold: HolderKind;
      readonly owner: string;
      readonly name: string | null;
      readonly blocks: number;
      readonly why: string;
    }
  /** The peer failed and is not used for `cooldown_ms`. `peer_up`: the peer responds again. */
  | {
      readonly kind: "peer_down";
      readonly peer: string;
      readonly why: string;
      readonly cooldown_ms: number;
    }
  | { readonly kind: "peer_up"; readonly peer: string }
  /** One transport to the peer fails; other transports may work. */
  | {
      readonly kind: "peer_transport_down";
      readonly peer: string;
      readonly transport: string;
      readonly why: string;
      readonly cooldown_ms: number;
    }
  | { readonly kind: "peer_transport_up"; readonly peer: string; readonly transport: string }
  | { readonly kind: "peer_slow"; readonly peer: string; readonly after_ms: number }
  /** The peer sent data that did not match the request. `key`: the block's key in hex. */
  | {
      readonly kind: "peer_corrupt";
      readonly peer: string;
      readonly key: string;
      readonly why: string;
    }
  | { readonly kind: "peer_restarted" | "peer_came" | "peer_went"; readonly peer: string }
  | {
      readonly kind: "command";
      readonly type: string;
      readonly issuer: string;
      readonly id: string | null;
      readonly status: string;
      readonly blocks: number;
    };

export interface NumberedEvent {
  /** Number of the event. Starts at 1 and has no gaps within one run of the agent. */
  readonly sequence: number;
  /** Time of the event in milliseconds since 1970. */
  readonly wallMs: number;
  readonly event: HearthEvent;
}

/** An event as published over HTTP or NATS: its own members, its number and its time (UTC). */
export type PublishedEvent = { readonly sequence: number; readonly time: string } & HearthEvent;

export function publishedEvent({ sequence, wallMs, event }: NumberedEvent): PublishedEvent {
  return { sequence, time: new Date(wallMs).toISOString(), ...event };
}

/**
 * A page of events. `lost` is the number of events between `after` and the page's first event that
 * were discarded.
 */
export interface EventPage {
  readonly events: readonly NumberedEvent[];
  readonly last: number;
  readonly lost: number;
}
