import type { Clock, Random } from "../core/index.ts";

/** A received message. The receiver owns `data`; the bus does not reuse it. */
export interface BusMessage {
  readonly subject: string;
  /**
   * Subject for the reply. Null if the sender expects none, or if this bus must not answer there.
   */
  readonly reply: string | null;
  /**
   * `Status: 503` and empty data mean that a message published with this `reply` had no subscriber.
   */
  readonly headers: Readonly<Record<string, string>>;
  readonly data: Uint8Array;
}

export interface PublishOptions {
  readonly reply?: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Best effort: the message is queued only while the queue is less than half full. */
  readonly isSpare?: boolean;
}

/**
 * `sent`: handed to an open connection. `queued`: the connection is down or slow; the bus
 * sends the message, in order, as soon as it can. `dropped`: the queue is full (older messages
 * stay), the message exceeds the broker's limit, its subject or a header is invalid, or the bus is
 * closed. `state` counts drops.
 */
export type PublishOutcome = "sent" | "queued" | "dropped";

/**
 * `noResponders`: the subject has no subscriber. `unreachable`: the connection is down, too many
 * requests are waiting, or `publish` would have dropped the request. Both are reported immediately.
 * A connection that breaks later does not end the wait: the reply may arrive on the next
 * connection.
 */
export type RequestOutcome =
  | { readonly kind: "reply"; readonly message: BusMessage }
  | { readonly kind: "timeout" | "noResponders" | "unreachable" };

export interface RequestOptions {
  readonly timeoutMs: number;
  readonly headers?: Readonly<Record<string, string>>;
  readonly signal?: AbortSignal;
}

export interface BusState {
  /** `connecting`: no connection has been made yet. `closed` is final. */
  readonly status: "connecting" | "connected" | "reconnecting" | "closed";
  /** `nats://host:4222` without credentials. Null while disconnected. */
  readonly server: string | null;
  /** Reason for being disconnected: a message for people, without secrets. Null while connected. */
  readonly why: string | null;
  readonly reconnects: number;
  readonly queuedMessages: number;
  readonly queuedBytes: number;
  readonly sentMessages: number;
  readonly receivedMessages: number;
  /** Discovery requests (`$SRV`) dropped because they exceeded the rate limit. */
  readonly ignoredMessages: number;
  readonly droppedMessages: number;
  /**
   * Messages sent on a connection that broke before the broker confirmed them; they may be lost.
   */
  readonly doubtfulMessages: number;
  /** Messages whose handler threw. Each one is a bug in a handler; the bus continues. */
  readonly handlerFaults: number;
  /**
   * Subjects that the broker refuses to let us subscribe to. The bus retries with each connection.
   */
  readonly refusedSubjects: readonly string[];
}

/**
 * Description of this process for the NATS micro-service protocol ($SRV.PING, INFO, STATS).
 */
export interface ServiceSpec {
  readonly name: string;
  /** Semantic version. */
  readonly version: string;
  readonly description: string;
  readonly metadata: Readonly<Record<string, string>>;
  /** Subjects that the service answers, each with its handler. */
  readonly endpoints: readonly {
    readonly name: string;
    readonly subject: string;
    readonly handler: BusHandler;
  }[];
}

export type BusHandler = (message: BusMessage) => void;

export interface Subscription {
  readonly subject: string;
  unsubscribe(): void;
}

/**
 * A publish/subscribe bus, independent of its transport. Promises:
 *
 * - No call blocks or throws because of the broker. The broker may be down at start, slow,
 *   partitioned or restarted; the bus reconnects with growing, jittered delays until it is closed.
 * - Subscriptions and the service survive every reconnect.
 * - While the connection is down, published messages wait in a queue bounded in messages and bytes.
 *   Messages that do not fit are dropped and counted.
 * - Delivery is at most once. A message may be lost in transit; when a connection breaks, even a
 *   message that was `sent` may be lost. A sender that needs certainty sends a request.
 * - Messages of one publisher to one subject arrive in order as long as the connection lasts.
 */
export interface Bus extends AsyncDisposable {
  readonly state: BusState;
  /**
   * Largest message in bytes that the broker accepts: the last value received, 1 MiB before that.
   */
  readonly payloadBytesMax: number;
  /** Prefix of the reply subjects of this process; a dot follows it. */
  readonly inboxPrefix: string;
  /** Access to what the broker stores (JetStream). Null for a bus inside the process. */
  readonly durable: DurableBus | null;

  /** Never throws. The bus takes over `data` and the headers: do not change them afterwards. */
  publish(subject: string, data: Uint8Array, options?: PublishOptions): PublishOutcome;
  /**
   * `*` and `>` are wildcards as in NATS. One of the subscribers with the same `queue` receives
   * each message. The bus calls the handler from the loop that reads the connection, without
   * buffering. A slow handler therefore delays the socket, and the broker may disconnect a slow
   * consumer. A handler bounds whatever it keeps.
   */
  subscribe(subject: string, handler: BusHandler, queue?: string): Subscription;
  /** Rejects only with ABORTED, when the signal fires. */
  request(subject: string, data: Uint8Array, options: RequestOptions): Promise<RequestOutcome>;

  /** Answers discovery and subscribes the endpoints as `subscribe` does. Call it at most once. */
  serve(spec: ServiceSpec): void;

  /** Calls `listener` at every change of `state.status`. */
  onStatus(listener: (state: BusState) => void): Disposable;

  /** Resolves to true once connected, or to false after `ms`. */
  connected(ms: number): Promise<boolean>;
  /**
   * Resolves to true once the broker has received every message published so far, or to false after
   * `ms`.
   */
  flush(ms: number): Promise<boolean>;
  /**
   * Sends queued messages for at most `ms`, then closes. Messages left over are dropped and
   * counted.
   */
  close(ms: number): Promise<void>;
}

/** Receives the log lines of a bus. `warn` marks lines that an operator should read. */
export type BusLog = (
  level: "info" | "warn",
  message: string,
  fields: Readonly<Record<string, unknown>>,
) => void;

/** Limits and timeouts of a bus. The defaults suit a fleet. */
export interface BusLimits {
  /** Messages and bytes that may wait while the connection is down or slow. */
  readonly queueMessages: number;
  readonly queueBytes: number;
  /** Bytes that may be sent without the broker's confirmation. */
  readonly windowBytes: number;
  /** Requests that may wait for their replies. */
  readonly requestsMax: number;
  /** Timeout for connecting to one server. */
  readonly connectMs: number;
  /**
   * Delay before the next connection attempt: it starts at the minimum and doubles up to the
   * maximum. The bus waits for half to all of it, at random.
   */
  readonly retryMinMs: number;
  readonly retryMaxMs: number;
  /** Interval of liveness checks of a connection, and how long the answer may take. */
  readonly pingMs: number;
  readonly silenceMs: number;
}

export const BUS_LIMITS: BusLimits = {
  queueMessages: 10_000,
  queueBytes: 16 * 2 ** 20,
  windowBytes: 4 * 2 ** 20,
  requestsMax: 100_000,
  connectMs: 5_000,
  retryMinMs: 250,
  retryMaxMs: 15_000,
  pingMs: 10_000,
  silenceMs: 10_000,
};

export const INBOX_PREFIX = "_INBOX";

/** Parameters of every bus, independent of its transport. */
export interface BusBasics {
  readonly clock: Clock;
  readonly random: Random;
  readonly log?: BusLog;
  readonly limits?: Partial<BusLimits>;
  /** Prefix of the reply subjects of this process. Default: `_INBOX`. */
  readonly inboxPrefix?: string;
  /**
   * Prefixes of the subjects that this process answers to. The bus removes any other `reply` from a
   * message, because a sender must not choose where this process publishes. Default: any subject.
   */
  readonly replyPrefixes?: readonly string[];
}

/** `refused`: the broker answered and rejected the message; `why` is its reason. */
export type DurableOutcome =
  | {
      readonly kind: "acknowledged";
      readonly duplicate: boolean;
      /** Sequence number in the stream. For a duplicate, the number of the first copy. */
      readonly sequence: number;
    }
  | { readonly kind: "refused"; readonly why: string }
  | { readonly kind: "unreachable" };

export interface DurablePublishOptions {
  /** The broker stores one message per id within the stream's duplicate window. */
  readonly id: string;
  readonly timeoutMs: number;
  readonly headers?: Readonly<Record<string, string>>;
}

export interface ConsumeOptions {
  readonly stream: string;
  /** Name under which the broker stores the progress. One process at a time uses it. */
  readonly consumer: string;
  /** Filter for subjects; `*` and `>` are wildcards as in NATS. */
  readonly subject: string;
  /**
   * Redelivery delay: a message is delivered again if its handling reports no progress for this
   * long. Default: 10 s.
   */
  readonly silenceMs?: number;
}

/** A message from a stream. */
export interface StoredMessage extends BusMessage {
  /**
   * Identifies the message: equal for each delivery, unique also if the stream is deleted and
   * recreated.
   */
  readonly key: string;
  /** Number of deliveries, this one included. */
  readonly delivery: number;
  /** The broker does not deliver the message again, even if its handler fails. */
  readonly isLast: boolean;
}

export interface ConsumptionState {
  /**
   * `waiting`: for a connection. `missing`: the broker has no such stream or refuses access to it.
   */
  readonly status: "consuming" | "waiting" | "missing" | "closed";
  /** Reason, for people. Null while consuming. */
  readonly why: string | null;
  /** Messages whose handler succeeded. */
  readonly handled: number;
  /** Messages dropped because every delivery failed. Each one is logged. */
  readonly givenUp: number;
}

export interface Consumption extends AsyncDisposable {
  readonly state: ConsumptionState;
}

/** `missing`: the key or the bucket does not exist. */
export type BucketRead =
  | { readonly kind: "value"; readonly data: Uint8Array }
  | { readonly kind: "missing" | "unreachable" };

export type BucketWrite =
  | { readonly kind: "done" | "unreachable" }
  | { readonly kind: "refused"; readonly why: string };

/**
 * Keys consist of letters, digits and `-_/=.`. The operator's settings of the bucket decide how
 * long values live.
 */
export interface Bucket {
  get(key: string): Promise<BucketRead>;
  put(key: string, data: Uint8Array): Promise<BucketWrite>;
  delete(key: string): Promise<BucketWrite>;
  /** All keys. Null if the broker cannot be asked. */
  keys(): Promise<readonly string[] | null>;
}

/** `too_large`: more bytes than allowed. `damaged`: checksum mismatch. */
export type ObjectRead =
  | { readonly kind: "value"; readonly data: Uint8Array }
  | { readonly kind: "missing" | "too_large" | "damaged" | "unreachable" };

export interface ObjectFacts {
  readonly name: string;
  readonly bytes: number;
}

/**
 * Objects of any size. A write replaces the whole object: a reader sees the old one or the new one.
 * Names are 1 to 256 printable ASCII characters without blanks.
 */
export interface ObjectStore {
  get(name: string, bytesMax: number): Promise<ObjectRead>;
  put(name: string, data: Uint8Array): Promise<BucketWrite>;
  delete(name: string): Promise<BucketWrite>;
  /** All objects. Null if the broker cannot be asked. */
  list(): Promise<readonly ObjectFacts[] | null>;
}

/**
 * Streams, buckets and objects that the broker stores (JetStream). The operator creates them. No
 * call throws or rejects because of the broker.
 */
export interface DurableBus {
  /** Waits for the broker's acknowledgement. The message is neither queued nor retried. */
  publish(
    subject: string,
    data: Uint8Array,
    options: DurablePublishOptions,
  ): Promise<DurableOutcome>;
  /**
   * Consumes a stream at least once per message, one message at a time. A message is done when
   * `handle` resolves; without a time limit. If `handle` rejects, the message is delivered again
   * after 1 s, then after twice the previous delay, at most 30 s; after ten deliveries it is
   * dropped. Later messages wait meanwhile. After a lost connection the message being handled may
   * be delivered twice. Consumption continues over reconnects and waits for a missing stream.
   */
  consume(options: ConsumeOptions, handle: (message: StoredMessage) => Promise<void>): Consumption;
  bucket(name: string): Bucket;
  /** Each call on the object store ends within 30 s. */
  objects(bucket: string): ObjectStore;
  /** Removes the messages of one subject up to and including sequence number `upTo`. */
  purge(stream: string, subject: string, upTo: number): Promise<BucketWrite>;
}

/**
 * Longer subjects are invalid. A broker accepts protocol lines of 4 KiB, which hold more than the
 * subject.
 */
const SUBJECT_CHARACTERS_MAX = 1_024;

/** One or more non-empty tokens without blanks. */
const TOKENS = /^[^\s.]+(?:\.[^\s.]+)*$/;
const WILDCARD = /(?:^|\.)[*>](?:\.|$)/;

/** Whether `subject` is valid for publishing. Wildcards are not. */
export function isSubject(subject: string): boolean {
  return isPattern(subject) && !WILDCARD.test(subject);
}

/**
 * Whether `pattern` is valid for subscribing: `*` stands for one token, a final `>` for one or
 * more.
 */
export function isPattern(pattern: string): boolean {
  if (pattern.length > SUBJECT_CHARACTERS_MAX || !TOKENS.test(pattern)) return false;
  return !/(?:^|\.)>\./.test(pattern);
}

/** Whether a message to `subject` reaches a subscription of `pattern`. */
export function matches(pattern: string, subject: string): boolean {
  const wanted = pattern.split(".");
  const given = subject.split(".");
  for (const [at, token] of wanted.entries()) {
    if (token === ">" && at === wanted.length - 1) return given.length > at;
    if (at >= given.length || (token !== "*" && token !== given[at])) return false;
  }
  return wanted.length === given.length;
}

/**
 * Whether a receiver may answer to `subject`, which the sender chose. Subjects on which agents take
 * commands and the server's own subjects are never allowed. Null `prefixes`: no further limit.
 */
export function mayAnswerTo(subject: string, prefixes: readonly string[] | null): boolean {
  if (!isSubject(subject) || subject.startsWith("kv-control-") || subject.startsWith("$")) {
    return false;
  }
  return prefixes === null || prefixes.some((prefix) => subject.startsWith(prefix));
}
