import { messageOf, yieldToLoop } from "../core/index.ts";
import type { ConsumeOptions, DurablePublishOptions, StoredMessage } from "./bus.ts";
import {
  type BrokerConnection,
  type ConnectionBucket,
  type ConnectionDurable,
  type ConnectionObjects,
  type Incoming,
  type Outgoing,
  SILENCE_MS,
  type StreamMessages,
} from "./connection.ts";

/** Distinct errors of one server that are passed on, and the length each is cut to. */
const COMPLAINTS_MAX = 16;
const COMPLAINT_CHARACTERS_MAX = 300;

/** The interface that both client libraries share, as far as a connection needs it. */
export interface Client<Headers extends ClientHeaders> {
  readonly info?: { readonly max_payload: number } | undefined;
  publish(subject: string, data: Uint8Array, options: { reply?: string; headers?: Headers }): void;
  subscribe(
    subject: string,
    options: {
      queue?: string;
      callback: (error: Error | null, message: ClientMessage) => void;
    },
  ): { unsubscribe(): void };
  flush(): Promise<void>;
  // biome-ignore lint/suspicious/noConfusingVoidType: as the libraries have it
  closed(): Promise<void | Error>;
  close(): Promise<void>;
  status(): AsyncIterable<ClientStatus>;
}

/** One library reports the error itself, the other one its code and subject. */
interface ClientStatus {
  readonly type: string;
  readonly error?: Error;
  readonly data?: unknown;
  readonly permissionContext?: { readonly operation: string; readonly subject: string };
}

export interface ClientHeaders {
  readonly code: number;
  set(name: string, value: string): void;
  [Symbol.iterator](): Iterator<readonly [string, readonly string[]]>;
}

interface ClientMessage {
  readonly subject: string;
  readonly reply?: string;
  readonly data: Uint8Array;
  readonly headers?: ClientHeaders | undefined;
}

export interface ClientConnectionOptions<Headers extends ClientHeaders> {
  readonly client: Client<Headers>;
  readonly server: string;
  newHeaders(): Headers;
  /** Called for a server error that ends neither the connection nor a subscription. */
  complain(why: string): void;
  /** Translates the end of a connection into a message for people. */
  explain(thrown: unknown): string;
  readonly durable: ConnectionDurable;
  /** Breaks the socket below the library, if it is accessible. */
  cut?(): void;
}

/** A connection through a client library with its own reconnecting turned off. */
export class ClientConnection<Headers extends ClientHeaders> implements BrokerConnection {
  readonly #options: ClientConnectionOptions<Headers>;
  readonly #client: Client<Headers>;
  readonly #made = new WeakMap<Readonly<Record<string, string>>, Headers>();
  readonly server: string;
  readonly payloadBytesMax: number;
  readonly closed: Promise<string>;
  readonly durable: ConnectionDurable;
  #resolveClosed: (why: string) => void = () => undefined;

  constructor(options: ClientConnectionOptions<Headers>) {
    this.#options = options;
    this.#client = options.client;
    this.server = options.server;
    this.durable = options.durable;
    this.payloadBytesMax = this.#client.info?.max_payload ?? 2 ** 20;
    this.closed = new Promise((resolve) => {
      this.#resolveClosed = resolve;
    });
    const gone = (reason: unknown) => {
      this.#resolveClosed(
        reason instanceof Error ? options.explain(reason) : "the server closed the connection",
      );
    };
    this.#client.closed().then(gone, gone);
    void this.#listen();
  }

  /** Reports server errors until the connection ends. Each text is reported once. */
  async #listen(): Promise<void> {
    const reported = new Set<string>();
    for await (const status of this.#client.status()) {
      const why = complaintIn(status);
      if (why === null || reported.has(why) || reported.size >= COMPLAINTS_MAX) continue;
      reported.add(why);
      this.#options.complain(why);
    }
  }

  publish({ subject, data, reply, headers }: Outgoing): void {
    const options: { reply?: string; headers?: Headers } = {};
    if (reply !== null) options.reply = reply;
    if (headers !== null) options.headers = this.#headersOf(headers);
    this.#client.publish(subject, data, options);
  }

  /** Cached, because callers pass the same headers object again and again. */
  #headersOf(plain: Readonly<Record<string, string>>): Headers {
    const known = this.#made.get(plain);
    if (known !== undefined) return known;
    const made = this.#options.newHeaders();
    for (const [name, value] of Object.entries(plain)) made.set(name, value);
    this.#made.set(plain, made);
    return made;
  }

  subscribe(
    subject: string,
    queue: string | undefined,
    deliver: (message: Incoming) => void,
    refused: (why: string) => void,
  ): () => void {
    const subscription = this.#client.subscribe(subject, {
      ...(queue === undefined ? {} : { queue }),
      callback: (error, message) => {
        if (error === null) deliver(plainMessage(message));
        else refused(messageOf(error));
      },
    });
    return () => subscription.unsubscribe();
  }

  confirm(): Promise<void> {
    return this.#client.flush();
  }

  end(why: string): void {
    this.#resolveClosed(why);
    this.#options.cut?.();
    this.#client.close().catch(() => undefined);
  }
}

/** Null if the status is not an error, or if a subscription reports it itself. */
function complaintIn({ type, error, data, permissionContext }: ClientStatus): string | null {
  if (type !== "error") return null;
  const { operation, subject } = permissionContext ?? {};
  const said = operation === undefined ? String(data) : `not permitted: ${operation} ${subject}`;
  const why = (error?.message ?? said).slice(0, COMPLAINT_CHARACTERS_MAX);
  return /subscription/i.test(why) ? null : why;
}

/** Converts a library's message; `status` comes from its headers. */
function plainMessage(message: ClientMessage): Incoming {
  const { subject, reply, data } = message;
  const { headers, status } = headersOf(message);
  // Copy, because the library's view keeps the socket's whole read buffer alive.
  return { subject, reply: reply ? reply : null, headers, data: new Uint8Array(data), status };
}

/**
 * The libraries decode headers on access and throw on invalid names. An exception here would end
 * reading from the connection, so such a message is delivered without headers.
 */
function headersOf(message: ClientMessage): Pick<Incoming, "headers" | "status"> {
  const plain: Record<string, string> = Object.create(null);
  try {
    const { headers } = message;
    if (headers === undefined) return { headers: plain, status: 0 };
    for (const [name, values] of headers) plain[name] = values[0] ?? "";
    return { headers: plain, status: headers.code };
  } catch {
    return { headers: Object.create(null), status: 0 };
  }
}

/** Deliveries of a message that is never acknowledged. */
const DELIVERIES_MAX = 10;
/**
 * Unacknowledged messages of a consumer. With more than one, messages behind a slow one would be
 * redelivered, and messages behind a redelivered one would overtake it.
 */
const AT_ONCE = 1;
/** Bytes of an object that are hashed and sent in one turn: about 1 ms of work. */
const PIECE_BYTES = 128 * 1024;
/** Characters of the stream's name in a message's key. */
const NAME_CHARACTERS = 64;

interface ClientStreamMessage {
  readonly subject: string;
  readonly data: Uint8Array;
  readonly headers?: ClientHeaders | undefined;
  readonly info: {
    readonly stream: string;
    readonly streamSequence: number;
    readonly deliveryCount: number;
    readonly timestampNanos: number;
  };
  ack(): void;
  nak(ms?: number): void;
  working(): void;
  term(reason?: string): void;
}

/** The JetStream interface that both client libraries share, as far as it is used here. */
export interface ClientJetStream<Headers extends ClientHeaders> {
  newHeaders(): Headers;
  publish(
    subject: string,
    data: Uint8Array,
    options: { msgID: string; timeout: number; headers?: Headers },
  ): Promise<{ readonly duplicate: boolean; readonly seq: number }>;
  /** Creates the consumer if it does not exist. */
  addConsumer(stream: string, config: ConsumerSettings): Promise<unknown>;
  messages(
    stream: string,
    consumer: string,
    options: { max_messages: number; abort_on_missing_resource: boolean },
  ): Promise<AsyncIterable<ClientStreamMessage> & { close(): Promise<unknown> }>;
  bucket(name: string): Promise<ClientBucket>;
  objects(bucket: string): Promise<ClientObjects>;
  /** Removes messages with a sequence number below `seq`. */
  purge(stream: string, options: { filter: string; seq: number }): Promise<unknown>;
}

/** Field names of the JetStream API. */
interface ConsumerSettings {
  readonly durable_name: string;
  readonly ack_policy: "explicit";
  readonly deliver_policy: "all";
  readonly filter_subject: string;
  readonly ack_wait: number;
  readonly max_deliver: number;
  readonly max_ack_pending: number;
}

interface ClientBucket {
  get(key: string): Promise<{ readonly value: Uint8Array; readonly operation: string } | null>;
  put(key: string, data: Uint8Array): Promise<number>;
  delete(key: string): Promise<void>;
  keys(): Promise<AsyncIterable<string>>;
}

interface ClientObjects {
  info(name: string): Promise<{ readonly size: number; readonly deleted: boolean } | null>;
  get(name: string): Promise<{ readonly data: ReadableStream<Uint8Array> } | null>;
  put(meta: { name: string }, data: ReadableStream<Uint8Array>): Promise<unknown>;
  delete(name: string): Promise<unknown>;
  list(): Promise<readonly { readonly name: string; readonly size: number }[]>;
}

/** The JetStream side of a connection of either client library. */
export class ClientDurable<Headers extends ClientHeaders> implements ConnectionDurable {
  readonly #client: ClientJetStream<Headers>;

  constructor(client: ClientJetStream<Headers>) {
    this.#client = client;
  }

  async publish(
    subject: string,
    data: Uint8Array,
    { id, timeoutMs, headers }: DurablePublishOptions,
  ): Promise<{ duplicate: boolean; sequence: number }> {
    const options = { msgID: id, timeout: timeoutMs };
    const own = headers === undefined ? undefined : this.#client.newHeaders();
    for (const [name, value] of Object.entries(headers ?? {})) own?.set(name, value);
    const all = own === undefined ? options : { ...options, headers: own };
    const { duplicate, seq: sequence } = await this.#client.publish(subject, data, all);
    return { duplicate, sequence };
  }

  async consume(options: ConsumeOptions): Promise<StreamMessages> {
    const { stream, consumer, subject, silenceMs = SILENCE_MS } = options;
    await this.#client.addConsumer(stream, {
      durable_name: consumer,
      ack_policy: "explicit",
      deliver_policy: "all",
      filter_subject: subject,
      ack_wait: silenceMs * 1e6,
      max_deliver: DELIVERIES_MAX,
      max_ack_pending: AT_ONCE,
    });
    const messages = await this.#client.messages(stream, consumer, {
      max_messages: AT_ONCE,
      abort_on_missing_resource: true,
    });
    return {
      stop: () => void messages.close().catch(() => undefined),
      async *[Symbol.asyncIterator]() {
        for await (const message of messages) {
          yield {
            message: keptMessage(message),
            ack: () => message.ack(),
            again: (ms: number) => message.nak(ms),
            working: () => message.working(),
            drop: () => message.term(),
          };
        }
      },
    };
  }

  async objects(bucket: string): Promise<ConnectionObjects> {
    return objectsOf(await this.#client.objects(bucket));
  }

  async purge(stream: string, subject: string, upTo: number): Promise<void> {
    await this.#client.purge(stream, { filter: subject, seq: upTo + 1 });
  }

  async bucket(name: string): Promise<ConnectionBucket> {
    const bucket = await this.#client.bucket(name);
    return {
      async get(key) {
        const entry = await bucket.get(key);
        return entry === null || entry.operation !== "PUT" ? null : new Uint8Array(entry.value);
      },
      async put(key, data) {
        await bucket.put(key, data);
      },
      delete: (key) => bucket.delete(key),
      async keys() {
        const keys: string[] = [];
        for await (const key of await bucket.keys()) keys.push(key);
        return keys.sort();
      },
    };
  }
}

/**
 * The libraries hash objects in JavaScript at about 100 MB/s, so these operations yield to the
 * event loop between pieces.
 */
function objectsOf(client: ClientObjects): ConnectionObjects {
  return {
    async get(name, bytesMax) {
      const info = await client.info(name);
      if (info === null || info.deleted) return null;
      if (info.size > bytesMax) return "too_large";
      const found = await client.get(name);
      return found === null ? null : readAll(found.data, bytesMax);
    },
    async put(name, data) {
      await client.put({ name }, inPieces(data));
    },
    async delete(name) {
      await client.delete(name);
    },
    async list() {
      return (await client.list()).map(({ name, size }) => ({ name, bytes: size }));
    },
  };
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

/** Checks the limit while reading, because the object may have grown since its size was read. */
async function readAll(
  stream: ReadableStream<Uint8Array>,
  bytesMax: number,
): Promise<Uint8Array | "too_large"> {
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of stream) {
    bytes += piece.length;
    if (bytes > bytesMax) return "too_large";
    pieces.push(piece);
    await yieldToLoop();
  }
  return Buffer.concat(pieces);
}

/** The reply subject of a stream's message carries the acknowledgement, so it is hidden. */
function keptMessage(message: ClientStreamMessage): StoredMessage {
  const { status: _status, ...plain } = plainMessage(message);
  const { stream, streamSequence, deliveryCount, timestampNanos } = message.info;
  // A recreated stream restarts its sequence. The time distinguishes its messages from older ones.
  const storedMs = Math.floor(timestampNanos / 1e6);
  const key = `${stream.slice(0, NAME_CHARACTERS)}/${streamSequence}/${storedMs}`;
  const isLast = deliveryCount >= DELIVERIES_MAX;
  return { ...plain, reply: null, key, delivery: deliveryCount, isLast };
}
