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
  ObjectFacts,
  ObjectRead,
  ObjectStore,
  StoredMessage,
} from "./bus.ts";
import {
  type BrokerConnection,
  type ConnectionBucket,
  type ConnectionDurable,
  type ConnectionObjects,
  SILENCE_MS,
  type StreamMessage,
  type StreamMessages,
} from "./connection.ts";

/** Delay before the next attempt if the connection is down or the stream does not exist. */
const RETRY_MS = 2_000;
/**
 * Redelivery delay of a message whose handler failed: the first one, and the limit after doubling.
 */
const AGAIN_MS = 1_000;
const AGAIN_MS_MAX = 30_000;
/** Progress reports per `silenceMs`. Several, because some may be lost or late. */
const SIGNS = 4;

export interface DurableContext {
  readonly clock: Clock;
  readonly log: BusLog;
  /** Aborted when the bus closes. */
  readonly closing: AbortSignal;
  /** The current connection. Null while disconnected. */
  connection(): BrokerConnection | null;
}

/** The JetStream side of a bus, over the current connection. */
export class BrokerDurableBus implements DurableBus {
  readonly #parts: DurableContext;

  constructor(parts: DurableContext) {
    this.#parts = parts;
  }

  async publish(
    subject: string,
    data: Uint8Array,
    options: DurablePublishOptions,
  ): Promise<DurableOutcome> {
    const connection = this.#parts.connection()?.durable ?? null;
    if (connection === null) return { kind: "unreachable" };
    try {
      const { duplicate, sequence } = await connection.publish(subject, data, options);
      return { kind: "acknowledged", duplicate, sequence };
    } catch (thrown) {
      return refusal(thrown);
    }
  }

  consume(options: ConsumeOptions, handle: (message: StoredMessage) => Promise<void>): Consumption {
    return new StreamConsumption(this.#parts, options, handle);
  }

  objects(bucket: string): ObjectStore {
    return new BrokerObjectStore(this.#parts, bucket);
  }

  async purge(stream: string, subject: string, upTo: number): Promise<BucketWrite> {
    const connection = this.#parts.connection()?.durable ?? null;
    if (connection === null) return { kind: "unreachable" };
    try {
      await connection.purge(stream, subject, upTo);
      return { kind: "done" };
    } catch (thrown) {
      return refusal(thrown);
    }
  }

  bucket(name: string): Bucket {
    const onBucket = async <Result>(use: (bucket: ConnectionBucket) => Promise<Result>) => {
      const connection = this.#parts.connection()?.durable ?? null;
      return connection === null ? null : use(await connection.bucket(name));
    };
    const write = async (
      use: (bucket: ConnectionBucket) => Promise<void>,
    ): Promise<BucketWrite> => {
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

class StreamConsumption implements Consumption {
  readonly #parts: DurableContext;
  readonly #options: ConsumeOptions;
  readonly #handle: (message: StoredMessage) => Promise<void>;
  readonly #stopping = new AbortController();
  readonly #ended: Promise<void>;
  #status: ConsumptionState["status"] = "waiting";
  #why: string | null = "not connected yet";
  #handled = 0;
  #givenUp = 0;
  #messages: StreamMessages | null = null;

  constructor(
    parts: DurableContext,
    options: ConsumeOptions,
    handle: (message: StoredMessage) => Promise<void>,
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
      const connection = this.#parts.connection();
      if (!connection?.durable) this.#set("waiting", "no connection");
      else await this.#consumeOver(connection.durable, connection.closed);
      await sleep(this.#parts.clock, RETRY_MS, signal).catch(() => undefined);
    }
    this.#set("closed", "closed");
  }

  async #consumeOver(connection: ConnectionDurable, closed: Promise<string>): Promise<void> {
    try {
      const messages = await connection.consume(this.#options);
      this.#messages = messages;
      // One of the client libraries keeps waiting for messages after its connection has ended.
      void closed.then(() => messages.stop());
      this.#set("consuming", null);
      if (this.#stopping.signal.aborted) messages.stop();
      for await (const message of messages) {
        await this.#one(message);
        // Another step would request one more message, which would then be lost.
        if (this.#stopping.signal.aborted) return;
      }
      this.#set("waiting", "connection lost");
    } catch (thrown) {
      const refused = refusal(thrown);
      if (refused.kind === "refused") this.#set("missing", refused.why);
      else this.#set("waiting", "connection lost");
    } finally {
      this.#messages = null;
    }
  }

  async #one(of: StreamMessage): Promise<void> {
    const { message } = of;
    // The next consumer receives it.
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
      this.#parts.log("warn", "stream message dropped, every delivery failed", fields);
      of.drop();
    } else {
      this.#parts.log("warn", "stream message failed, redelivering", fields);
      const isStopping = this.#stopping.signal.aborted;
      of.again(isStopping ? 0 : Math.min(AGAIN_MS * 2 ** (delivery - 1), AGAIN_MS_MAX));
    }
  }

  /** Runs the handler while reporting progress to the broker. Null if it succeeded. */
  async #failureOf({
    message,
    working,
  }: StreamMessage): Promise<{ readonly thrown: unknown } | null> {
    const { silenceMs = SILENCE_MS } = this.#options;
    using _signs = this.#parts.clock.every(silenceMs / SIGNS, () => {
      try {
        working();
      } catch {
        // The connection has ended. The loop over the messages notices that too.
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
      this.#parts.log("warn", "stream unavailable, retrying", { stream, subject, why });
    } else if (status === "consuming") {
      this.#parts.log("info", "stream consumption started", { stream, subject });
    }
  }
}

/** Time limit of one call. */
const CALL_MS = 30_000;
const NAME = /^[\x21-\x7e]{1,256}$/;
/** Error texts of the client libraries if an object's bytes do not match its checksum. */
const DAMAGED = /corrupt|digest/i;
const NO_BUCKET = /not found|no responders/i;

/** Objects over the current connection. A call fails if its connection ends. */
class BrokerObjectStore implements ObjectStore {
  readonly #parts: DurableContext;
  readonly #bucket: string;

  constructor(parts: DurableContext, bucket: string) {
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
    if (!NAME.test(name))
      return {
        kind: "refused",
        why: "invalid object name: use 1 to 256 printable ASCII characters without blanks",
      };
    return this.#write((objects) => objects.put(name, data));
  }

  async delete(name: string): Promise<BucketWrite> {
    if (!NAME.test(name)) return { kind: "done" };
    return this.#write(async (objects) => {
      try {
        await objects.delete(name);
      } catch (thrown) {
        // A missing object counts as deleted.
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

  async #write(use: (objects: ConnectionObjects) => Promise<void>): Promise<BucketWrite> {
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

  async #on<T>(use: (objects: ConnectionObjects) => Promise<T>): Promise<T | typeof UNREACHABLE> {
    const connection = this.#parts.connection();
    if (connection === null || connection.durable === null) return UNREACHABLE;
    const over = new AbortController();
    // The libraries may wait forever on a broken connection.
    const late = sleep(this.#parts.clock, CALL_MS, over.signal).catch(() => undefined);
    const gone = Promise.race([late, connection.closed]).then(
      (): typeof UNREACHABLE => UNREACHABLE,
    );
    try {
      const work = connection.durable.objects(this.#bucket).then(use);
      return await Promise.race([work, gone]);
    } finally {
      over.abort();
    }
  }
}

const UNREACHABLE: unique symbol = Symbol("unreachable");

const WHY_CHARACTERS_MAX = 300;
/** Error texts of the libraries if no answer arrived. Their error classes differ. */
const NO_STREAM = /no responders|jetstream is not enabled/i;
const NO_ANSWER = /timeout|disconnect|closed|connection|draining/i;

/** Classifies an error of a client library: refused by the broker, or no answer from it. */
function refusal(thrown: unknown): Exclude<DurableOutcome, { kind: "acknowledged" }> {
  const why = whyOf(thrown);
  return NO_ANSWER.test(why) ? { kind: "unreachable" } : { kind: "refused", why };
}

/** The library's message, or its code if that says more. */
function whyOf(thrown: unknown): string {
  const { code } = thrown as { code?: unknown };
  const message = messageOf(thrown);
  // Without a listener one library reports only "503"; the other one guesses at a cause.
  if (code === "503" || NO_STREAM.test(message))
    return "no stream of the server accepts this subject";
  return message.slice(0, WHY_CHARACTERS_MAX);
}
