import { type Clock, messageOf, sleep } from "../../core/index.ts";
import type {
  Bucket,
  BucketRead,
  BucketWrite,
  ConsumeOptions,
  Consumption,
  ConsumptionState,
  DurableBus,
  DurableOutcome,
  DurablePublishOptions,
  KeptMessage,
  ObjectStore,
} from "../durable.ts";
import type { BusLog } from "../options.ts";
import type { Link } from "./link.ts";
import {
  type LinkBucket,
  type LinkDurable,
  SILENCE_MS,
  type StreamMessage,
  type StreamMessages,
} from "./link-durable.ts";
import { LinkObjectStore } from "./link-objects.ts";
import { refusal } from "./refusal.ts";

/** How long a stream that is not there, or a connection that is not, is waited for at a time. */
const RETRY_MS = 2_000;
/** How long a message that was not handled waits, and how long at most after several times. */
const AGAIN_MS = 1_000;
const AGAIN_MS_MAX = 30_000;
/** Signs that a message is at work, of which some may be lost or late. */
const SIGNS = 4;

export interface DurableParts {
  readonly clock: Clock;
  readonly log: BusLog;
  /** Aborted when the bus closes. */
  readonly closing: AbortSignal;
  /** Of the present link; null while there is none. */
  link(): Link | null;
}

/** The durable side of a bus: over whatever link there is at the moment. */
export class LinkDurableBus implements DurableBus {
  readonly #parts: DurableParts;

  constructor(parts: DurableParts) {
    this.#parts = parts;
  }

  async publish(
    subject: string,
    data: Uint8Array,
    options: DurablePublishOptions,
  ): Promise<DurableOutcome> {
    const link = this.#parts.link()?.durable ?? null;
    if (link === null) return { kind: "unreachable" };
    try {
      const { duplicate, sequence } = await link.publish(subject, data, options);
      return { kind: "acknowledged", duplicate, sequence };
    } catch (thrown) {
      return refusal(thrown);
    }
  }

  consume(options: ConsumeOptions, handle: (message: KeptMessage) => Promise<void>): Consumption {
    return new LinkConsumption(this.#parts, options, handle);
  }

  objects(bucket: string): ObjectStore {
    return new LinkObjectStore(this.#parts, bucket);
  }

  async purge(stream: string, subject: string, upTo: number): Promise<BucketWrite> {
    const link = this.#parts.link()?.durable ?? null;
    if (link === null) return { kind: "unreachable" };
    try {
      await link.purge(stream, subject, upTo);
      return { kind: "done" };
    } catch (thrown) {
      return refusal(thrown);
    }
  }

  bucket(name: string): Bucket {
    const onBucket = async <Result>(use: (bucket: LinkBucket) => Promise<Result>) => {
      const link = this.#parts.link()?.durable ?? null;
      return link === null ? null : use(await link.bucket(name));
    };
    const write = async (use: (bucket: LinkBucket) => Promise<void>): Promise<BucketWrite> => {
      try {
        const done = await onBucket(async (bucket) => {
          await use(bucket);
          return true;
        });
        return { kind: done === null ? "unreachable" : "done" };
      } catch (thrown) {
        return refusal(thrown);
      }
    };
    return {
      async get(key): Promise<BucketRead> {
        try {
          const read = await onBucket(async (bucket) => ({ data: await bucket.get(key) }));
          if (read === null) return { kind: "unreachable" };
          return read.data === null ? { kind: "missing" } : { kind: "value", data: read.data };
        } catch (thrown) {
          return { kind: refusal(thrown).kind === "refused" ? "missing" : "unreachable" };
        }
      },
      put: (key, data) => write((bucket) => bucket.put(key, data)),
      delete: (key) => write((bucket) => bucket.delete(key)),
      async keys() {
        try {
          return await onBucket((bucket) => bucket.keys());
        } catch {
          return null;
        }
      },
    };
  }
}

class LinkConsumption implements Consumption {
  readonly #parts: DurableParts;
  readonly #options: ConsumeOptions;
  readonly #handle: (message: KeptMessage) => Promise<void>;
  readonly #stopping = new AbortController();
  readonly #ended: Promise<void>;
  #status: ConsumptionState["status"] = "waiting";
  #why: string | null = "no connection yet";
  #handled = 0;
  #givenUp = 0;
  #messages: StreamMessages | null = null;

  constructor(
    parts: DurableParts,
    options: ConsumeOptions,
    handle: (message: KeptMessage) => Promise<void>,
  ) {
    this.#parts = parts;
    this.#options = options;
    this.#handle = handle;
    parts.closing.addEventListener("abort", () => this.#stop(), { signal: this.#stopping.signal });
    if (parts.closing.aborted) this.#stop();
    this.#ended = this.#run();
  }

  get state(): ConsumptionState {
    const [status, why] = [this.#status, this.#why];
    return { status, why, handled: this.#handled, givenUp: this.#givenUp };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop();
    await this.#ended;
  }

  #stop(): void {
    this.#stopping.abort();
    this.#messages?.stop();
  }

  async #run(): Promise<void> {
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      const link = this.#parts.link();
      if (!link?.durable) this.#set("waiting", "no connection");
      else await this.#consumeOver(link.durable, link.closed);
      await sleep(this.#parts.clock, RETRY_MS, signal).catch(() => undefined);
    }
    this.#set("closed", "it was closed");
  }

  async #consumeOver(link: LinkDurable, closed: Promise<string>): Promise<void> {
    try {
      const messages = await link.consume(this.#options);
      this.#messages = messages;
      // One of the libraries goes on waiting for messages of a connection that is gone.
      void closed.then(() => messages.stop());
      this.#set("consuming", null);
      if (this.#stopping.signal.aborted) messages.stop();
      for await (const message of messages) {
        await this.#one(message);
        // Taking one more step asks the broker for one more, which then nobody hears.
        if (this.#stopping.signal.aborted) return;
      }
      this.#set("waiting", "the connection is gone");
    } catch (thrown) {
      const refused = refusal(thrown);
      if (refused.kind === "refused") this.#set("missing", refused.why);
      else this.#set("waiting", "the connection is gone");
    } finally {
      this.#messages = null;
    }
  }

  async #one(of: StreamMessage): Promise<void> {
    const { message } = of;
    // It comes to whoever consumes next.
    if (this.#stopping.signal.aborted) return of.again(0);
    const failure = await this.#failureOf(of);
    if (failure === null) {
      this.#handled++;
      of.ack();
      return;
    }
    const { subject, key, delivery } = message;
    const fields = { subject, key, delivery, why: messageOf(failure.thrown) };
    if (message.isLast) {
      this.#givenUp++;
      this.#parts.log("warn", "a message of a stream is given up: it was never handled", fields);
      of.drop();
    } else {
      this.#parts.log("warn", "a message of a stream was not handled, it comes again", fields);
      const isStopping = this.#stopping.signal.aborted;
      of.again(isStopping ? 0 : Math.min(AGAIN_MS * 2 ** (delivery - 1), AGAIN_MS_MAX));
    }
  }

  /** Null when it was handled; the broker hears meanwhile that it is at work. */
  async #failureOf({
    message,
    working,
  }: StreamMessage): Promise<{ readonly thrown: unknown } | null> {
    const { silenceMs = SILENCE_MS } = this.#options;
    using _signs = this.#parts.clock.every(silenceMs / SIGNS, () => {
      try {
        working();
      } catch {
        // The connection is over, which the loop over the messages hears as well.
      }
    });
    try {
      await this.#handle(message);
      return null;
    } catch (thrown) {
      return { thrown };
    }
  }

  #set(status: ConsumptionState["status"], why: string | null): void {
    if (status === this.#status && why === this.#why) return;
    this.#status = status;
    this.#why = why;
    const { stream, subject } = this.#options;
    if (status === "missing") {
      this.#parts.log("warn", "the stream cannot be read, trying again", { stream, subject, why });
    } else if (status === "consuming") {
      this.#parts.log("info", "reading a stream", { stream, subject });
    }
  }
}
