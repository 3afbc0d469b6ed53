import { HearthError, yieldToLoop } from "../core/index.ts";
import { type Bus, type BusBasics, matches } from "./bus.ts";
import {
  type BrokerConnection,
  type Dial,
  type Incoming,
  messageBytes,
  type Outgoing,
} from "./connection.ts";
import { ReconnectingBus } from "./reconnecting-bus.ts";

/** Messages delivered in one turn of the event loop. */
const SLICE = 1_024;

interface LocalSubscription {
  readonly connection: LocalConnection;
  readonly subject: string;
  readonly queue: string | undefined;
  readonly deliver: (message: Incoming) => void;
}

/**
 * A broker inside the process. A message published on one connection is delivered to the matching
 * subscriptions of all connections.
 */
export class LocalHub {
  readonly #connections = new Set<LocalConnection>();
  readonly #subscriptions = new Set<LocalSubscription>();
  readonly payloadBytesMax: number;
  #waiting: (() => void)[] = [];
  #isDelivering = false;
  #isDown = false;
  #turn = 0;

  constructor(payloadBytesMax = 2 ** 20) {
    this.payloadBytesMax = payloadBytesMax;
  }

  /** Simulates a broker failure: all connections break and new ones are refused until `comeUp`. */
  goDown(): void {
    this.#isDown = true;
    this.#waiting = [];
    for (const connection of [...this.#connections]) connection.end("the hub is down");
  }

  comeUp(): void {
    this.#isDown = false;
  }

  /** @internal */
  readonly dial: Dial = async () => {
    if (this.#isDown) throw new HearthError("ABORTED", "the hub is down");
    const connection = new LocalConnection(this);
    this.#connections.add(connection);
    return connection;
  };

  /** @internal */
  leave(connection: LocalConnection): void {
    this.#connections.delete(connection);
    for (const entry of this.#subscriptions) {
      if (entry.connection === connection) this.#subscriptions.delete(entry);
    }
  }

  /** @internal */
  subscribe(entry: LocalSubscription): () => void {
    this.#subscriptions.add(entry);
    return () => void this.#subscriptions.delete(entry);
  }

  /** @internal */
  publish(message: Outgoing): void {
    const receivers = this.#receivers(message.subject);
    if (receivers.length === 0 && message.reply !== null) {
      const answer = { subject: message.reply, data: new Uint8Array(), reply: null, headers: null };
      for (const receiver of this.#receivers(message.reply)) this.#hand(receiver, answer, 503);
    }
    for (const receiver of receivers) this.#hand(receiver, message, 0);
  }

  /** Calls `run` once all messages published so far are delivered. */
  afterDelivery(run: () => void): void {
    this.#waiting.push(run);
    void this.#deliver();
  }

  #receivers(subject: string): LocalSubscription[] {
    const all = [...this.#subscriptions].filter((entry) => matches(entry.subject, subject));
    const chosen = all.filter(({ queue }) => queue === undefined);
    for (const queue of new Set(all.map((entry) => entry.queue))) {
      if (queue === undefined) continue;
      const members = all.filter((entry) => entry.queue === queue);
      chosen.push(members[this.#turn++ % members.length]);
    }
    return chosen;
  }

  #hand(receiver: LocalSubscription, message: Outgoing, status: number): void {
    const { subject, reply } = message;
    // Each receiver gets its own copy, because it may change the data.
    const data = message.data.slice();
    const headers = { ...message.headers };
    this.#waiting.push(() => {
      if (this.#subscriptions.has(receiver)) {
        receiver.deliver({ subject, reply, headers, data, status });
      }
    });
    void this.#deliver();
  }

  async #deliver(): Promise<void> {
    if (this.#isDelivering) return;
    this.#isDelivering = true;
    // Deliver asynchronously, as a network does, never during the call of `publish`.
    await Promise.resolve();
    for (let count = 1; this.#waiting.length > 0; ) {
      const batch = this.#waiting;
      this.#waiting = [];
      for (const run of batch) {
        run();
        if (count++ % SLICE === 0) await yieldToLoop();
      }
    }
    this.#isDelivering = false;
  }
}

class LocalConnection implements BrokerConnection {
  readonly #hub: LocalHub;
  readonly server = null;
  readonly durable = null;
  readonly closed: Promise<string>;
  #resolveClosed: (why: string) => void = () => undefined;
  #isOver = false;

  constructor(hub: LocalHub) {
    this.#hub = hub;
    this.closed = new Promise((resolve) => {
      this.#resolveClosed = resolve;
    });
  }

  get payloadBytesMax(): number {
    return this.#hub.payloadBytesMax;
  }

  publish(message: Outgoing): void {
    if (this.#isOver) return;
    if (messageBytes(message) <= this.payloadBytesMax) this.#hub.publish(message);
  }

  subscribe(
    subject: string,
    queue: string | undefined,
    deliver: (message: Incoming) => void,
  ): () => void {
    return this.#hub.subscribe({ connection: this, subject, queue, deliver });
  }

  confirm(): Promise<void> {
    return new Promise((resolve) => this.#hub.afterDelivery(resolve));
  }

  end(why: string): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#hub.leave(this);
    this.#resolveClosed(why);
  }
}

/**
 * Creates a bus inside this process. It keeps every promise of `Bus` without a broker. Buses of the
 * same hub exchange messages.
 */
export function createLocalBus(hub: LocalHub, basics: BusBasics): Bus {
  return new ReconnectingBus(hub.dial, basics, { isDurable: false });
}
