import type { BusMessage } from "./bus.ts";

/** `refused`: the broker answered and did not take it, with the reason in words. */
export type DurableOutcome =
  | {
      readonly kind: "acknowledged";
      readonly duplicate: boolean;
      /** The stream's number of the message; of a duplicate, that of the first. */
      readonly sequence: number;
    }
  | { readonly kind: "refused"; readonly why: string }
  | { readonly kind: "unreachable" };

export interface DurablePublishOptions {
  /** The broker keeps one message of each id, for as long as the stream remembers ids. */
  readonly id: string;
  readonly timeoutMs: number;
  readonly headers?: Readonly<Record<string, string>>;
}

export interface ConsumeOptions {
  readonly stream: string;
  /** Under this name the broker remembers what was done; one process at a time uses it. */
  readonly consumer: string;
  /** Only what was published there; `*` and `>` as in NATS. */
  readonly subject: string;
  /** So long after the last sign that it is at work a message comes again; 10 s if left out. */
  readonly silenceMs?: number;
}

/** A message that a stream keeps. */
export interface KeptMessage extends BusMessage {
  /** The same each time it comes, and that of no other, also where the stream was made anew. */
  readonly key: string;
  /** How often it has come, this time included. */
  readonly delivery: number;
  /** It does not come again, whatever becomes of it. */
  readonly isLast: boolean;
}

export interface ConsumptionState {
  /** `waiting`: for a connection. `missing`: the broker has no such stream, or refuses it. */
  readonly status: "consuming" | "waiting" | "missing" | "closed";
  /** In words for people; null while consuming. */
  readonly why: string | null;
  /** Messages that were handled to the end. */
  readonly handled: number;
  /** Messages that were not, however often they came; the log has a line for each. */
  readonly givenUp: number;
}

export interface Consumption extends AsyncDisposable {
  readonly state: ConsumptionState;
}

/** `missing`: there is no such key; or no such bucket. */
export type BucketRead =
  | { readonly kind: "value"; readonly data: Uint8Array }
  | { readonly kind: "missing" | "unreachable" };

export type BucketWrite =
  | { readonly kind: "done" | "unreachable" }
  | { readonly kind: "refused"; readonly why: string };

/** Keys are letters, digits and `-_/=.`; how long values live is the bucket's own affair. */
export interface Bucket {
  get(key: string): Promise<BucketRead>;
  put(key: string, data: Uint8Array): Promise<BucketWrite>;
  delete(key: string): Promise<BucketWrite>;
  /** All keys there are; null when that cannot be told. */
  keys(): Promise<readonly string[] | null>;
}

/** `too_large`: it has more bytes than were allowed. `damaged`: its checksum is not right. */
export type ObjectRead =
  | { readonly kind: "value"; readonly data: Uint8Array }
  | { readonly kind: "missing" | "too_large" | "damaged" | "unreachable" };

export interface ObjectFacts {
  readonly name: string;
  readonly bytes: number;
}

/**
 * Objects of any size, each replaced as a whole: whoever reads gets the old one or the new one.
 * Names are 1 to 256 printable characters without blanks.
 */
export interface ObjectStore {
  get(name: string, bytesMax: number): Promise<ObjectRead>;
  put(name: string, data: Uint8Array): Promise<BucketWrite>;
  delete(name: string): Promise<BucketWrite>;
  /** All there are; null when that cannot be told. */
  list(): Promise<readonly ObjectFacts[] | null>;
}

/**
 * What the broker keeps (JetStream). Streams and buckets are made by the operator. Nothing here
 * throws or rejects for what the broker does.
 */
export interface DurableBus {
  /** Waits for the broker's word that it has the message; it is not queued and not tried again. */
  publish(
    subject: string,
    data: Uint8Array,
    options: DurablePublishOptions,
  ): Promise<DurableOutcome>;
  /**
   * At least once: each message goes to `handle`, one after the other, and is done when that
   * resolves, however long it takes. When it rejects, the message comes again after a second, then
   * after twice as long each time, 30 s at most; ten times in all, then it is given up. Those
   * behind it wait meanwhile. After a break the one at work may come twice. Goes on over
   * reconnects, and waits for a stream that is not there.
   */
  consume(options: ConsumeOptions, handle: (message: KeptMessage) => Promise<void>): Consumption;
  bucket(name: string): Bucket;
  /** Each call of it ends within half a minute. */
  objects(bucket: string): ObjectStore;
  /** Removes what a stream keeps of one subject, up to this number of its own, included. */
  purge(stream: string, subject: string, upTo: number): Promise<BucketWrite>;
}
