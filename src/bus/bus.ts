import type { Clock, Random } from "../core/index.ts";

/** A received message. The receiver owns `data`; the bus does not reuse it. */
export interface BusMessage {
  readonly subject: string;
  /**
   * Subject for the reply. Null if the sender expects none, or if this process may not publish on
   * that subject (see `replyPrefixes`).
   */
  readonly reply: string | null;
  /**
   * Headers by name. If a message was published with a `reply` and its subject has no subscriber,
   * the broker sends an empty message with `Status: 503` to that reply subject.
   */
  readonly headers: Readonly<Record<string, string>>;
  readonly data: Uint8Array;
}

export interface PublishOptions {
  readonly reply?: string;
  readonly headers?: Readonly<Record<string, string>>;
  /**
   * True for a best-effort message, which is queued only while the queue is less than half full.
   */
  readonly isSpare?: boolean;
}

/**
 * Result of publishing. `sent`: passed to an open connection. `queued`: the connection is down or
 * slow; the bus sends the message, in order, as soon as it can. `dropped`: the message is discarded
 * because the queue is full (queued messages stay), the message exceeds the broker's limit, its
 * subject or a header is invalid, or the bus is closed. `state` counts dropped messages.
 */
export type PublishOutcome = "sent" | "queued" | "dropped";

/**
 * Result of a request. `noResponders`: the subject has no subscriber. `unreachable`: the connection
 * is down, too many requests are waiting, or `publish` would have dropped the message. Both are
 * reported immediately. If the connection breaks while a request waits, the wait continues, because
 * the reply may arrive on the next connection.
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
  /** `connecting`: the bus has not been connected yet. `closed` is final. */
  readonly status: "connecting" | "connected" | "reconnecting" | "closed";
  /**
   * URL of the connected server without credentials, such as `nats://host:4222`. Null while
   * disconnected.
   */
  readonly server: string | null;
  /**
   * Why the bus is disconnected: a message for operators, without secrets. Null while connected.
   */
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
   * Messages that were sent on a connection that broke before the broker confirmed them. They may
   * be lost.
   */
  readonly doubtfulMessages: number;
  /**
   * Number of exceptions thrown by message handlers. Each one is a bug in a handler; the bus
   * continues.
   */
  readonly handlerFaults: number;
  /**
   * Subjects that the broker does not permit this process to subscribe to. The bus tries again on
   * each new connection.
   */
  readonly refusedSubjects: readonly string[];
}

/**
 * Description of this process for the NATS micro-service protocol ($SRV.PING, INFO, STATS).
 */
export interface ServiceSpec {
  readonly name: string;
  /** Version of the service (semantic version). */
  readonly version: string;
  readonly description: string;
  readonly metadata: Readonly<Record<string, string>>;
  /** Subjects on which the service handles requests, each with its handler. */
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
   * Largest message in bytes that the broker accepts: the last value received from a broker, or 1
   * MiB before the first connection.
   */
  readonly payloadBytesMax: number;
  /** Prefix of the subjects on which this process receives replies, without the final dot. */
  readonly inboxPrefix: string;
  /**
   * Streams, buckets and objects stored by the broker (JetStream). Null for a bus inside the
   * process.
   */
  readonly durable: DurableBus | null;

  /**
   * Publishes a message. Never throws. The bus takes over `data` and the headers: do not change
   * them afterwards.
   */
  publish(subject: string, data: Uint8Array, options?: PublishOptions): PublishOutcome;
  /**
   * Calls the handler for each message on the subject; `*` and `>` are wildcards as in NATS. If
   * several subscribers have the same `queue`, one of them receives each message. The bus calls the
   * handler directly from the loop that reads the connection, without a queue: a slow handler
   * delays reading, and the broker may then disconnect this process. A handler must limit the data
   * that it keeps.
   */
  subscribe(subject: string, handler: BusHandler, queue?: string): Subscription;
  /**
   * Publishes a message and waits for one reply. Rejects only with ABORTED, when the signal fires.
   */
  request(subject: string, data: Uint8Array, options: RequestOptions): Promise<RequestOutcome>;

  /**
   * Announces the service in NATS discovery and subscribes its endpoints as `subscribe` does. Call
   * it at most once.
   */
  serve(spec: ServiceSpec): void;

  /** Calls `listener` at every change of `state.status`. */
  onStatus(listener: (state: BusState) => void): Disposable;

  /** Waits for the connection. Resolves to true once connected, or to false after `ms`. */
  connected(ms: number): Promise<boolean>;
  /**
   * Waits for the broker. Resolves to true once it has received every message published so far, or
   * to false after `ms`.
   */
  flush(ms: number): Promise<boolean>;
  /**
   * Sends queued messages for at most `ms`, then closes the bus. Messages still in the queue are
   * dropped and counted.
   */
  close(ms: number): Promise<void>;
}

/** Receives the log lines of a bus. `warn` is the level for lines that an operator should read. */
export type BusLog = (
  level: "info" | "warn",
  message: string,
  fields: Readonly<Record<string, unknown>>,
) => void;

/** Limits and timeouts of a bus. The defaults suit a large number of hosts. */
export interface BusLimits {
  /** Maximum messages, and maximum bytes, that wait while the connection is down or slow. */
  readonly queueMessages: number;
  readonly queueBytes: number;
  /** Maximum bytes sent without the broker's confirmation of receipt. */
  readonly windowBytes: number;
  /** Maximum requests that wait for their replies at the same time. */
  readonly requestsMax: number;
  /** Timeout in ms for connecting to one server. */
  readonly connectMs: number;
  /**
   * Delay in ms before the next connection attempt: starts at the minimum and doubles up to the
   * maximum. The actual delay is a random value between half of it and all of it.
   */
  readonly retryMinMs: number;
  readonly retryMaxMs: number;
  /**
   * Interval in ms between liveness checks of a connection, and maximum ms until the broker's reply
   * to one.
   */
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

/** Parameters that every bus has, with or without a broker. */
export interface BusBasics {
  readonly clock: Clock;
  readonly random: Random;
  readonly log?: BusLog;
  readonly limits?: Partial<BusLimits>;
  /** Prefix of the subjects on which this process receives replies. Default: `_INBOX`. */
  readonly inboxPrefix?: string;
  /**
   * Prefixes of the subjects to which this process may send replies. The bus removes any other
   * `reply` from received messages, because a sender must not choose any subject that this process
   * publishes on. Default: all subjects.
   */
  readonly replyPrefixes?: readonly string[];
}

/**
 * Result of publishing to a stream. `refused`: the broker rejected the message; `why` is its
 * reason.
 */
export type DurableOutcome =
  | {
      readonly kind: "acknowledged";
      readonly duplicate: boolean;
      /**
       * Sequence number of the message in the stream. For a duplicate, the number of the first
       * copy.
       */
      readonly sequence: number;
    }
  | { readonly kind: "refused"; readonly why: string }
  | { readonly kind: "unreachable" };

export interface DurablePublishOptions {
  /**
   * Id of the message. Within the stream's duplicate window, the broker stores only one message
   * with the same id.
   */
  readonly id: string;
  readonly timeoutMs: number;
  readonly headers?: Readonly<Record<string, string>>;
}

export interface ConsumeOptions {
  readonly stream: string;
  /**
   * Name under which the broker stores how far the stream has been consumed. Only one process may
   * use it at a time.
   */
  readonly consumer: string;
  /** Subjects to consume; `*` and `>` are wildcards as in NATS. */
  readonly subject: string;
  /**
   * Redelivery delay in ms: the broker delivers a message again if it gets no sign of progress for
   * this long. Default: 10 s.
   */
  readonly silenceMs?: number;
}

/** A message from a stream. */
export interface StoredMessage extends BusMessage {
  /**
   * Identifies the message. The key is the same for each delivery, and differs from all others even
   * if the stream is deleted and created again.
   */
  readonly key: string;
  /** Number of deliveries of this message, this one included. */
  readonly delivery: number;
  /** True if the broker will not deliver the message again, even if its handler fails. */
  readonly isLast: boolean;
}

export interface ConsumptionState {
  /**
   * State of consumption. `waiting`: for a connection. `missing`: the broker has no such stream or
   * denies access to it.
   */
  readonly status: "consuming" | "waiting" | "missing" | "closed";
  /** Why nothing is consumed: a message for operators. Null while consuming. */
  readonly why: string | null;
  /** Messages whose handler has succeeded. */
  readonly handled: number;
  /** Messages dropped because the handler failed for every delivery. Each one is logged. */
  readonly givenUp: number;
}

export interface Consumption extends AsyncDisposable {
  readonly state: ConsumptionState;
}

/** Result of reading a key. `missing`: the key or the whole bucket does not exist. */
export type BucketRead =
  | { readonly kind: "value"; readonly data: Uint8Array }
  | { readonly kind: "missing" | "unreachable" };

export type BucketWrite =
  | { readonly kind: "done" | "unreachable" }
  | { readonly kind: "refused"; readonly why: string };

/**
 * A key-value bucket stored by the broker. Keys consist of letters, digits and `-_/=.`. The
 * operator's settings of the bucket decide how long values are kept.
 */
export interface Bucket {
  get(key: string): Promise<BucketRead>;
  put(key: string, data: Uint8Array): Promise<BucketWrite>;
  delete(key: string): Promise<BucketWrite>;
  /** Returns all keys. Null if the broker cannot be reached. */
  keys(): Promise<readonly string[] | null>;
}

/**
 * Result of reading an object. `too_large`: it has more bytes than the caller allows. `damaged`:
 * its bytes do not match its checksum.
 */
export type ObjectRead =
  | { readonly kind: "value"; readonly data: Uint8Array }
  | { readonly kind: "missing" | "too_large" | "damaged" | "unreachable" };

export interface ObjectFacts {
  readonly name: string;
  readonly bytes: number;
}

/**
 * Objects of any size, stored by the broker. Writing replaces the whole object: readers get either
 * the old or the new one. Names are 1 to 256 printable ASCII characters without blanks.
 */
export interface ObjectStore {
  get(name: string, bytesMax: number): Promise<ObjectRead>;
  put(name: string, data: Uint8Array): Promise<BucketWrite>;
  delete(name: string): Promise<BucketWrite>;
  /** Returns all objects' names and sizes. Null if the broker cannot be reached. */
  list(): Promise<readonly ObjectFacts[] | null>;
}

/**
 * Streams, buckets and objects that the broker stores (JetStream). The operator creates them. No
 * call throws or rejects because of the broker.
 */
export interface DurableBus {
  /**
   * Publishes to a stream and waits for the broker's acknowledgement. The message is neither queued
   * nor sent again.
   */
  publish(
    subject: string,
    data: Uint8Array,
    options: DurablePublishOptions,
  ): Promise<DurableOutcome>;
  /**
   * Consumes a stream, one message at a time, each at least once. A message is done when `handle`
   * resolves, without a time limit. If `handle` rejects, the message is delivered again: after 1 s,
   * then after twice the previous delay, at most 30 s; after ten deliveries it is dropped. Later
   * messages wait meanwhile. If the connection is lost while a message is handled, it may be
   * delivered twice. Consumption continues after reconnects and waits for a missing stream.
   */
  consume(options: ConsumeOptions, handle: (message: StoredMessage) => Promise<void>): Consumption;
  bucket(name: string): Bucket;
  /** Returns the object store of a bucket. Each call on it ends within 30 s. */
  objects(bucket: string): ObjectStore;
  /**
   * Deletes the messages of one subject from the stream, up to and including sequence number
   * `upTo`.
   */
  purge(stream: string, subject: string, upTo: number): Promise<BucketWrite>;
}

/**
 * Maximum characters of a subject. A broker accepts protocol lines of 4 KiB, which contain more
 * than the subject.
 */
const SUBJECT_CHARACTERS_MAX = 1_024;

/** Matches one or more non-empty tokens without blanks, separated by dots. */
const TOKENS = /^[^\s.]+(?:\.[^\s.]+)*$/;
const WILDCARD = /(?:^|\.)[*>](?:\.|$)/;

/** Returns true if `subject` is valid for publishing. Wildcards are not allowed. */
export function isSubject(subject: string): boolean {
  return isPattern(subject) && !WILDCARD.test(subject);
}

/**
 * Returns true if `pattern` is valid for subscribing: `*` stands for one token, a final `>` for one
 * or more.
 */
export function isPattern(pattern: string): boolean {
  if (pattern.length > SUBJECT_CHARACTERS_MAX || !TOKENS.test(pattern)) return false;
  return !/(?:^|\.)>\./.test(pattern);
}

/** Returns true if a message on `subject` matches the subscription pattern. */
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
 * Returns true if a receiver may send its reply to `subject`, which the sender chose. Subjects on
 * which agents take commands and the server's own subjects are never allowed. `prefixes` null: all
 * other subjects are allowed.
 */
export function mayAnswerTo(subject: string, prefixes: readonly string[] | null): boolean {
  if (!isSubject(subject) || subject.startsWith("kv-control-") || subject.startsWith("$")) {
    return false;
  }
  return prefixes === null || prefixes.some((prefix) => subject.startsWith(prefix));
}
