import { type Clock, messageOf } from "../core/index.ts";
import { type BusHandler, type BusLog, mayAnswerTo, type Subscription } from "./bus.ts";
import type { BrokerConnection, Incoming } from "./connection.ts";

/**
 * Minimum interval between log lines about failing handlers, so that bad messages cannot flood the
 * log.
 */
const FAULT_LOG_MS = 10_000;

interface Entry {
  readonly subject: string;
  readonly queue: string | undefined;
  readonly deliver: (message: Incoming) => void;
  /** Ends the subscription on the current connection. Null while disconnected. */
  detach: (() => void) | null;
}

/** The subscriptions of a bus. Each new connection receives all of them. */
export class Subscriptions {
  readonly #clock: Clock;
  readonly #log: BusLog;
  readonly #replyPrefixes: readonly string[] | null;
  readonly #entries = new Set<Entry>();
  readonly #refused = new Set<string>();
  #connection: BrokerConnection | null = null;
  #faultsLoggedAtMs = Number.NEGATIVE_INFINITY;
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

  /** Subscription of the bus itself: it receives the status and is not counted. */
  addInternal(subject: string, deliver: (message: Incoming) => void): Subscription {
    return this.#add(subject, undefined, deliver);
  }

  attach(connection: BrokerConnection): void {
    this.#connection = connection;
    for (const entry of this.#entries) this.#subscribe(connection, entry);
  }

  detach(): void {
    this.#connection = null;
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
    if (this.#connection !== null) this.#subscribe(this.#connection, entry);
    const unsubscribe = () => {
      this.#entries.delete(entry);
      entry.detach?.();
      entry.detach = null;
    };
    return { subject, unsubscribe };
  }

  #subscribe(connection: BrokerConnection, entry: Entry): void {
    const deliver = (message: Incoming) => {
      // A message may still be in transit after its subscription has ended.
      if (this.#entries.has(entry)) entry.deliver(message);
    };
    entry.detach = connection.subscribe(entry.subject, entry.queue, deliver, (why) => {
      if (this.#connection !== connection || !this.#entries.has(entry)) return;
      this.#refused.add(entry.subject);
      const fields = { subject: entry.subject, why };
      this.#log("warn", "NATS subscription refused", fields);
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
      // TypeScript accepts an async function as a handler; its rejection must not end the process.
      if (result instanceof Promise) result.catch((thrown) => this.#fault(message, thrown));
    } catch (thrown) {
      this.#fault(message, thrown);
    }
  }

  #fault({ subject }: { readonly subject: string }, thrown: unknown): void {
    this.faults++;
    const nowMs = this.#clock.monotonicMs();
    if (nowMs - this.#faultsLoggedAtMs < FAULT_LOG_MS) return;
    this.#faultsLoggedAtMs = nowMs;
    const fields = { subject, why: messageOf(thrown), faults: this.faults };
    this.#log("warn", "NATS message handler threw", fields);
  }
}
