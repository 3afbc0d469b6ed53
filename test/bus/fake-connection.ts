import type { BrokerConnection, Incoming, Outgoing } from "../../src/bus/index.ts";

/** A connection that records its messages and confirms only on request. */
export class FakeConnection implements BrokerConnection {
  readonly server = "fake";
  readonly durable = null;
  readonly payloadBytesMax: number;
  readonly published: Outgoing[] = [];
  readonly subscribed = new Map<string, (message: Incoming) => void>();
  readonly closed: Promise<string>;
  /** Pending confirmations: the number of published messages and its waiter. */
  readonly #asked: (() => void)[] = [];
  #resolveClosed: (why: string) => void = () => undefined;
  ended: string | null = null;

  constructor(payloadBytesMax = 1_000) {
    this.payloadBytesMax = payloadBytesMax;
    this.closed = new Promise((resolve) => {
      this.#resolveClosed = resolve;
    });
  }

  get asked(): number {
    return this.#asked.length;
  }

  publish(message: Outgoing): void {
    if (message.subject === "refused.by.client") throw new Error("no");
    this.published.push(message);
  }

  subscribe(
    subject: string,
    _queue: string | undefined,
    deliver: (message: Incoming) => void,
  ): () => void {
    this.subscribed.set(subject, deliver);
    return () => void this.subscribed.delete(subject);
  }

  confirm(): Promise<void> {
    return new Promise((resolve) => this.#asked.push(resolve));
  }

  /** Confirms everything requested so far. */
  answer(): void {
    for (const resolve of this.#asked.splice(0)) resolve();
  }

  end(why: string): void {
    this.ended ??= why;
    this.#resolveClosed(why);
  }
}
