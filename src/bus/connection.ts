import type { BusMessage, DurablePublishOptions } from "./bus.ts";

/** A message to be published. */
export interface Outgoing {
  readonly subject: string;
  readonly data: Uint8Array;
  readonly reply: string | null;
  readonly headers: Readonly<Record<string, string>> | null;
}

/** A message as a connection delivers it to the bus. */
export interface Incoming extends BusMessage {
  /**
   * Status number in the first header line: 503 if a request has no subscriber, 0 without a status.
   */
  readonly status: number;
}

/** One connection to a broker. It never reconnects; if it ends, its owner opens a new one. */
export interface BrokerConnection {
  /**
   * Address of the broker for logs, without credentials. Null if the broker is inside this process.
   */
  readonly server: string | null;
  /** Largest message in bytes that the broker accepts, data and headers together. */
  readonly payloadBytesMax: number;

  /**
   * Passes the message to the client library. If the library rejects it, throws, and nothing is
   * sent.
   */
  publish(message: Outgoing): void;
  /**
   * Subscribes to a subject and returns a function that ends the subscription. If the broker does
   * not permit it, calls `refused` with the reason; no messages arrive then.
   */
  subscribe(
    subject: string,
    queue: string | undefined,
    deliver: (message: Incoming) => void,
    refused: (why: string) => void,
  ): () => void;
  /**
   * Resolves once the broker has received everything published before. If the connection ends, it
   * may never settle.
   */
  confirm(): Promise<void>;
  /** Resolves when the connection ends, with the reason. Never rejects. */
  readonly closed: Promise<string>;
  /** JetStream over this connection. Null if the broker stores nothing. */
  readonly durable: ClientJetStream | null;
  /** Ends the connection immediately. */
  end(why: string): void;
}

/**
 * Opens a connection. Rejects with an error whose message is meant for operators. The bus aborts
 * `signal` when it closes.
 */
export type Dial = (signal: AbortSignal) => Promise<BrokerConnection>;

const HEADER_NAME = /^[!-9;-~]+$/;
const LINE_END = /[\r\n]/;

/** Returns true if all names are printable ASCII without a colon and all values have one line. */
export function areHeaders(headers: Readonly<Record<string, string>>): boolean {
  return Object.entries(headers).every(
    ([name, value]) => HEADER_NAME.test(name) && !LINE_END.test(value),
  );
}

/** Returns the encoded size of the headers in bytes; 0 if there are none. */
export function headerBytes(headers: Readonly<Record<string, string>> | null): number {
  if (headers === null) return 0;
  let bytes = 0;
  for (const [name, value] of Object.entries(headers)) {
    bytes += Buffer.byteLength(name) + Buffer.byteLength(value) + 4;
  }
  return bytes === 0 ? 0 : bytes + "NATS/1.0\r\n\r\n".length;
}

export function messageBytes(message: Outgoing): number {
  return message.data.length + headerBytes(message.headers);
}

/** The part of a header object that both client libraries have in common. */
export interface ClientHeaders {
  readonly code: number;
  set(name: string, value: string): void;
  [Symbol.iterator](): Iterator<readonly [string, readonly string[]]>;
}

/** The part of a received message that both client libraries have in common. */
export interface ClientMessage {
  readonly subject: string;
  readonly reply?: string;
  readonly data: Uint8Array;
  readonly headers?: ClientHeaders | undefined;
}

/** The part of a stream's message that both client libraries have in common. */
export interface ClientStreamMessage extends ClientMessage {
  readonly info: {
    readonly stream: string;
    readonly streamSequence: number;
    readonly deliveryCount: number;
    readonly timestampNanos: number;
  };
  /** Acknowledges the message. Without `ack` or `term`, the broker delivers it again. */
  ack(): void;
  /** Reports a failure of the handler. The broker delivers the message again after `ms`. */
  nak(ms?: number): void;
  /**
   * Reports progress. Without such reports, the broker delivers the message again after the
   * consumer's `ack_wait`.
   */
  working(): void;
  term(reason?: string): void;
}

/**
 * Messages of a stream, one after the other. The iteration ends or throws when the connection ends.
 */
export interface ClientStream extends AsyncIterable<ClientStreamMessage> {
  close(): Promise<unknown>;
}

/** Settings of a JetStream consumer, with the field names of the JetStream API. */
export interface ConsumerSettings {
  readonly durable_name: string;
  readonly filter_subject: string;
  /** Nanoseconds without a sign of progress after which a message is delivered again. */
  readonly ack_wait: number;
  readonly max_deliver: number;
  readonly max_ack_pending: number;
}

/** The part of a key-value bucket that both client libraries have in common. */
export interface ClientBucket {
  get(key: string): Promise<{ readonly value: Uint8Array; readonly operation: string } | null>;
  put(key: string, data: Uint8Array): Promise<number>;
  delete(key: string): Promise<void>;
  keys(): Promise<AsyncIterable<string>>;
}

/** The part of an object store that both client libraries have in common. */
export interface ClientObjects {
  info(name: string): Promise<{ readonly size: number; readonly deleted: boolean } | null>;
  get(name: string): Promise<{ readonly data: ReadableStream<Uint8Array> } | null>;
  put(meta: { name: string }, data: ReadableStream<Uint8Array>): Promise<unknown>;
  delete(name: string): Promise<unknown>;
  list(): Promise<readonly { readonly name: string; readonly size: number }[]>;
}

/** JetStream over one connection. Every method rejects with the client library's error. */
export interface ClientJetStream {
  /**
   * Publishes to a stream. `duplicate`: the broker already had a message with this id. `seq`:
   * sequence number in the stream.
   */
  publish(
    subject: string,
    data: Uint8Array,
    options: DurablePublishOptions,
  ): Promise<{ readonly duplicate: boolean; readonly seq: number }>;
  /** Creates a consumer if it does not exist. */
  addConsumer(stream: string, settings: ConsumerSettings): Promise<unknown>;
  /** Returns the messages of a consumer in the order of the stream. */
  messages(
    stream: string,
    consumer: string,
    options: { max_messages: number; abort_on_missing_resource: boolean },
  ): Promise<ClientStream>;
  bucket(name: string): Promise<ClientBucket>;
  /** Opens an object store. Rejects if its bucket does not exist. */
  objects(bucket: string): Promise<ClientObjects>;
  /** Deletes messages with a sequence number below `seq`. */
  purge(stream: string, options: { filter: string; seq: number }): Promise<unknown>;
}
