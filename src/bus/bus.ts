import type { DurableBus } from "./durable.ts";

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
