import type { BusMessage, DurablePublishOptions } from "./bus.ts";

/** An outgoing message. */
export interface Outgoing {
  readonly subject: string;
  readonly data: Uint8Array;
  readonly reply: string | null;
  readonly headers: Readonly<Record<string, string>> | null;
}

/** A message as a connection delivers it. */
export interface Incoming extends BusMessage {
  /**
   * Status number in the first header line: 503 without responders, 0 without
   * status.
   */
  readonly status: number;
}

/** One connection to a broker. It never reconnects; its owner dials a new one. */
export interface BrokerConnection {
  /** Address for people, without credentials. Null if the broker is inside this process. */
  readonly server: string | null;
  /** Largest message in bytes, data and headers together. */
  readonly payloadBytesMax: number;

  /**
   * Hands the message to the client library. Throws if the library rejects it; then nothing was
   * sent.
   */
  publish(message: Outgoing): void;
  /**
   * Calls `refused` with the reason if the broker does not permit the subscription, which then
   * stays silent. Returns a function that ends the subscription.
   */
  subscribe(
    subject: string,
    queue: string | undefined,
    deliver: (message: Incoming) => void,
    refused: (why: string) => void,
  ): () => void;
  /** Resolves once the broker has received everything published before. May never settle. */
  confirm(): Promise<void>;
  /** Resolves with the reason when the connection ends. Never rejects. */
  readonly closed: Promise<string>;
  /** Null if the broker stores nothing. */
  readonly durable: ClientJetStream | null;
  /** Ends the connection immediately. */
  end(why: string): void;
}

/**
 * Opens a connection. Rejects with a message for people. The bus aborts `signal` when it closes.
 */
export type Dial = (signal: AbortSignal) => Promise<BrokerConnection>;

const HEADER_NAME = /^[!-9;-~]+$/;
const LINE_END = /[\r\n]/;

/** Whether names are printable ASCII without a colon and values have one line. */
export function areHeaders(headers: Readonly<Record<string, string>>): boolean {
  return Object.entries(headers).every(
    ([name, value]) => HEADER_NAME.test(name) && !LINE_END.test(value),
  );
}

/** Encoded size of the headers in bytes; 0 if there are none. */
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

/** Headers, as both client libraries have them. */
export interface ClientHeaders {
  readonly code: number;
  set(name: string, value: string): void;
  [Symbol.iterator](): Iterator<readonly [string, readonly string[]]>;
}

/** A message, as both client libraries deliver it. */
export interface ClientMessage {
  readonly subject: string;
  readonly reply?: string;
  readonly data: Uint8Array;
  readonly headers?: ClientHeaders | undefined;
}

/** A message of a stream, as both client libraries deliver it. */
export interface ClientStreamMessage extends ClientMessage {
  readonly info: {
    readonly stream: string;
    readonly streamSequence: number;
    readonly deliveryCount: number;
    readonly timestampNanos: number;
  };
  /** Without it, or `term`, the broker delivers the message again. */
  ack(): void;
  /** Handling failed: deliver it again after `ms`. */
  nak(ms?: number): void;
  /** Reports progress, without which the message is redelivered after the consumer's `ack_wait`. */
  working(): void;
  term(reason?: string): void;
}

/** Ends, or throws, with the connection. */
export interface ClientStream extends AsyncIterable<ClientStreamMessage> {
  close(): Promise<unknown>;
}

/** Settings of a consumer, with the field names of the JetStream API. */
export interface ConsumerSettings {
  readonly durable_name: string;
  readonly filter_subject: string;
  /** Nanoseconds. */
  readonly ack_wait: number;
  readonly max_deliver: number;
  readonly max_ack_pending: number;
}

/** A bucket, as both client libraries have it. */
export interface ClientBucket {
  get(key: string): Promise<{ readonly value: Uint8Array; readonly operation: string } | null>;
  put(key: string, data: Uint8Array): Promise<number>;
  delete(key: string): Promise<void>;
  keys(): Promise<AsyncIterable<string>>;
}

/** An object store, as both client libraries have it. */
export interface ClientObjects {
  info(name: string): Promise<{ readonly size: number; readonly deleted: boolean } | null>;
  get(name: string): Promise<{ readonly data: ReadableStream<Uint8Array> } | null>;
  put(meta: { name: string }, data: ReadableStream<Uint8Array>): Promise<unknown>;
  delete(name: string): Promise<unknown>;
  list(): Promise<readonly { readonly name: string; readonly size: number }[]>;
}

/** JetStream over one connection. Every call rejects with the client library's error. */
export interface ClientJetStream {
  /** `duplicate`: the broker already had this id. `seq`: number in the stream. */
  publish(
    subject: string,
    data: Uint8Array,
    options: DurablePublishOptions,
  ): Promise<{ readonly duplicate: boolean; readonly seq: number }>;
  /** Creates the consumer if it does not exist. */
  addConsumer(stream: string, settings: ConsumerSettings): Promise<unknown>;
  /** Messages in order of arrival. */
  messages(
    stream: string,
    consumer: string,
    options: { max_messages: number; abort_on_missing_resource: boolean },
  ): Promise<ClientStream>;
  bucket(name: string): Promise<ClientBucket>;
  /** Rejects if the bucket does not exist. */
  objects(bucket: string): Promise<ClientObjects>;
  /** Removes messages with a sequence number below `seq`. */
  purge(stream: string, options: { filter: string; seq: number }): Promise<unknown>;
}
