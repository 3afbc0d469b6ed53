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
  /** The bus to receive commands from. The caller owns it; the subscriber does not close it. */
  readonly bus: Bus;
  readonly plane: ControlPlane;
  readonly events: EventLog;
  readonly workerId: string;
  readonly incarnation: bigint;
  /** Version of the agent (semantic version). */
  readonly version: string;
  /** Role of commands whose issuer has not proved its name. */
  readonly role: Role;
  /** Prefixes of the subjects to which receipts may be sent. Default: any subject. */
  readonly replyPrefixes?: readonly string[];
  /** Issuer of those commands that name none. */
  readonly issuer: string;
  /**
   * True to publish each receipt, including those of broadcasts, also to
   * `kv-control-receipts-{worker_id}`.
   */
  readonly publishReceipts: boolean;
  /**
   * Name of the JetStream stream to consume commands from. The commands are consumed one after the
   * other, including those published while this agent was down. Absent or null: commands are
   * received directly as published. With a stream, receipts go to the subject in the header
   * `Hearth-Reply`, because the stream replaces the reply subject. Temporarily refused commands
   * (`busy`, `rate_limited`, `internal`) are delivered again; their receipt is sent when they are
   * carried out or delivered for the last time. A command without an id gets one made from its
   * position in the stream, so that it is carried out once.
   */
  readonly commandStream?: string | null;
  /**
   * True to publish events to `kv-control-events-{worker_id}`, in the format of `GET /v1/events`
   * with `worker_id` and `incarnation` added.
   */
  readonly publishEvents: boolean;
}

export type SubscriberStats = Readonly<ReturnType<ControlSubscriber["stats"]>>;

const HEADERS: Readonly<Record<MediaType, Readonly<Record<string, string>>>> = {
  [JSON_TYPE]: { "Content-Type": JSON_TYPE },
  [MSGPACK_TYPE]: { "Content-Type": MSGPACK_TYPE },
};

/**
 * Maximum receipts per second, and in one burst, for commands of one subject that were refused
 * before decoding.
 */
const UNREAD_PER_SECOND = 1_000;

interface Answer {
  readonly reply: string | null;
  readonly receipt: Receipt;
  readonly type: MediaType;
}

/**
 * Refusal reasons that a flood of commands causes. Receipts with these reasons are dropped first if
 * the bus is busy.
 */
const FLOOD_REASONS: ReadonlySet<string> = new Set<RefusalCode>([
  "rate_limited",
  "malformed",
  "unproven",
  "implausible",
  "unknown_type",
  "too_large",
  "too_deep",
]);

/** Passes commands from a bus to the control plane and sends the receipts back. */
export class ControlSubscriber implements AsyncDisposable {
  readonly #options: ControlSubscriberOptions;
  readonly #listening: Disposable | null;
  readonly #kept: Consumption | null;
  #ofIssuers: readonly Subscription[] = [];
  #isClosed = false;
  /**
   * Rejects the handling of the stream's current message, so that the broker delivers it to the
   * next consumer.
   */
  #leaveKept: () => void = () => undefined;
  readonly #counts = {
    received: 0,
    answered: 0,
    /**
     * Commands without a reply subject, or with one that is not allowed. No receipt is sent for
     * them.
     */
    unasked: 0,
    /** Receipts that the bus did not accept. */
    lost: 0,
    /**
     * Commands refused before decoding because too many were waiting. They get a `busy` receipt,
     * within a rate limit.
     */
    overflowed: 0,
    /**
     * Commands refused before decoding because their subject exceeded its rate. They get a
     * `rate_limited` receipt, within a rate limit.
     */
    limited: 0,
  };
  readonly #unreadAnswers = new TokenBuckets();
  readonly #admission: AdmissionTable;
  /** Queue of receipts to encode. It has at most as many entries as there are waiting commands. */
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

  /** Counters of the subscriber. `waiting`: commands whose receipt is not sent yet. */
  stats() {
    return { ...this.#counts, waiting: this.#admission.waiting + this.#answers.length };
  }

  /**
   * Subscribes to (or unsubscribes from) the issuers' own subjects,
   * `kv-control-{worker_id}.{issuer}` and `kv-control-broadcast.{issuer}`. Commands on them are
   * received directly as published, even if a command stream is configured. Subscribe only if
   * needed, because the server may deny it.
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

  /**
   * Stops accepting commands. Receipts of commands in progress are sent as long as the bus is open.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    this.#listening?.[Symbol.dispose]();
    this.#leaveKept();
    await this.#kept?.[Symbol.asyncDispose]();
  }

  /** State of consuming the command stream. Null without a stream. */
  get streamState(): ConsumptionState | null {
    return this.#kept?.state ?? null;
  }

  /** Handles a command that is not from a stream. If it is not accepted, it is lost. */
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
   * Handles a command from the stream. Resolves when its receipt is sent. Rejects if the broker
   * must deliver the command again.
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
    // A temporarily refused command may be accepted at the next delivery. A repetition
    // (`duplicate`) would get the same receipt every time.
    const mayBeTaken = isRefusedForNow(receipt) && receipt.duplicate !== true;
    if (!mayBeTaken || message.isLast) this.#answer(reply, receipt, typeOf(message));
    if (mayBeTaken) throw new HearthError("LIMIT", receipt.reason!);
  }

  /** Submits the command to the control plane and returns its receipt. */
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

  /** Sends the receipt of a command that was refused before decoding, within the rate limit. */
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

  /**
   * Returns true if a receipt may be sent to `reply`. The bus checks a message's own reply subject,
   * but not one in a header.
   */
  #mayAnswerTo(reply: string | null): reply is string {
    return reply !== null && mayAnswerTo(reply, this.#options.replyPrefixes ?? null);
  }

  /**
   * Publishes a receipt. Returns true if the bus accepted it. `isSpare`: the receipt answers a
   * flood and is dropped first.
   */
  #publish(subject: string, receipt: Receipt, type: MediaType, isSpare: boolean): boolean {
    const { bus } = this.#options;
    const bytes = encodeReceipt(receipt, type, bus.payloadBytesMax);
    const outcome = bus.publish(subject, bytes, { headers: HEADERS[type], isSpare });
    if (outcome === "dropped") this.#counts.lost++;
    return outcome !== "dropped";
  }
}

/**
 * Returns the issuer named by the subject, `kv-control-w.ISSUER`. Null for a subject that all
 * issuers share.
 */
function subjectIssuerOf({ subject }: BusMessage): string | null {
  return subject.split(".")[1] ?? null;
}

/** Returns the media type of the receipt for a message. */
function typeOf(message: BusMessage): MediaType {
  return answerTypeOf(headerOf(message, "accept"), headerOf(message, "content-type"));
}

/** Returns the value of a header, or null. Header names are case-insensitive. */
function headerOf({ headers }: BusMessage, name: string): string | null {
  const wanted = name.toLowerCase();
  const exact = Object.entries(headers).find(([key]) => key.toLowerCase() === wanted);
  return exact?.[1] ?? null;
}

/**
 * Maximum commands of one subject that wait for their receipt, and maximum bytes of their bodies.
 */
const WAITING_MAX = 4_096;
const WAITING_BYTES_MAX = 32 * 2 ** 20;
/** The same two limits for all subjects together. */
const ALL_WAITING_MAX = 8_192;
const ALL_WAITING_BYTES_MAX = 64 * 2 ** 20;
/** Maximum issuers' subjects with a queue of their own. Further ones use one common queue. */
const SUBJECTS_MAX = 64;
/** Rate limit of the shared subject, as a multiple of one issuer's rate. */
const SHARED_ISSUERS = 16;

/** Queue and limits of one subject, separate from those of other subjects. */
interface SubjectQueue {
  readonly source: TurnSource;
  /** Issuer named by the subject. Empty for the subject that all issuers share. */
  readonly issuer: string;
  waiting: number;
  waitingBytes: number;
}

interface AdmissionRefusal {
  readonly code: Extract<RefusalCode, "busy" | "rate_limited">;
  readonly message: string;
}

/**
 * Limits commands per subject, so that a flood on one subject leaves memory and time for the
 * others.
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

  /**
   * Returns the queue of a subject. `issuer` is the issuer named by the subject; null for the
   * subject that all issuers share.
   */
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
   * Returns the refusal of a command before it is decoded, or null if it is admitted. Admission
   * takes one token of the rate limit.
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

  /** Counts a command as waiting until the returned object is disposed. */
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
