import { messageOf, yieldToLoop } from "../core/index.ts";
import type { ConsumeOptions, DurablePublishOptions, KeptMessage } from "./bus.ts";
import {
  type Incoming,
  type Link,
  type LinkBucket,
  type LinkDurable,
  type LinkObjects,
  type Outgoing,
  SILENCE_MS,
  type StreamMessages,
} from "./connection.ts";

/** So many different complaints of one server are passed on, each cut to this length. */
const COMPLAINTS_MAX = 16;
const COMPLAINT_CHARACTERS_MAX = 300;

/** What both client libraries have in common: as much of it as a link needs. */
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

/** In one library the error itself, in the other its code and what it is about. */
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

export interface ClientLinkOptions<Headers extends ClientHeaders> {
  readonly client: Client<Headers>;
  readonly server: string;
  newHeaders(): Headers;
  /** The server complained about something that ends neither connection nor subscription. */
  complain(why: string): void;
  /** What the end of a connection means, in words. */
  explain(thrown: unknown): string;
  readonly durable: LinkDurable;
  /** Breaks the socket below the library, where that can be had. */
  cut?(): void;
}

/** A connection of a client library whose own reconnecting is turned off. */
export class ClientLink<Headers extends ClientHeaders> implements Link {
  readonly #options: ClientLinkOptions<Headers>;
  readonly #client: Client<Headers>;
  readonly #made = new WeakMap<Readonly<Record<string, string>>, Headers>();
  readonly server: string;
  readonly payloadBytesMax: number;
  readonly closed: Promise<string>;
  readonly durable: LinkDurable;
  #resolveClosed: (why: string) => void = () => undefined;

  constructor(options: ClientLinkOptions<Headers>) {
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

  /** Until the connection ends. The same words are passed on once. */
  async #listen(): Promise<void> {
    const told = new Set<string>();
    for await (const status of this.#client.status()) {
      const why = complaintIn(status);
      if (why === null || told.has(why) || told.size >= COMPLAINTS_MAX) continue;
      told.add(why);
      this.#options.complain(why);
    }
  }

  publish({ subject, data, reply, headers }: Outgoing): void {
    const options: { reply?: string; headers?: Headers } = {};
    if (reply !== null) options.reply = reply;
    if (headers !== null) options.headers = this.#headersOf(headers);
    this.#client.publish(subject, data, options);
  }

  /** Made once for headers that are used again and again. */
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

/** Null for what is no complaint, and for what the subscription in question is told itself. */
function complaintIn({ type, error, data, permissionContext }: ClientStatus): string | null {
  if (type !== "error") return null;
  const { operation, subject } = permissionContext ?? {};
  const said = operation === undefined ? String(data) : `no permission: ${operation} ${subject}`;
  const why = (error?.message ?? said).slice(0, COMPLAINT_CHARACTERS_MAX);
  return /subscription/i.test(why) ? null : why;
}

/** As the bus hands messages over, with the status of their headers. */
export function plainMessage(message: ClientMessage): Incoming {
  const { subject, reply, data } = message;
  const { headers, status } = headersOf(message);
  // A copy: the library's view keeps the whole of what the socket read alive.
  return { subject, reply: reply ? reply : null, headers, data: new Uint8Array(data), status };
}

/**
 * The libraries decode headers when asked for them, and throw at names that are none. Thrown on
 * from here it would end the reading of the connection: such a message has no headers.
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

/** How often the broker hands out a message that nobody acknowledges. */
const DELIVERIES_MAX = 10;
/**
 * So many messages are with us, the one at work. Of more those behind a long one would count as
 * lost, and those behind one that comes again would overtake it.
 */
const AT_ONCE = 1;
/** Of an object, hashed and sent at a time: a millisecond's worth. */
const PIECE_BYTES = 128 * 1024;
/** Of the stream's name in a message's key. */
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

/** What both libraries have in common: as much of it as is needed here. */
export interface ClientJetStream<Headers extends ClientHeaders> {
  newHeaders(): Headers;
  publish(
    subject: string,
    data: Uint8Array,
    options: { msgID: string; timeout: number; headers?: Headers },
  ): Promise<{ readonly duplicate: boolean; readonly seq: number }>;
  /** Makes the consumer where it is not there yet. */
  addConsumer(stream: string, config: ConsumerSettings): Promise<unknown>;
  messages(
    stream: string,
    consumer: string,
    options: { max_messages: number; abort_on_missing_resource: boolean },
  ): Promise<AsyncIterable<ClientStreamMessage> & { close(): Promise<unknown> }>;
  bucket(name: string): Promise<ClientBucket>;
  objects(bucket: string): Promise<ClientObjects>;
  /** Keeps what has `seq` or a larger number. */
  purge(stream: string, options: { filter: string; seq: number }): Promise<unknown>;
}

/** In the words of JetStream's own API. */
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

/** The durable side of a connection of either client library. */
export class ClientDurable<Headers extends ClientHeaders> implements LinkDurable {
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

  async objects(bucket: string): Promise<LinkObjects> {
    return objectsOf(await this.#client.objects(bucket));
  }

  async purge(stream: string, subject: string, upTo: number): Promise<void> {
    await this.#client.purge(stream, { filter: subject, seq: upTo + 1 });
  }

  async bucket(name: string): Promise<LinkBucket> {
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
 * Objects as the libraries have them. They hash in plain JavaScript, some 100 MB a second: others
 * get their turn between pieces.
 */
function objectsOf(client: ClientObjects): LinkObjects {
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

/** It may have grown since it was asked how large it is. */
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

/** The reply subject of a stream's message belongs to the acknowledgement. */
function keptMessage(message: ClientStreamMessage): KeptMessage {
  const { status: _status, ...plain } = plainMessage(message);
  const { stream, streamSequence, deliveryCount, timestampNanos } = message.info;
  // A stream that was made anew counts from one again: the time tells its messages from the old.
  const storedMs = Math.floor(timestampNanos / 1e6);
  const key = `${stream.slice(0, NAME_CHARACTERS)}/${streamSequence}/${storedMs}`;
  const isLast = deliveryCount >= DELIVERIES_MAX;
  return { ...plain, reply: null, key, delivery: deliveryCount, isLast };
}
