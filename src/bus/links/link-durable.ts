import type { BusMessage } from "../bus.ts";
import type { ConsumeOptions, DurablePublishOptions } from "../durable.ts";

/** A message of a stream; it comes again unless acknowledged. */
export interface StreamMessage {
  readonly message: BusMessage;
  ack(): void;
  /** Not done: again after `ms`. */
  again(ms: number): void;
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

/** What a link to a broker with JetStream can do. Everything rejects with the library's errors. */
export interface LinkDurable {
  /** Resolves with whether the broker had this id already. */
  publish(subject: string, data: Uint8Array, options: DurablePublishOptions): Promise<boolean>;
  consume(options: ConsumeOptions): Promise<StreamMessages>;
  bucket(name: string): Promise<LinkBucket>;
}
