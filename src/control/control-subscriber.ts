import {
  type Bus,
  type BusMessage,
  type Consumption,
  type ConsumptionState,
  mayAnswerTo,
  type StoredMessage,
  type Subscription,
} from "../bus/index.ts";
import {
  HearthError,
  loopTurns,
  stringifyJson,
  TokenBuckets,
  TurnQueue,
  type TurnSource,
} from "../core/index.ts";
import { type EventLog, publishedEvent } from "../observability/activity/index.ts";
import {
  BROADCAST_SUBJECT,
  isRefusedForNow,
  issuerSubject,
  REPLY_HEADER,
  type RefusalCode,
  type Role,
  SERVICE_NAME,
  type Sender,
  SIGNATURE_HEADER,
  workerSubject,
} from "./command.ts";
import type { ControlLimits, ControlPlane } from "./control-plane.ts";
import { answerTypeOf, JSON_TYPE, type MediaType, MSGPACK_TYPE } from "./decode-command.ts";
import { encodeReceipt, type Receipt, refusedReceipt } from "./receipt.ts";

export interface ControlSubscriberOptions {
  /** Not closed by the subscriber. */
  readonly bus: Bus;
  readonly plane: ControlPlane;
  readonly events: EventLog;
  readonly workerId: string;
  readonly incarnation: bigint;
  /** Semantic version of the agent. */
  readonly version: string;
  /** Role of commands whose issuer has not proved its name. */
  readonly role: Role;
  /** Allowed prefixes of reply subjects. Default: any subject. */
  readonly replyPrefixes?: readonly string[];
  /** Issuer of commands that name none. */
  readonly issuer: string;
  /**
   * Also publish each receipt, including those of broadcasts, to `kv-control-receipts-{worker_id}`.
   */
  readonly publishReceipts: boolean;
  /**
   * Absent or null: commands are received as published. Otherwise commands are consumed one after
   * the other from the broker's stream of this name, including those published while this agent was
   * down. Receipts go to the subject in the header `Hearth-Reply`, because the stream replaces the
   * reply subject. Temporarily refused commands (`busy`, `rate_limited`, `internal`) are
   * redelivered, and answered when they are carried out or delivered for the last time. A command
   * without an id gets one from its position in the stream, so that it is carried out once.
   */
  readonly commandStream?: string | null;
  /**
   * Publish events to `kv-control-events-{worker_id}` in the form of `GET /v1/events`, with
   * `worker_id` and `incarnation`.
   */
  readonly publishEvents: boolean;
}

export type SubscriberStats = Readonly<ReturnType<ControlSubscriber["stats"]>>;

const HEADERS: Readonly<Record<MediaType, Readonly<Record<string, string>>>> = {
  [JSON_TYPE]: { "Content-Type": JSON_TYPE },
  [MSGPACK_TYPE]: { "Content-Type": MSGPACK_TYPE },
};

/** Answers per second, and at once, to commands of one subject that were not decoded. */
const UNREAD_PER_SECOND = 1_000;

interface Answer {
  readonly reply: string | null;
  readonly receipt: Receipt;
  readonly type: MediaType;
}

/** Reasons that a flood is answered with. These answers must not displace other answers. */
const FLOOD_REASONS: ReadonlySet<string> = new Set<RefusalCode>([
  "rate_limited",
  "malformed",
  "unproven",
  "implausible",
  "unknown_type",
  "too_large",
  "too_deep",
]);

/** Passes commands from a bus to the control plane, and receipts back. */
export class ControlSubscriber implements AsyncDisposable {
  readonly #options: ControlSubscriberOptions;
  readonly #listening: Disposable | null;
  readonly #kept: Consumption | null;
  #ofIssuers: readonly Subscription[] = [];
  #isClosed = false;
  /** Leaves the message in progress to the next consumer of the stream. */
  #leaveKept: () => void = () => undefined;
  readonly #counts = {
    received: 0,
    answered: 0,
    /** Commands without a reply subject, or with one that is not allowed. */
    unasked: 0,
    /** Answers that the bus did not accept. */
    lost: 0,
    /**
     * Commands that were not decoded because too many were waiting; answered `busy` within a rate
     * limit.
     */
    overflowed: 0,
    /**
     * Commands that were not decoded because their subject exceeded its rate; answered
     * `rate_limited` within a rate limit.
     */
    limited: 0,
  };
  readonly #unreadAnswers = new TokenBuckets();
  readonly #admission: AdmissionTable;
  /** Receipts to encode, at most as many as waiting commands. */
  readonly #answers = new TurnQueue<Answer>({
    source: loopTurns.source(),
    itemsMax: Number.POSITIVE_INFINITY,
    bytesMax: 0,
    run: ({ reply, receipt, type }) => this.#answer(reply, receipt, type),
  });

  constructor(options: ControlSubscriberOptions) {
    const { bus, workerId, incarnation, version, events, commandStream = null } = options;
    this.#options = options;
    this.#admission = new AdmissionTable(() => options.plane.limits());
    const commands = workerSubject(workerId);
    bus.serve({
      name: SERVICE_NAME,
      version,
      description: "Keeps KV cache blocks below the GPU; takes lifecycle commands.",
      metadata: { worker_id: workerId, incarnation: incarnation.toString() },
      endpoints: [
        {
          name: "commands",
          subject: commands,
          handler: (message) => {
            if (commandStream === null) this.#take(message, false);
          },
        },
        {
          name: "broadcast",
          subject: BROADCAST_SUBJECT,
          handler: (message) => this.#take(message, true),
        },
      ],
    });
    this.#kept =
      commandStream === null || bus.durable === null
        ? null
        : bus.durable.consume(
            { stream: commandStream, consumer: `hearth-${workerId}`, subject: commands },
            (message) => this.#takeKept(message),
          );
    const subject = `kv-control-events-${workerId}`;
    this.#listening = options.publishEvents
      ? events.listen((event) => {
          const of = { worker_id: workerId, incarnation: incarnation.toString() };
          const told = { ...of, ...publishedEvent(event) };
          const headers = HEADERS[JSON_TYPE];
          bus.publish(subject, Buffer.from(stringifyJson(told)), { headers, isSpare: true });
        })
      : null;
  }

  /** `waiting`: commands that are not yet answered. */
  stats() {
    return { ...this.#counts, waiting: this.#admission.waiting + this.#answers.length };
  }

  /**
   * Subscribes to, or unsubscribes from, the issuers' own subjects
   * `kv-control-{worker_id}.{issuer}` and `kv-control-broadcast.{issuer}`. Commands there are
   * received as published, also with a command stream. The server may deny the subscription, so it
   * is made only if needed.
   */
  setIssuerSubjects(areWanted: boolean): void {
    const isSubscribed = this.#ofIssuers.length > 0;
    if (areWanted === isSubscribed || this.#isClosed) return;
    for (const subscription of this.#ofIssuers) subscription.unsubscribe();
    const { bus, workerId } = this.#options;
    const subscribe = (subject: string, broadcast: boolean) =>
      bus.subscribe(issuerSubject(subject, "*"), (message) => this.#take(message, broadcast));
    this.#ofIssuers = areWanted
      ? [subscribe(workerSubject(workerId), false), subscribe(BROADCAST_SUBJECT, true)]
      : [];
  }

  /** Stops accepting commands. Commands in progress are answered while the bus exists. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    this.#listening?.[Symbol.dispose]();
    this.#leaveKept();
    await this.#kept?.[Symbol.asyncDispose]();
  }

  /** State of the command stream; null without one. */
  get streamState(): ConsumptionState | null {
    return this.#kept?.state ?? null;
  }

  /** Handles a message without persistence: if it is not accepted, it is lost. */
  #take(message: BusMessage, broadcast: boolean): void {
    if (this.#isClosed) return;
    this.#counts.received++;
    const queue = this.#admission.of(subjectIssuerOf(message));
    const refusal = this.#admission.refusal(queue, message.data.length);
    if (refusal === null) void this.#handle(message, broadcast, queue);
    else this.#refuseUnread(message, queue, refusal);
  }

  async #handle(message: BusMessage, broadcast: boolean, queue: SubjectQueue): Promise<void> {
    const { reply } = message;
    const receipt = await this.#submit(message, broadcast, reply, { queue });
    this.#answers.push({ reply, receipt, type: typeOf(message) });
  }

  /**
   * Handles a message of the stream. Resolves when it is answered; rejects if it must be
   * redelivered.
   */
  async #takeKept(message: StoredMessage): Promise<void> {
    const closed = () => new HearthError("ABORTED", "the subscriber is closing");
    if (this.#isClosed) throw closed();
    this.#counts.received++;
    const left = Promise.withResolvers<never>();
    this.#leaveKept = () => left.reject(closed());
    const reply = headerOf(message, REPLY_HEADER);
    const queue = this.#admission.of(subjectIssuerOf(message));
    const id = `stream/${message.key}`;
    const submitted = this.#submit(message, false, reply, { queue, id });
    const receipt = await Promise.race([submitted, left.promise]);
    // A repetition gets the same receipt on every delivery.
    const mayBeTaken = isRefusedForNow(receipt) && receipt.duplicate !== true;
    if (!mayBeTaken || message.isLast) this.#answer(reply, receipt, typeOf(message));
    if (mayBeTaken) throw new HearthError("LIMIT", receipt.reason!);
  }

  /** Submits the command and returns its receipt. */
  async #submit(
    message: BusMessage,
    broadcast: boolean,
    reply: string | null,
    { queue, id }: { readonly queue: SubjectQueue; readonly id?: string },
  ): Promise<Receipt> {
    using _waiting = this.#admission.enter(queue, message.data.length);
    const type = typeOf(message);
    const contentType = headerOf(message, "content-type");
    const sender = this.#senderOf(message, broadcast);
    return await this.#options.plane.submit(message.data, contentType, sender, {
      ...(id === undefined ? {} : { id }),
      source: queue.source,
      signature: headerOf(message, SIGNATURE_HEADER),
      onProgress: (progress) => this.#progress(reply, progress, type),
    });
  }

  #senderOf(message: BusMessage, broadcast: boolean): Sender {
    const { issuer, role } = this.#options;
    const subjectIssuer = subjectIssuerOf(message);
    const by = subjectIssuer === null ? {} : { subjectIssuer };
    const name = subjectIssuer ?? issuer;
    return {
      via: "nats",
      from: message.subject,
      name,
      role,
      roleKey: "nats.role",
      ...by,
      broadcast,
    };
  }

  /** Answers a command that was not decoded, within the rate limit. */
  #refuseUnread(message: BusMessage, { issuer }: SubjectQueue, refusal: AdmissionRefusal): void {
    if (refusal.code === "busy") this.#counts.overflowed++;
    else this.#counts.limited++;
    const nowMs = loopTurns.nowMs();
    if (!this.#unreadAnswers.take(issuer, nowMs, UNREAD_PER_SECOND, UNREAD_PER_SECOND)) return;
    const { workerId, incarnation } = this.#options;
    const head = { id: null, type: "", worker_id: workerId, issuer: this.#options.issuer };
    const whole = { ...head, incarnation: incarnation.toString() };
    this.#answer(message.reply, refusedReceipt(whole, refusal, 0), typeOf(message));
  }

  #answer(reply: string | null, receipt: Receipt, type: MediaType): void {
    const { publishReceipts, workerId } = this.#options;
    const isSpare = FLOOD_REASONS.has(receipt.reason?.split(":", 1)[0] ?? "");
    if (!this.#mayAnswerTo(reply)) this.#counts.unasked++;
    else if (this.#publish(reply, receipt, type, isSpare)) this.#counts.answered++;
    if (publishReceipts) this.#publish(`kv-control-receipts-${workerId}`, receipt, JSON_TYPE, true);
  }

  #progress(reply: string | null, receipt: Receipt, type: MediaType): void {
    if (this.#mayAnswerTo(reply)) this.#publish(reply, receipt, type, true);
  }

  /** The bus validates the reply subject, but not one in a header. */
  #mayAnswerTo(reply: string | null): reply is string {
    return reply !== null && mayAnswerTo(reply, this.#options.replyPrefixes ?? null);
  }

  /** Returns whether the bus accepted it. `isSpare`: answer to a flood, dropped first. */
  #publish(subject: string, receipt: Receipt, type: MediaType, isSpare: boolean): boolean {
    const { bus } = this.#options;
    const bytes = encodeReceipt(receipt, type, bus.payloadBytesMax);
    const outcome = bus.publish(subject, bytes, { headers: HEADERS[type], isSpare });
    if (outcome === "dropped") this.#counts.lost++;
    return outcome !== "dropped";
  }
}

/** Issuer named by the subject, `kv-control-w.ISSUER`; null for a shared subject. */
function subjectIssuerOf({ subject }: BusMessage): string | null {
  return subject.split(".")[1] ?? null;
}

/** Media type of the answer. */
function typeOf(message: BusMessage): MediaType {
  return answerTypeOf(headerOf(message, "accept"), headerOf(message, "content-type"));
}

/** Header names are case-insensitive. */
function headerOf({ headers }: BusMessage, name: string): string | null {
  const wanted = name.toLowerCase();
  const exact = Object.entries(headers).find(([key]) => key.toLowerCase() === wanted);
  return exact?.[1] ?? null;
}

/** Maximum unanswered commands of one subject, and maximum bytes of their bodies. */
const WAITING_MAX = 4_096;
const WAITING_BYTES_MAX = 32 * 2 ** 20;
/** The same limits for all subjects together. */
const ALL_WAITING_MAX = 8_192;
const ALL_WAITING_BYTES_MAX = 64 * 2 ** 20;
/** Maximum issuer subjects with a queue of their own; further ones share the common queue. */
const SUBJECTS_MAX = 64;
/** Number of issuers' rates that the shared subject may use. */
const SHARED_ISSUERS = 16;

/** Admission state of one subject: its own slices and its own limits. */
interface SubjectQueue {
  readonly source: TurnSource;
  /** Issuer named by the subject; empty for the shared subject. */
  readonly issuer: string;
  waiting: number;
  waitingBytes: number;
}

interface AdmissionRefusal {
  readonly code: Extract<RefusalCode, "busy" | "rate_limited">;
  readonly message: string;
}

/**
 * Admission control per subject, so that a flood on one subject leaves room and time to the others.
 */
class AdmissionTable {
  readonly #limits: () => ControlLimits;
  readonly #rates = new TokenBuckets();
  readonly #byIssuer = new Map<string, SubjectQueue>();
  waiting = 0;
  #waitingBytes = 0;

  constructor(limits: () => ControlLimits) {
    this.#limits = limits;
  }

  /** `issuer`: named by the subject; null for the shared subject. */
  of(issuer: string | null): SubjectQueue {
    const key = issuer ?? "";
    const known = this.#byIssuer.get(key);
    if (known !== undefined) return known;
    if (this.#byIssuer.size >= SUBJECTS_MAX && key !== "") {
      this.#dropIdle();
      if (this.#byIssuer.size >= SUBJECTS_MAX) return this.of(null);
    }
    const queue = { source: loopTurns.source(), issuer: key, waiting: 0, waitingBytes: 0 };
    this.#byIssuer.set(key, queue);
    return queue;
  }

  /**
   * Returns the refusal of an undecoded command, or null if it is admitted; admission takes one
   * token of the rate limit.
   */
  refusal({ issuer, waiting, waitingBytes }: SubjectQueue, bytes: number): AdmissionRefusal | null {
    const isFull = waiting >= WAITING_MAX || waitingBytes + bytes > WAITING_BYTES_MAX;
    const areFull =
      this.waiting >= ALL_WAITING_MAX || this.#waitingBytes + bytes > ALL_WAITING_BYTES_MAX;
    if (isFull || areFull) return { code: "busy", message: `${this.waiting} commands are waiting` };
    const { commandsPerSecond, commandsBurst } = this.#limits();
    const issuers = issuer === "" ? SHARED_ISSUERS : 1;
    const [perSecond, burst] = [commandsPerSecond * issuers, commandsBurst * issuers];
    if (this.#rates.take(issuer, loopTurns.nowMs(), perSecond, burst)) return null;
    return { code: "rate_limited", message: `${perSecond} commands a second per subject` };
  }

  /** Counts a waiting command until the result is disposed. */
  enter(queue: SubjectQueue, bytes: number): Disposable {
    const count = (sign: number) => {
      queue.waiting += sign;
      queue.waitingBytes += sign * bytes;
      this.waiting += sign;
      this.#waitingBytes += sign * bytes;
    };
    count(1);
    return { [Symbol.dispose]: () => count(-1) };
  }

  #dropIdle(): void {
    for (const [issuer, { waiting }] of this.#byIssuer) {
      if (waiting === 0) this.#byIssuer.delete(issuer);
    }
  }
}
