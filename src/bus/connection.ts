import type { BusMessage, ConsumeOptions, DurablePublishOptions, KeptMessage } from "./bus.ts";

/** A message on its way out. */
export interface Outgoing {
  readonly subject: string;
  readonly data: Uint8Array;
  readonly reply: string | null;
  readonly headers: Readonly<Record<string, string>> | null;
}

/** A message as a link delivers it. */
export interface Incoming extends BusMessage {
  /** The number in the first header line, 503 where nobody listens; 0 without one. */
  readonly status: number;
}

/**
 * One connection to a broker, from its first byte to its last. It never reconnects: whoever holds
 * it dials another.
 */
export interface Link {
  /** As people may read it: without credentials. Null: it is in this process. */
  readonly server: string | null;
  /** Bytes of data and headers together. */
  readonly payloadBytesMax: number;

  /** Hands over to the client library. Throws when that refuses it; nothing was sent then. */
  publish(message: Outgoing): void;
  /**
   * `refused` is called, with the reason, when the broker does not allow it; it then stays silent.
   * The function returned ends the subscription.
   */
  subscribe(
    subject: string,
    queue: string | undefined,
    deliver: (message: Incoming) => void,
    refused: (why: string) => void,
  ): () => void;
  /** Resolves when the broker has all that was published before; may never settle. */
  confirm(): Promise<void>;
  /** Resolves when the link is over, whoever ended it, with the reason in words; never rejects. */
  readonly closed: Promise<string>;
  /** Null where the broker keeps nothing. */
  readonly durable: LinkDurable | null;
  /** Ends it now, without waiting for anything. */
  end(why: string): void;
}

/** Opens a link. Rejects with a message fit for people; `signal`: nobody wants it any more. */
export type Dial = (signal: AbortSignal) => Promise<Link>;

const HEADER_NAME = /^[!-9;-~]+$/;
const LINE_END = /[\r\n]/;

/** Names of printable ASCII without a colon, values of one line. */
export function areHeaders(headers: Readonly<Record<string, string>>): boolean {
  return Object.entries(headers).every(
    ([name, value]) => HEADER_NAME.test(name) && !LINE_END.test(value),
  );
}

/** Bytes of the headers as NATS writes them; 0 without any. */
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

/** Where nobody says how long a message may be at work without a sign. */
export const SILENCE_MS = 10_000;

/** A message of a stream; it comes again unless acknowledged. */
export interface StreamMessage {
  readonly message: KeptMessage;
  ack(): void;
  /** Not done: again after `ms`. */
  again(ms: number): void;
  /** Still at work: without such a sign it comes again after the `silenceMs` of its consumer. */
  working(): void;
  /** Never again. */
  drop(): void;
}

/** Messages of a stream as they come. Ends, or throws, with the connection. */
export interface StreamMessages extends AsyncIterable<StreamMessage> {
  stop(): void;
}

export interface LinkBucket {
  /** Null: no such key. */
  get(key: string): Promise<Uint8Array | null>;
  put(key: string, data: Uint8Array): Promise<void>;
  delete(key: string): Promise<void>;
  keys(): Promise<string[]>;
}

export interface LinkObjects {
  /** Null: no such object. `too_large`: it has more than `bytesMax`. */
  get(name: string, bytesMax: number): Promise<Uint8Array | null | "too_large">;
  put(name: string, data: Uint8Array): Promise<void>;
  delete(name: string): Promise<void>;
  list(): Promise<{ name: string; bytes: number }[]>;
}

/** What a link to a broker with JetStream can do. Everything rejects with the library's errors. */
export interface LinkDurable {
  /** `duplicate`: the broker had this id already. `sequence`: of the stream. */
  publish(
    subject: string,
    data: Uint8Array,
    options: DurablePublishOptions,
  ): Promise<{ readonly duplicate: boolean; readonly sequence: number }>;
  consume(options: ConsumeOptions): Promise<StreamMessages>;
  bucket(name: string): Promise<LinkBucket>;
  /** Rejects where there is no such bucket. */
  objects(bucket: string): Promise<LinkObjects>;
  purge(stream: string, subject: string, upTo: number): Promise<void>;
}
