import { assert, type Clock, messageOf, type Random, randomBelow, sleep } from "../core/index.ts";
import {
  BUS_LIMITS,
  type Bus,
  type BusBasics,
  type BusHandler,
  type BusLimits,
  type BusLog,
  type BusMessage,
  type BusState,
  type DurableBus,
  INBOX_PREFIX,
  isPattern,
  mayAnswerTo,
  type PublishOptions,
  type PublishOutcome,
  type RequestOptions,
  type RequestOutcome,
  type ServiceSpec,
  type Subscription,
} from "./bus.ts";
import type { BrokerConnection, Dial, Incoming } from "./connection.ts";
import { answerDiscovery } from "./discovery.ts";
import { BrokerDurableBus } from "./durable-bus.ts";
import { abortFault, hasNoResponders, Inbox } from "./inbox.ts";
import { Sender } from "./sender.ts";

/** Ms that a connection must last to reset the delay before the next attempt. */
const GOOD_CONNECTION_MS = 10_000;

type Status = BusState["status"];

/**
 * A bus over one connection at a time. It opens a new one whenever the current one ends. The client
 * libraries' own reconnecting is not used: it discards their buffers, does not detect a stalled
 * server while data waits, and gives up after two refusals in a row.
 */
export class ReconnectingBus implements Bus {
  readonly #dial: Dial;
  readonly #basics: BusBasics;
  readonly #limits: BusLimits;
  readonly #log: BusLog;
  readonly #id: string;
  readonly #sender: Sender;
  readonly #subscriptions: Subscriptions;
  readonly #inbox: Inbox;
  readonly #closing = new AbortController();
  readonly durable: DurableBus | null;
  readonly inboxPrefix: string;
  readonly #listeners = new Set<(state: BusState) => void>();
  /**
   * Called at every change of the connection or the queue. Each watcher then checks its own
   * condition.
   */
  readonly #watchers = new Set<() => void>();
  #connection: BrokerConnection | null = null;
  #status: Status = "connecting";
  #why: string | null = "not attempted yet";
  #reconnects = 0;
  #ignored = 0;
  #hasInbox = false;
  #isServing = false;
  #isClosed = false;

  /** `isDurable`: true if the broker has JetStream. */
  constructor(dial: Dial, basics: BusBasics, { isDurable }: { readonly isDurable: boolean }) {
    this.#dial = dial;
    this.#basics = basics;
    this.#limits = { ...BUS_LIMITS, ...basics.limits };
    this.#log = basics.log ?? (() => undefined);
    this.#id = uniqueName(basics.random);
    this.#sender = new Sender(basics.clock, this.#limits, this.#log);
    this.inboxPrefix = basics.inboxPrefix ?? INBOX_PREFIX;
    const replyPrefixes = basics.replyPrefixes ?? null;
    this.#subscriptions = new Subscriptions(basics.clock, this.#log, replyPrefixes);
    this.#inbox = new Inbox(`${this.inboxPrefix}.${this.#id}`, basics.clock);
    this.#sender.onEmpty = () => this.#changed();
    this.durable = isDurable
      ? new BrokerDurableBus({
          clock: basics.clock,
          log: this.#log,
          closing: this.#closing.signal,
          connection: () => this.#connection,
        })
      : null;
    void this.#run();
  }

  get state(): BusState {
    return {
      status: this.#status,
      server: this.#connection?.server ?? null,
      why: this.#why,
      reconnects: this.#reconnects,
      queuedMessages: this.#sender.queuedMessages,
      queuedBytes: this.#sender.queuedBytes,
      sentMessages: this.#sender.sent,
      receivedMessages: this.#subscriptions.received,
      ignoredMessages: this.#ignored,
      droppedMessages: this.#sender.dropped,
      doubtfulMessages: this.#sender.doubtful,
      handlerFaults: this.#subscriptions.faults,
      refusedSubjects: this.#subscriptions.refused,
    };
  }

  get payloadBytesMax(): number {
    return this.#sender.payloadBytesMax;
  }

  publish(subject: string, data: Uint8Array, options: PublishOptions = {}): PublishOutcome {
    const { reply = null, headers = null, isSpare = false } = options;
    if (this.#isClosed) {
      this.#sender.dropped++;
      return "dropped";
    }
    return this.#sender.publish({ subject, data, reply, headers }, isSpare);
  }

  subscribe(subject: string, handler: BusHandler, queue?: string): Subscription {
    assert(isPattern(subject), `${JSON.stringify(subject.slice(0, 100))} can be subscribed`);
    if (this.#isClosed) return { subject, unsubscribe: () => undefined };
    return this.#subscriptions.add(subject, handler, queue);
  }

  async request(
    subject: string,
    data: Uint8Array,
    { timeoutMs, headers, signal }: RequestOptions,
  ): Promise<RequestOutcome> {
    if (signal?.aborted) throw abortFault(signal);
    const isFull = this.#inbox.size >= this.#limits.requestsMax;
    if (this.#connection === null || isFull) return { kind: "unreachable" };
    if (!this.#hasInbox) {
      this.#hasInbox = true;
      this.#subscriptions.addInternal(this.#inbox.pattern, (message) =>
        this.#inbox.deliver(withStatus(message)),
      );
    }
    using mailbox = this.#inbox.open();
    const options = { reply: mailbox.subject, ...(headers === undefined ? {} : { headers }) };
    if (this.publish(subject, data, options) === "dropped") return { kind: "unreachable" };
    try {
      const message = await mailbox.next(timeoutMs, signal);
      if (message === null) return { kind: "timeout" };
      return hasNoResponders(message) ? { kind: "noResponders" } : { kind: "reply", message };
    } catch (thrown) {
      if (this.#isClosed) return { kind: "unreachable" };
      throw thrown;
    }
  }

  serve(spec: ServiceSpec): void {
    assert(!this.#isServing, "a bus serves one service");
    this.#isServing = true;
    const { clock } = this.#basics;
    const served = spec.endpoints.map(({ name, subject, handler }) => {
      const own = { name, subject, requests: 0, faults: 0, totalMs: 0 };
      this.subscribe(subject, (message) => {
        const startedMs = clock.monotonicMs();
        own.requests++;
        try {
          handler(message);
        } catch (thrown) {
          own.faults++;
          throw thrown;
        } finally {
          own.totalMs += clock.monotonicMs() - startedMs;
        }
      });
      return own;
    });
    answerDiscovery(this, spec, this.#id, served, clock, () => void this.#ignored++);
  }

  onStatus(listener: (state: BusState) => void): Disposable {
    this.#listeners.add(listener);
    return { [Symbol.dispose]: () => void this.#listeners.delete(listener) };
  }

  connected(ms: number): Promise<boolean> {
    return this.#until(() => this.#connection !== null, ms);
  }

  async flush(ms: number): Promise<boolean> {
    const { clock } = this.#basics;
    const deadlineMs = clock.monotonicMs() + ms;
    const isHandedOver = () => this.#connection !== null && this.#sender.queuedMessages === 0;
    if (!(await this.#until(isHandedOver, ms)) || this.#connection === null) return false;
    let isConfirmed = false;
    const connection = this.#connection;
    connection.confirm().then(
      () => {
        isConfirmed = true;
        this.#changed();
      },
      () => undefined,
    );
    const isSettled = () => isConfirmed || this.#connection !== connection;
    await this.#until(isSettled, Math.max(0, deadlineMs - clock.monotonicMs()));
    return isConfirmed;
  }

  async close(ms: number): Promise<void> {
    if (this.#isClosed) return;
    this.#isClosed = true;
    if (this.#connection !== null || this.#sender.queuedMessages > 0) await this.flush(ms);
    this.#closing.abort();
    const connection = this.#connection;
    this.#connection = null;
    this.#subscriptions.clear();
    this.#sender.close();
    this.#inbox[Symbol.dispose]();
    connection?.end("closed by this process");
    this.#set("closed", "closed");
    this.#listeners.clear();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close(1_000);
  }

  async #run(): Promise<void> {
    const { clock } = this.#basics;
    const { signal } = this.#closing;
    let failures = 0;
    while (!signal.aborted) {
      const connection = await this.#tryDial(failures);
      if (signal.aborted) return connection?.end("closed by this process");
      if (connection === null) failures++;
      else {
        const sinceMs = clock.monotonicMs();
        this.#adopt(connection);
        this.#abandon(connection, await connection.closed);
        failures = clock.monotonicMs() - sinceMs >= GOOD_CONNECTION_MS ? 0 : failures + 1;
      }
      await sleep(clock, this.#waitMs(failures), signal).catch(() => undefined);
    }
  }

  /** Tries to connect once. Returns null on failure. Each distinct reason is logged once. */
  async #tryDial(failures: number): Promise<BrokerConnection | null> {
    try {
      return await this.#dial(this.#closing.signal);
    } catch (thrown) {
      const why = messageOf(thrown);
      if (this.#closing.signal.aborted) return null;
      if (failures === 0 || why !== this.#why) {
        this.#log("warn", "NATS connection failed, retrying", { why });
      }
      this.#why = why;
      return null;
    }
  }

  #adopt(connection: BrokerConnection): void {
    this.#connection = connection;
    if (this.#status !== "connecting") this.#reconnects++;
    this.#subscriptions.attach(connection);
    this.#sender.attach(connection);
    const { server } = connection;
    if (server === null) this.#log("info", "NATS disabled: messages stay in this process", {});
    else this.#log("info", "NATS connected", { server });
    this.#set("connected", null);
  }

  #abandon(connection: BrokerConnection, why: string): void {
    if (this.#connection !== connection) return;
    this.#connection = null;
    this.#subscriptions.detach();
    const unconfirmed = this.#sender.detach();
    this.#log("warn", "NATS connection lost, reconnecting", { why, unconfirmed });
    this.#set("reconnecting", why);
  }

  /**
   * Returns the delay before the next attempt. It doubles with each failure; a random part of up to
   * half prevents all processes from reconnecting at the same time.
   */
  #waitMs(failures: number): number {
    const { retryMinMs, retryMaxMs } = this.#limits;
    const wholeMs = Math.min(retryMaxMs, retryMinMs * 2 ** Math.min(30, Math.max(0, failures - 1)));
    return wholeMs / 2 + randomBelow(this.#basics.random, Math.ceil(wholeMs / 2) + 1);
  }

  #set(status: Status, why: string | null): void {
    this.#why = why;
    const isNew = status !== this.#status;
    this.#status = status;
    this.#changed();
    if (!isNew) return;
    for (const listener of [...this.#listeners]) {
      try {
        listener(this.state);
      } catch (thrown) {
        this.#log("warn", "NATS status listener threw", { why: messageOf(thrown) });
      }
    }
  }

  #changed(): void {
    for (const watcher of [...this.#watchers]) watcher();
  }

  /**
   * Waits for a condition. Resolves to true as soon as it holds, to false after `ms` or when the
   * bus is closed.
   */
  #until(condition: () => boolean, ms: number): Promise<boolean> {
    return new Promise((resolve) => {
      const end = (holds: boolean) => {
        this.#watchers.delete(watcher);
        timer?.[Symbol.dispose]();
        resolve(holds);
      };
      let timer: Disposable | null = null;
      const watcher = () => {
        if (condition()) end(true);
        else if (this.#status === "closed") end(false);
      };
      this.#watchers.add(watcher);
      watcher();
      if (!this.#watchers.has(watcher)) return;
      if (ms <= 0) end(false);
      else timer = this.#basics.clock.after(ms, () => end(condition()));
    });
  }
}

/** Returns the message with its status number, if it has one, as a header. */
function withStatus({ status, ...message }: Incoming): BusMessage {
  if (status === 0) return message;
  return { ...message, headers: { ...message.headers, Status: `${status}` } };
}

function uniqueName(random: Random): string {
  return Array.from({ length: 4 }, () => random.u32().toString(36)).join("");
}

/**
 * Minimum ms between log lines about failing handlers, so that bad messages cannot flood the log.
 */
const FAULT_LOG_MS = 10_000;

interface Entry {
  readonly subject: string;
  readonly queue: string | undefined;
  readonly deliver: (message: Incoming) => void;
  /** Ends the subscription on the current connection. Null while the bus is disconnected. */
  detach: (() => void) | null;
}

/** The subscriptions of a bus. Each new connection gets all of them. */
class Subscriptions {
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
    return this.#add(subject, queue, (incoming) => {
      this.received++;
      const message = withStatus(incoming);
      this.#handle(handler, { ...message, reply: this.#replyOf(message) });
    });
  }

  /**
   * Adds a subscription of the bus itself. It receives the status number and does not count as a
   * subscription of the user.
   */
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
      // A message may still arrive after its subscription has ended; such a message is ignored.
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
      // TypeScript accepts an async function as handler. Its rejection must not end the process.
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
