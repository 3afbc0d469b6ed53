import {
  assert,
  type Clock,
  HearthError,
  messageOf,
  type Random,
  randomBelow,
  sleep,
} from "../core/index.ts";
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
import { Sender } from "./sender.ts";
import { Subscriptions } from "./subscriptions.ts";

/** A connection that lasted this long resets the delay before the next attempt. */
const GOOD_CONNECTION_MS = 10_000;

type Status = BusState["status"];

/**
 * A bus over one connection at a time; it dials a new one whenever the current one ends. The client
 * libraries' own reconnecting is not used: it discards its buffers, never notices a stalled server
 * while data waits, and gives up after two refusals in a row.
 */
export class ReconnectingBus implements Bus {
  readonly #dial: Dial;
  readonly #basics: BusBasics;
  readonly #limits: BusLimits;
  readonly #log: BusLog;
  readonly #id: string;
  readonly #sender: Sender;
  readonly #subscriptions: Subscriptions;
  readonly #requests: Requests;
  readonly #closing = new AbortController();
  readonly durable: DurableBus | null;
  readonly inboxPrefix: string;
  readonly #listeners = new Set<(state: BusState) => void>();
  /**
   * Called at every change of the connection or the queue. Each watcher checks its own condition.
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

  /** `isDurable`: whether the broker has JetStream. */
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
    this.#requests = new Requests(`${this.inboxPrefix}.${this.#id}`, this.#limits.requestsMax);
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
    options: RequestOptions,
  ): Promise<RequestOutcome> {
    if (options.signal?.aborted) throw new HearthError("ABORTED", "the request was aborted");
    if (this.#connection === null || this.#requests.isFull) return { kind: "unreachable" };
    if (!this.#hasInbox) {
      this.#hasInbox = true;
      const { pattern } = this.#requests;
      this.#subscriptions.addInternal(pattern, (message) => this.#requests.deliver(message));
    }
    const { reply, outcome } = this.#requests.open(this.#basics.clock, options);
    const { headers } = options;
    const published = this.publish(subject, data, headers ? { reply, headers } : { reply });
    if (published === "dropped") this.#requests.giveUp(reply);
    return outcome;
  }

  serve(spec: ServiceSpec): void {
    assert(!this.#isServing, "a bus serves one service");
    this.#isServing = true;
    answerDiscovery(this, spec, this.#id, this.#basics.clock, () => void this.#ignored++);
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
    this.#requests.giveUpAll();
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

  /** Null if dialling failed. Each distinct reason is logged once. */
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
   * Half to all of a delay that doubles with each failure, at random, so that a fleet does not
   * reconnect at once.
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
   * Resolves to true as soon as `condition` holds, to false after `ms` or when the bus is closed.
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

function uniqueName(random: Random): string {
  return Array.from({ length: 4 }, () => random.u32().toString(36)).join("");
}

interface Waiting {
  settle(outcome: RequestOutcome): void;
}

/**
 * Requests that wait for their replies. All use one inbox subject, each with its own last token.
 */
class Requests {
  readonly #inbox: string;
  readonly #max: number;
  readonly #waiting = new Map<string, Waiting>();
  #count = 0;

  /** `inbox`: a subject prefix that is unique to this process. */
  constructor(inbox: string, max: number) {
    this.#inbox = inbox;
    this.#max = max;
  }

  /** Subscription pattern for the replies. */
  get pattern(): string {
    return `${this.#inbox}.*`;
  }

  get isFull(): boolean {
    return this.#waiting.size >= this.#max;
  }

  /** Registers a request. Returns its reply subject and a promise of its outcome. */
  open(clock: Clock, options: RequestOptions): { reply: string; outcome: Promise<RequestOutcome> } {
    const token = (++this.#count).toString(36);
    const outcome = new Promise<RequestOutcome>((resolve, reject) => {
      const end = () => {
        this.#waiting.delete(token);
        timer[Symbol.dispose]();
        options.signal?.removeEventListener("abort", onAbort);
      };
      const onAbort = () => {
        end();
        reject(new HearthError("ABORTED", "the request was aborted"));
      };
      const settle = (settled: RequestOutcome) => {
        end();
        resolve(settled);
      };
      const timer = clock.after(options.timeoutMs, () => settle({ kind: "timeout" }));
      options.signal?.addEventListener("abort", onAbort, { once: true });
      this.#waiting.set(token, { settle });
    });
    return { reply: `${this.#inbox}.${token}`, outcome };
  }

  /** Delivers a reply. A reply without a waiting request is ignored. */
  deliver({ status, ...message }: Incoming): void {
    const waiting = this.#waiting.get(message.subject.slice(this.#inbox.length + 1));
    if (waiting === undefined) return;
    if (status === 503) waiting.settle({ kind: "noResponders" });
    else waiting.settle({ kind: "reply", message: message satisfies BusMessage });
  }

  /** Ends a request as unreachable. */
  giveUp(reply: string): void {
    this.#waiting.get(reply.slice(this.#inbox.length + 1))?.settle({ kind: "unreachable" });
  }

  giveUpAll(): void {
    for (const waiting of [...this.#waiting.values()]) waiting.settle({ kind: "unreachable" });
  }
}
