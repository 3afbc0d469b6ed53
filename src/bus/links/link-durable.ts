import type { ConsumeOptions, DurablePublishOptions, KeptMessage } from "../durable.ts";

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
