import { type Clock, messageOf } from "../core/index.ts";
import { type BusHandler, type BusLog, mayAnswerTo, type Subscription } from "./bus.ts";
import type { Incoming, Link } from "./connection.ts";

/** A handler that throws is told about this often at most: a flood of poison must not be one. */
const FAULT_LOG_MS = 10_000;

interface Entry {
  readonly subject: string;
  readonly queue: string | undefined;
  readonly deliver: (message: Incoming) => void;
  /** Ends it on the present link; null while there is none. */
  detach: (() => void) | null;
}

/** What is subscribed, whatever link there is: each new one gets them all. */
export class Subscriptions {
  readonly #clock: Clock;
  readonly #log: BusLog;
  readonly #replyPrefixes: readonly string[] | null;
  readonly #entries = new Set<Entry>();
  readonly #refused = new Set<string>();
  #link: Link | null = null;
  #faultsToldAtMs = Number.NEGATIVE_INFINITY;
  received = 0;
  faults = 0;

  constructor(clock: Clock, log: BusLog, replyPrefixes: readonly string[] | null) {
    this.#clock = clock;
    this.#log = log;
    this.#replyPrefixes = replyPrefixes;
  }

  get refused(): readonly string[] {
    return [...this.#refused];
  }

  add(subject: string, handler: BusHandler, queue?: string): Subscription {
    return this.#add(subject, queue, ({ status, ...message }) => {
      this.received++;
      const headers = status === 0 ? message.headers : { ...message.headers, Status: `${status}` };
      this.#handle(handler, { ...message, headers, reply: this.#replyOf(message) });
    });
  }

  /** For the bus itself: sees the status, counts nothing. */
  addInternal(subject: string, deliver: (message: Incoming) => void): Subscription {
    return this.#add(subject, undefined, deliver);
  }

  attach(link: Link): void {
    this.#link = link;
    for (const entry of this.#entries) this.#subscribe(link, entry);
  }

  detach(): void {
    this.#link = null;
    this.#refused.clear();
    for (const entry of this.#entries) entry.detach = null;
  }

  clear(): void {
    this.#entries.clear();
    this.detach();
  }

  #add(subject: string, queue: string | undefined, deliver: Entry["deliver"]): Subscription {
    const entry: Entry = { subject, queue, deliver, detach: null };
    this.#entries.add(entry);
    if (this.#link !== null) this.#subscribe(this.#link, entry);
    const unsubscribe = () => {
      this.#entries.delete(entry);
      entry.detach?.();
      entry.detach = null;
    };
    return { subject, unsubscribe };
  }

  #subscribe(link: Link, entry: Entry): void {
    const deliver = (message: Incoming) => {
      // What is still on its way when someone unsubscribes is theirs no more.
      if (this.#entries.has(entry)) entry.deliver(message);
    };
    entry.detach = link.subscribe(entry.subject, entry.queue, deliver, (why) => {
      if (this.#link !== link || !this.#entries.has(entry)) return;
      this.#refused.add(entry.subject);
      const fields = { subject: entry.subject, why };
      this.#log("warn", "the NATS server does not let us subscribe", fields);
    });
  }

  #replyOf({ reply }: Pick<Incoming, "reply">): string | null {
    const prefixes = this.#replyPrefixes;
    if (reply === null || prefixes === null) return reply;
    return mayAnswerTo(reply, prefixes) ? reply : null;
  }

  #handle(handler: BusHandler, message: Omit<Incoming, "status">): void {
    try {
      const result: unknown = handler(message);
      // An async function passes for a handler; what it rejects with must not end the process.
      if (result instanceof Promise) result.catch((thrown) => this.#fault(message, thrown));
    } catch (thrown) {
      this.#fault(message, thrown);
    }
  }

  #fault({ subject }: { readonly subject: string }, thrown: unknown): void {
    this.faults++;
    const nowMs = this.#clock.monotonicMs();
    if (nowMs - this.#faultsToldAtMs < FAULT_LOG_MS) return;
    this.#faultsToldAtMs = nowMs;
    const fields = { subject, why: messageOf(thrown), faults: this.faults };
    this.#log("warn", "a handler of NATS messages threw", fields);
  }
}
