import { type Clock, messageOf, sleep, yieldToLoop } from "../core/index.ts";
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
import type {
  BrokerConnection,
  ClientBucket,
  ClientJetStream,
  ClientObjects,
  ClientStream,
  ClientStreamMessage,
} from "./connection.ts";
import { plainMessage } from "./nats-connection.ts";

/** Ms before the next attempt if the connection is down or the stream does not exist. */
const RETRY_MS = 2_000;
/**
 * Ms before a message whose handler failed is delivered again: the first delay, and the maximum
 * after doubling.
 */
const AGAIN_MS = 1_000;
const AGAIN_MS_MAX = 30_000;
/** Default of `ConsumeOptions.silenceMs`, in ms. */
const SILENCE_MS = 10_000;
/** Progress reports sent per `silenceMs`. There are several because one may be lost or late. */
const SIGNS = 4;
/** Maximum deliveries of a message that is never acknowledged. */
const DELIVERIES_MAX = 10;
/**
 * Maximum unacknowledged messages of a consumer. With more than one, messages behind a slow one
 * would be delivered again, and messages behind a redelivered one would overtake it.
 */
const AT_ONCE = 1;

export interface DurableContext {
  readonly clock: Clock;
  readonly log: BusLog;
  /** Fires when the bus closes. */
  readonly closing: AbortSignal;
  /** Returns the current connection. Null while disconnected. */
  connection(): BrokerConnection | null;
}

const UNREACHABLE: unique symbol = Symbol("unreachable");

/** Implements `DurableBus` over the bus's current connection. */
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
    try {
      const done = await this.#on((client) => client.publish(subject, data, options));
      if (done === UNREACHABLE) return { kind: "unreachable" };
      return { kind: "acknowledged", duplicate: done.duplicate, sequence: done.seq };
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

  purge(stream: string, subject: string, upTo: number): Promise<BucketWrite> {
    return writing(this.#on((client) => client.purge(stream, { filter: subject, seq: upTo + 1 })));
  }

  bucket(name: string): Bucket {
    const onBucket = <T>(use: (bucket: ClientBucket) => Promise<T>) =>
      this.#on((client) => client.bucket(name).then(use));
    return {
      get: (key) =>
        reading(async () => {
          const entry = await onBucket((bucket) => bucket.get(key));
          if (entry === UNREACHABLE) return { kind: "unreachable" };
          const isValue = entry !== null && entry.operation === "PUT";
          if (!isValue) return { kind: "missing" };
          return { kind: "value", data: new Uint8Array(entry.value) };
        }),
      put: (key, data) => writing(onBucket((bucket) => bucket.put(key, data))),
      delete: (key) => writing(onBucket((bucket) => bucket.delete(key))),
      keys: () =>
        listing(onBucket(async (bucket) => (await Array.fromAsync(await bucket.keys())).sort())),
    };
  }

  async #on<T>(use: (client: ClientJetStream) => Promise<T>): Promise<T | typeof UNREACHABLE> {
    const client = this.#parts.connection()?.durable ?? null;
    return client === null ? UNREACHABLE : use(client);
  }
}

async function writing(done: Promise<unknown>): Promise<BucketWrite> {
  try {
    return { kind: (await done) === UNREACHABLE ? "unreachable" : "done" };
  } catch (thrown) {
    return refusal(thrown);
  }
}

async function reading(read: () => Promise<BucketRead>): Promise<BucketRead> {
  try {
    return await read();
  } catch (thrown) {
    return { kind: refusal(thrown).kind === "refused" ? "missing" : "unreachable" };
  }
}

/** Returns the list, or null if the broker cannot be reached. */
async function listing<T>(all: Promise<T | typeof UNREACHABLE>): Promise<T | null> {
  try {
    const listed = await all;
    return listed === UNREACHABLE ? null : listed;
  } catch {
    return null;
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
  #messages: ClientStream | null = null;

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
    this.#messages?.close().catch(() => undefined);
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

  async #consumeOver(client: ClientJetStream, closed: Promise<string>): Promise<void> {
    try {
      const { stream, consumer, subject, silenceMs = SILENCE_MS } = this.#options;
      await client.addConsumer(stream, {
        durable_name: consumer,
        filter_subject: subject,
        ack_wait: silenceMs * 1e6,
        max_deliver: DELIVERIES_MAX,
        max_ack_pending: AT_ONCE,
      });
      const options = { max_messages: AT_ONCE, abort_on_missing_resource: true };
      const messages = await client.messages(stream, consumer, options);
      const stop = () => messages.close().catch(() => undefined);
      this.#messages = messages;
      // Stop explicitly: one of the client libraries keeps waiting for messages after its
      // connection has ended.
      void closed.then(stop);
      this.#set("consuming", null);
      if (this.#stopping.signal.aborted) void stop();
      for await (const message of messages) {
        await this.#one(message);
        // Leave the loop here: continuing would request one more message, which would then be lost.
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

  async #one(client: ClientStreamMessage): Promise<void> {
    // Return the message to the broker, so that the next consumer receives it.
    if (this.#stopping.signal.aborted) return client.nak(0);
    const message = storedMessage(client);
    const failure = await this.#failureOf(message, client);
    if (failure === null) {
      this.#handled++;
      client.ack();
      return;
    }
    const { subject, key, delivery } = message;
    const fields = { subject, key, delivery, why: messageOf(failure.thrown) };
    if (message.isLast) {
      this.#givenUp++;
      this.#parts.log("warn", "stream message dropped, every delivery failed", fields);
      client.term();
    } else {
      this.#parts.log("warn", "stream message failed, redelivering", fields);
      const isStopping = this.#stopping.signal.aborted;
      client.nak(isStopping ? 0 : Math.min(AGAIN_MS * 2 ** (delivery - 1), AGAIN_MS_MAX));
    }
  }

  /**
   * Runs the handler and reports progress to the broker meanwhile. Returns the handler's error, or
   * null if it succeeded.
   */
  async #failureOf(
    message: StoredMessage,
    client: ClientStreamMessage,
  ): Promise<{ readonly thrown: unknown } | null> {
    const { silenceMs = SILENCE_MS } = this.#options;
    using _signs = this.#parts.clock.every(silenceMs / SIGNS, () => {
      try {
        client.working();
      } catch {
        // The connection has ended. The loop over the messages detects that, too.
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

/** Maximum ms of one call on an object store. */
const CALL_MS = 30_000;
const NAME = /^[\x21-\x7e]{1,256}$/;
/**
 * Matches the error texts of the client libraries for an object whose bytes do not match its
 * checksum.
 */
const DAMAGED = /corrupt|digest/i;
const NO_BUCKET = /not found|no responders/i;

/**
 * Bytes of an object that are hashed and sent in one turn of the event loop: about 1 ms of work.
 */
const PIECE_BYTES = 128 * 1024;

/**
 * Reads and writes objects over the bus's current connection. A call fails if that connection ends.
 * The client libraries hash objects in JavaScript at about 100 MB/s, so other work runs between two
 * pieces of an object.
 */
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
      const read = await this.#on((objects) => readObject(objects, name, bytesMax));
      return read === UNREACHABLE ? { kind: "unreachable" } : read;
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
    return writing(this.#on((objects) => objects.put({ name }, inPieces(data))));
  }

  async delete(name: string): Promise<BucketWrite> {
    if (!NAME.test(name)) return { kind: "done" };
    const deleted = this.#on((objects) =>
      objects.delete(name).catch((thrown) => {
        // Deleting an object that does not exist counts as success.
        if (!NO_BUCKET.test(messageOf(thrown))) throw thrown;
      }),
    );
    return writing(deleted);
  }

  list(): Promise<readonly ObjectFacts[] | null> {
    return listing(
      this.#on(async (objects) =>
        (await objects.list()).map(({ name, size }) => ({ name, bytes: size })),
      ),
    );
  }

  async #on<T>(use: (objects: ClientObjects) => Promise<T>): Promise<T | typeof UNREACHABLE> {
    const connection = this.#parts.connection();
    if (connection === null || connection.durable === null) return UNREACHABLE;
    const over = new AbortController();
    // This timeout is needed because the libraries may wait forever on a broken connection.
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

async function readObject(
  objects: ClientObjects,
  name: string,
  bytesMax: number,
): Promise<ObjectRead> {
  const info = await objects.info(name);
  if (info === null || info.deleted) return { kind: "missing" };
  if (info.size > bytesMax) return { kind: "too_large" };
  const found = await objects.get(name);
  if (found === null) return { kind: "missing" };
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of found.data) {
    bytes += piece.length;
    // Checked again, because the object may have been replaced by a larger one since its size was
    // read.
    if (bytes > bytesMax) return { kind: "too_large" };
    pieces.push(piece);
    await yieldToLoop();
  }
  return { kind: "value", data: Buffer.concat(pieces) };
}

function inPieces(data: Uint8Array): ReadableStream<Uint8Array> {
  let at = 0;
  return new ReadableStream({
    async pull(controller) {
      await yieldToLoop();
      if (at >= data.length) return controller.close();
      controller.enqueue(data.subarray(at, at + PIECE_BYTES));
      at += PIECE_BYTES;
    },
  });
}

/** Maximum characters of the stream's name in a message's key. */
const NAME_CHARACTERS = 64;

/**
 * Converts a stream's message. Its reply subject is removed, because JetStream uses it for the
 * acknowledgement.
 */
function storedMessage(message: ClientStreamMessage): StoredMessage {
  const { status: _status, ...plain } = plainMessage(message);
  const { stream, streamSequence, deliveryCount, timestampNanos } = message.info;
  // A stream that was deleted and created again restarts its sequence numbers. The time
  // distinguishes its messages from older ones.
  const storedMs = Math.floor(timestampNanos / 1e6);
  const key = `${stream.slice(0, NAME_CHARACTERS)}/${streamSequence}/${storedMs}`;
  const isLast = deliveryCount >= DELIVERIES_MAX;
  return { ...plain, reply: null, key, delivery: deliveryCount, isLast };
}

const WHY_CHARACTERS_MAX = 300;
/**
 * Matches the libraries' error texts if the broker has no JetStream or did not reply. Their error
 * classes differ.
 */
const NO_STREAM = /no responders|jetstream is not enabled/i;
const NO_ANSWER = /timeout|disconnect|closed|connection|draining/i;

/**
 * Classifies an error of a client library: the broker refused the request, or there was no reply
 * from it.
 */
function refusal(thrown: unknown): Exclude<DurableOutcome, { kind: "acknowledged" }> {
  const why = whyOf(thrown);
  return NO_ANSWER.test(why) ? { kind: "unreachable" } : { kind: "refused", why };
}

/** Returns the library's error message, or its code if that is more specific. */
function whyOf(thrown: unknown): string {
  const { code } = thrown as { code?: unknown };
  const message = messageOf(thrown);
  // If JetStream does not reply, one library reports only "503", and the other names a cause that
  // may be wrong.
  if (code === "503" || NO_STREAM.test(message))
    return "no stream of the server accepts this subject";
  return message.slice(0, WHY_CHARACTERS_MAX);
}
