import type { BusMessage, ConsumeOptions, DurablePublishOptions, StoredMessage } from "./bus.ts";

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
  readonly durable: ConnectionDurable | null;
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

/** Default of `ConsumeOptions.silenceMs`. */
export const SILENCE_MS = 10_000;

/** A message from a stream. The broker delivers it again unless it is acknowledged. */
export interface StreamMessage {
  readonly message: StoredMessage;
  ack(): void;
  /** Handling failed: deliver it again after `ms`. */
  again(ms: number): void;
  /**
   * Reports progress. Without it the broker redelivers the message after the consumer's
   * `silenceMs`.
   */
  working(): void;
  /** Do not deliver it again. */
  drop(): void;
}

/** Messages of a stream in order of arrival. Ends, or throws, with the connection. */
export interface StreamMessages extends AsyncIterable<StreamMessage> {
  stop(): void;
}

export interface ConnectionBucket {
  /** Null if the key does not exist. */
  get(key: string): Promise<Uint8Array | null>;
  put(key: string, data: Uint8Array): Promise<void>;
  delete(key: string): Promise<void>;
  keys(): Promise<string[]>;
}

export interface ConnectionObjects {
  /** Null if the object does not exist. `too_large`: it has more than `bytesMax` bytes. */
  get(name: string, bytesMax: number): Promise<Uint8Array | null | "too_large">;
  put(name: string, data: Uint8Array): Promise<void>;
  delete(name: string): Promise<void>;
  list(): Promise<{ name: string; bytes: number }[]>;
}

/** JetStream operations of one connection. Every call rejects with the client library's error. */
export interface ConnectionDurable {
  /** `duplicate`: the broker already had this id. `sequence`: number in the stream. */
  publish(
    subject: string,
    data: Uint8Array,
    options: DurablePublishOptions,
  ): Promise<{ readonly duplicate: boolean; readonly sequence: number }>;
  consume(options: ConsumeOptions): Promise<StreamMessages>;
  bucket(name: string): Promise<ConnectionBucket>;
  /** Rejects if the bucket does not exist. */
  objects(bucket: string): Promise<ConnectionObjects>;
  purge(stream: string, subject: string, upTo: number): Promise<void>;
}
