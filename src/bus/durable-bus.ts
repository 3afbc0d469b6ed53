import { type Clock, messageOf, sleep } from "../core/index.ts";
import type {
  Bucket,
  BucketRead,
  BucketWrite,
  BusLog,
  ConsumeOptions,
  Consumption,
  ConsumptionState,
  DurableBus,
  DurableOutcome,
  DurablePublishOptions,
  KeptMessage,
  ObjectFacts,
  ObjectRead,
  ObjectStore,
} from "./bus.ts";
import {
  type Link,
  type LinkBucket,
  type LinkDurable,
  type LinkObjects,
  SILENCE_MS,
  type StreamMessage,
  type StreamMessages,
} from "./connection.ts";

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

/** One call takes no longer, whatever the broker does. */
const CALL_MS = 30_000;
const NAME = /^[\x21-\x7e]{1,256}$/;
/** What the libraries say of an object whose bytes are not those that were put there. */
const DAMAGED = /corrupt|digest/i;
const NO_BUCKET = /not found|no responders/i;

/** Objects over whatever link there is at the moment; a call ends with the link it began on. */
class LinkObjectStore implements ObjectStore {
  readonly #parts: DurableParts;
  readonly #bucket: string;

  constructor(parts: DurableParts, bucket: string) {
    this.#parts = parts;
    this.#bucket = bucket;
  }

  async get(name: string, bytesMax: number): Promise<ObjectRead> {
    if (!NAME.test(name)) return { kind: "missing" };
    try {
      const data = await this.#on((objects) => objects.get(name, bytesMax));
      if (data === UNREACHABLE) return { kind: "unreachable" };
      if (data === "too_large") return { kind: "too_large" };
      return data === null ? { kind: "missing" } : { kind: "value", data };
    } catch (thrown) {
      if (DAMAGED.test(messageOf(thrown))) return { kind: "damaged" };
      return { kind: refusal(thrown).kind === "refused" ? "missing" : "unreachable" };
    }
  }

  async put(name: string, data: Uint8Array): Promise<BucketWrite> {
    if (!NAME.test(name)) return { kind: "refused", why: "that is no name for an object" };
    return this.#write((objects) => objects.put(name, data));
  }

  async delete(name: string): Promise<BucketWrite> {
    if (!NAME.test(name)) return { kind: "done" };
    return this.#write(async (objects) => {
      try {
        await objects.delete(name);
      } catch (thrown) {
        // It is not there, which is what was wanted.
        if (!NO_BUCKET.test(messageOf(thrown))) throw thrown;
      }
    });
  }

  async list(): Promise<readonly ObjectFacts[] | null> {
    try {
      const facts = await this.#on((objects) => objects.list());
      return facts === UNREACHABLE ? null : facts;
    } catch {
      return null;
    }
  }

  async #write(use: (objects: LinkObjects) => Promise<void>): Promise<BucketWrite> {
    try {
      const done = await this.#on(async (objects) => {
        await use(objects);
        return true;
      });
      return { kind: done === UNREACHABLE ? "unreachable" : "done" };
    } catch (thrown) {
      return refusal(thrown);
    }
  }

  async #on<T>(use: (objects: LinkObjects) => Promise<T>): Promise<T | typeof UNREACHABLE> {
    const link = this.#parts.link();
    if (link === null || link.durable === null) return UNREACHABLE;
    const over = new AbortController();
    // The libraries may wait for ever on a connection that broke.
    const late = sleep(this.#parts.clock, CALL_MS, over.signal).catch(() => undefined);
    const gone = Promise.race([late, link.closed]).then((): typeof UNREACHABLE => UNREACHABLE);
    try {
      const work = link.durable.objects(this.#bucket).then(use);
      return await Promise.race([work, gone]);
    } finally {
      over.abort();
    }
  }
}

const UNREACHABLE: unique symbol = Symbol("unreachable");

const WHY_CHARACTERS_MAX = 300;
/** What the libraries say where no answer came, in whichever of their error classes. */
const NO_STREAM = /no responders|jetstream is not enabled/i;
const NO_ANSWER = /timeout|disconnect|closed|connection|draining/i;

/** Whether the broker refused, or did not answer, by what a client library threw. */
function refusal(thrown: unknown): Exclude<DurableOutcome, { kind: "acknowledged" }> {
  const why = whyOf(thrown);
  return NO_ANSWER.test(why) ? { kind: "unreachable" } : { kind: "refused", why };
}

/** The libraries' own words, and their codes where those are words. */
function whyOf(thrown: unknown): string {
  const { code } = thrown as { code?: unknown };
  const message = messageOf(thrown);
  // One library says no more than "503" where nobody listens, the other one more than it knows.
  if (code === "503" || NO_STREAM.test(message)) return "no stream of the server takes it";
  return message.slice(0, WHY_CHARACTERS_MAX);
}
