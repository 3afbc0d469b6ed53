import type { Clock, Random } from "../core/index.ts";

/** A message as it came. `data` is the receiver's own: it is not reused. */
export interface BusMessage {
  readonly subject: string;
  /** Where an answer is expected; null if none is, or if the bus does not answer there. */
  readonly reply: string | null;
  /** `Status: 503` and no data: nobody listens where something was published with this `reply`. */
  readonly headers: Readonly<Record<string, string>>;
  readonly data: Uint8Array;
}

export interface PublishOptions {
  readonly reply?: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Nobody waits for it: it gets none of the second half of the queue. */
  readonly isSpare?: boolean;
}

/**
 * `sent`: handed to a connection that lives. `queued`: there is none now, or it is slow; it goes
 * out, in order, as soon as one takes it. `dropped`: the queue is full (the oldest stay), it is
 * larger than the broker takes, its subject or a header is none, or the bus is closed; counted in
 * `state`.
 */
export type PublishOutcome = "sent" | "queued" | "dropped";

/**
 * `noResponders`: nobody listens there, said at once. `unreachable`: no connection now, too many
 * requests wait already, or `publish` would have dropped it; also said at once. A connection that
 * breaks later does not end the wait: the answer may come over the next one.
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
  /** `connecting`: never connected so far. `closed` is the end. */
  readonly status: "connecting" | "connected" | "reconnecting" | "closed";
  /** `nats://host:4222` without credentials; null while unconnected. */
  readonly server: string | null;
  /** Why it is not connected, in words for people, without secrets; null while it is. */
  readonly why: string | null;
  readonly reconnects: number;
  readonly queuedMessages: number;
  readonly queuedBytes: number;
  readonly sentMessages: number;
  readonly receivedMessages: number;
  /** Of these, questions of discovery ($SRV) beyond the rate at which they are answered. */
  readonly ignoredMessages: number;
  readonly droppedMessages: number;
  /** Sent on connections that broke before the broker had confirmed them: lost, or not. */
  readonly doubtfulMessages: number;
  /** Messages the handlers threw at: a bug of ours, and no reason to stop. */
  readonly handlerFaults: number;
  /** Subjects that the broker does not let us subscribe; tried again with each connection. */
  readonly refusedSubjects: readonly string[];
}

/** How tools that speak the micro-service protocol ($SRV.PING, INFO, STATS) see this process. */
export interface ServiceSpec {
  readonly name: string;
  /** Semantic version. */
  readonly version: string;
  readonly description: string;
  readonly metadata: Readonly<Record<string, string>>;
  /** Subjects it serves, each with the handler that gets their messages. */
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
 * A bus of subjects, whatever carries it. Promises:
 *
 * - Nothing here blocks or throws for what the broker does: it may be down at the start, slow,
 *   partitioned, restarted; the bus goes on trying, with growing waits and jitter, until closed.
 * - Subscriptions and the service outlive every reconnect.
 * - Messages published while there is no connection wait in a queue that is bounded in messages and
 *   bytes; what does not fit is dropped and counted, never silently.
 * - At most once: a message may be lost on the way, and in the moment a connection breaks even one
 *   that was `sent`. Whoever must know asks for an answer.
 * - Messages of one publisher to one subject come in order, as long as no connection breaks.
 */
export interface Bus extends AsyncDisposable {
  readonly state: BusState;
  /** Bytes of the largest message the broker takes; what was heard last, 1 MiB before that. */
  readonly payloadBytesMax: number;
  /** Subjects of answers to this process begin with it and a dot. */
  readonly inboxPrefix: string;
  /** What the broker keeps, where it can; null for a bus inside the process. */
  readonly durable: DurableBus | null;

  /** Never throws. `data` and headers belong to the bus from here on: do not change them. */
  publish(subject: string, data: Uint8Array, options?: PublishOptions): PublishOutcome;
  /**
   * `*` and `>` as in NATS. With `queue`, one of those with the same name gets each message.
   * Messages are handed over as they come, in the loop that reads the connection: a handler that
   * takes its time holds up the socket, and in the end the broker, which may then cut us off; it
   * never fills memory here. What a handler keeps, it must bound itself.
   */
  subscribe(subject: string, handler: BusHandler, queue?: string): Subscription;
  /** Rejects only with ABORTED, when the signal fires. */
  request(subject: string, data: Uint8Array, options: RequestOptions): Promise<RequestOutcome>;

  /** Answers discovery; its endpoints are subscribed as by `subscribe`. At most one service. */
  serve(spec: ServiceSpec): void;

  /** Told of every change of `state.status`. */
  onStatus(listener: (state: BusState) => void): Disposable;

  /** Resolves when connected: true; or after `ms`: false. */
  connected(ms: number): Promise<boolean>;
  /** True when the broker has everything published so far; false after `ms`. */
  flush(ms: number): Promise<boolean>;
  /** Sends what waits, for `ms` at most, then closes; what is left is dropped and counted. */
  close(ms: number): Promise<void>;
}

/** Where what the bus has to say goes; `warn` is for what someone should look at. */
export type BusLog = (
  level: "info" | "warn",
  message: string,
  fields: Readonly<Record<string, unknown>>,
) => void;

/** Every wait and bound of a bus; the defaults are for a fleet. */
export interface BusLimits {
  /** What may wait while there is no connection or a slow one. */
  readonly queueMessages: number;
  readonly queueBytes: number;
  /** What may be on its way without a sign that the broker has it. */
  readonly windowBytes: number;
  /** How many requests may wait for their answers. */
  readonly requestsMax: number;
  /** How long one server may take to be connected to. */
  readonly connectMs: number;
  /** The first wait before another attempt, doubled each time up to the second; less jitter. */
  readonly retryMinMs: number;
  readonly retryMaxMs: number;
  /** How often a connection is asked for a sign of life, and how long it may take to give one. */
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

/** What every bus needs, whatever carries it. */
export interface BusBasics {
  readonly clock: Clock;
  readonly random: Random;
  readonly log?: BusLog;
  readonly limits?: Partial<BusLimits>;
  /** Subjects of answers to this process begin with it; `_INBOX` unless given. */
  readonly inboxPrefix?: string;
  /**
   * How subjects begin that this process answers to. Every other `reply` of a message is dropped:
   * a sender must not choose where this process publishes. Answers go anywhere unless given.
   */
  readonly replyPrefixes?: readonly string[];
}

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

/** Longer subjects are refused: brokers take lines of 4 KiB, in which more than this must fit. */
const SUBJECT_CHARACTERS_MAX = 1_024;

/** One or more tokens, none empty, without blanks. */
const TOKENS = /^[^\s.]+(?:\.[^\s.]+)*$/;
const WILDCARD = /(?:^|\.)[*>](?:\.|$)/;

/** Whether something can be published there: no wildcards. */
export function isSubject(subject: string): boolean {
  return isPattern(subject) && !WILDCARD.test(subject);
}

/** Whether it can be subscribed: `*` stands for one token, `>` at the end for one or more. */
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
 * Whether a receiver may answer to `subject`, which the sender chose. It may not where agents take
 * commands or the server its own requests, whatever `prefixes` say. Null: no other limit.
 */
export function mayAnswerTo(subject: string, prefixes: readonly string[] | null): boolean {
  if (!isSubject(subject) || subject.startsWith("kv-control-") || subject.startsWith("$")) {
    return false;
  }
  return prefixes === null || prefixes.some((prefix) => subject.startsWith(prefix));
}
