import type { Clock } from "../../core/index.ts";
import type { EventPage, HearthEvent, NumberedEvent } from "./events.ts";

const KEPT = 4_096;

/** Events in the order in which they happened: the last 4,096, for whoever asks or listens. */
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
    // Twice the room, so that one copy pays for thousands of events.
    if (this.#kept.length >= KEPT * 2) this.#kept.splice(0, KEPT);
    for (const listener of this.#listeners) listener(numbered);
  }

  /** Called for each event from now on; a listener must not throw. */
  listen(listener: (event: NumberedEvent) => void): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => this.#listeners.delete(listener) };
  }

  /** At most `max` events behind number `after`. */
  page(after: number, max: number): EventPage {
    const first = Math.max(this.#last - Math.min(this.#kept.length, KEPT), 0);
    const from = Math.max(after, first);
    const at = this.#kept.length - (this.#last - from);
    const events = this.#kept.slice(at, at + max);
    return { events, last: this.#last, lost: Math.max(0, from - after) };
  }
}
