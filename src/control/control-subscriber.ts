import {
  type Bus,
  type BusMessage,
  type Consumption,
  type ConsumptionState,
  type KeptMessage,
  mayAnswerTo,
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
import { type EventLog, toldEvent } from "../observability/activity/index.ts";
import { answerTypeOf, JSON_TYPE, type MediaType, MSGPACK_TYPE } from "./body.ts";
import {
  BROADCAST_SUBJECT,
  isRefusedForNow,
  issuerSubject,
  REPLY_HEADER,
  type RefusalWord,
  type Role,
  SERVICE_NAME,
  type Sender,
  SIGNATURE_HEADER,
  workerSubject,
} from "./command.ts";
import type { ControlLimits, ControlPlane } from "./control-plane.ts";
import { encodeReceipt, type Receipt, refusedReceipt } from "./receipt.ts";

export interface ControlSubscriberOptions {
  /** Not closed by the subscriber. */
  readonly bus: Bus;
  readonly plane: ControlPlane;
  readonly events: EventLog;
  readonly workerId: string;
  readonly incarnation: bigint;
  /** Semantic version. */
  readonly version: string;
  /** What commands may do whose issuer has not proved its name. */
  readonly role: Role;
  /** How subjects begin that receipts go to; anywhere unless given. */
  readonly replyPrefixes?: readonly string[];
  /** Issuer of commands that name none. */
  readonly issuer: string;
  /** Also publishes each receipt, those to broadcasts too, to `kv-control-receipts-{worker_id}`. */
  readonly publishReceipts: boolean;
  /**
   * Left out or null: commands come as they are published. Else the broker's stream of that name
   * keeps them, and they are taken from there alone, one after the other, also those that came
   * while this agent was down. Their receipts go where their header `Hearth-Reply` says, since the
   * stream has used up the reply subject. Those that are refused for now (`busy`, `rate_limited`,
   * `internal`) come again, and are answered when they are carried out or come for the last time.
   * One without an id has that of its place in the stream, so that it is carried out once.
   */
  readonly commandStream?: string | null;
  /**
   * Publishes events to `kv-control-events-{worker_id}`, as `GET /v1/events` shows them, with
   * `worker_id` and `incarnation`.
   */
  readonly publishEvents: boolean;
}

export interface SubscriberStats {
  readonly received: number;
  readonly answered: number;
  /** No answer was asked for, or where none is sent to. */
  readonly unasked: number;
  /** Answers the bus did not take. */
  readonly lost: number;
  /** Too many waited; they were not read, and answered `busy` as far as a rate allows. */
  readonly overflowed: number;
  /** More came on a subject than its rate allows; they were not read, and answered as such. */
  readonly limited: number;
  /** Commands that came and are not answered yet. */
  readonly waiting: number;
}

/** Brings the commands of a bus to the control plane, and the receipts back. */
export interface ControlSubscriber extends AsyncDisposable {
  /** Of the stream that keeps commands; null without one. */
  readonly streamState: ConsumptionState | null;
  stats(): SubscriberStats;
  /**
   * Whether issuers have subjects of their own, `kv-control-{worker_id}.{issuer}` and
   * `kv-control-broadcast.{issuer}`. What is published there is taken as it comes, also with a
   * command stream. They are subscribed only if wanted: a server may not permit it.
   */
  setIssuerSubjects(areWanted: boolean): void;
}

const HEADERS: Readonly<Record<MediaType, Readonly<Record<string, string>>>> = {
  [JSON_TYPE]: { "Content-Type": JSON_TYPE },
  [MSGPACK_TYPE]: { "Content-Type": MSGPACK_TYPE },
};

/** Answers to commands of one subject that were not read, a second and at once. */
const UNREAD_PER_SECOND = 1_000;

interface Answer {
  readonly reply: string | null;
  readonly receipt: Receipt;
  readonly type: MediaType;
}

/** Words that a flood is answered with, whose answers take no room from those to others. */
const OF_FLOODS: ReadonlySet<string> = new Set<RefusalWord>([
  "rate_limited",
  "malformed",
  "unproven",
  "implausible",
  "unknown_type",
  "too_large",
  "too_deep",
]);

export function createControlSubscriber(options: ControlSubscriberOptions): ControlSubscriber {
  return new Subscriber(options);
}

class Subscriber implements ControlSubscriber {
  readonly #options: ControlSubscriberOptions;
  readonly #listening: Disposable | null;
  readonly #kept: Consumption | null;
  #ofIssuers: readonly Subscription[] = [];
  #isClosed = false;
  /** Of a message of the stream that is at work: leaves it to whoever consumes next. */
  #leaveKept: () => void = () => undefined;
  #received = 0;
  #answered = 0;
  #unasked = 0;
  #lost = 0;
  #overflowed = 0;
  #limited = 0;
  readonly #unreadAnswers = new TokenBuckets();
  readonly #intakes: Intakes;
  /** Receipts to encode: no more than commands that wait. */
  readonly #answers = new TurnQueue<Answer>({
    ...{ source: loopTurns.source(), itemsMax: Number.POSITIVE_INFINITY, bytesMax: 0 },
    run: ({ reply, receipt, type }) => this.#answer(reply, receipt, type),
  });

  constructor(options: ControlSubscriberOptions) {
    const { bus, workerId, incarnation, version, events, commandStream = null } = options;
    this.#options = options;
    this.#intakes = new Intakes(() => options.plane.limits());
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
          const told = { ...of, ...toldEvent(event) };
          const headers = HEADERS[JSON_TYPE];
          bus.publish(subject, Buffer.from(stringifyJson(told)), { headers, isSpare: true });
        })
      : null;
  }

  stats(): SubscriberStats {
    return {
      received: this.#received,
      answered: this.#answered,
      unasked: this.#unasked,
      lost: this.#lost,
      overflowed: this.#overflowed,
      limited: this.#limited,
      waiting: this.#intakes.waiting + this.#answers.length,
    };
  }

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

  /** Takes no more; what is at work is answered as long as the bus lives. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    this.#listening?.[Symbol.dispose]();
    this.#leaveKept();
    await this.#kept?.[Symbol.asyncDispose]();
  }

  get streamState(): ConsumptionState | null {
    return this.#kept?.state ?? null;
  }

  /** A message that nobody keeps: what is not taken is lost, as on any bus. */
  #take(message: BusMessage, broadcast: boolean): void {
    if (this.#isClosed) return;
    this.#received++;
    const intake = this.#intakes.of(subjectIssuerOf(message));
    const refusal = this.#intakes.refusal(intake, message.data.length);
    if (refusal === null) void this.#handle(message, broadcast, intake);
    else this.#refuseUnread(message, intake, refusal);
  }

  async #handle(message: BusMessage, broadcast: boolean, intake: Intake): Promise<void> {
    const { reply } = message;
    const receipt = await this.#submit(message, broadcast, reply, { intake });
    this.#answers.push({ reply, receipt, type: typeOf(message) });
  }

  /** A message of the stream: resolves when it is answered; rejects where it is to come again. */
  async #takeKept(message: KeptMessage): Promise<void> {
    const closed = () => new HearthError("ABORTED", "no more commands are taken");
    if (this.#isClosed) throw closed();
    this.#received++;
    const left = Promise.withResolvers<never>();
    this.#leaveKept = () => left.reject(closed());
    const reply = headerOf(message, REPLY_HEADER);
    const intake = this.#intakes.of(subjectIssuerOf(message));
    const id = `stream/${message.key}`;
    const submitted = this.#submit(message, false, reply, { intake, id });
    const receipt = await Promise.race([submitted, left.promise]);
    // A repetition gets the same receipt however often it comes.
    const mayBeTaken = isRefusedForNow(receipt) && receipt.duplicate !== true;
    if (!mayBeTaken || message.isLast) this.#answer(reply, receipt, typeOf(message));
    if (mayBeTaken) throw new HearthError("LIMIT", receipt.reason!);
  }

  /** The receipt. */
  async #submit(
    message: BusMessage,
    broadcast: boolean,
    reply: string | null,
    { intake, id }: { readonly intake: Intake; readonly id?: string },
  ): Promise<Receipt> {
    using _waiting = this.#intakes.enter(intake, message.data.length);
    const type = typeOf(message);
    const contentType = headerOf(message, "content-type");
    const sender = this.#senderOf(message, broadcast);
    return await this.#options.plane.submit(message.data, contentType, sender, {
      ...(id === undefined ? {} : { id }),
      source: intake.source,
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

  /** Answers a command whose body was not read, as far as there is a rate for that. */
  #refuseUnread(message: BusMessage, { issuer }: Intake, refusal: IntakeRefusal): void {
    if (refusal.word === "busy") this.#overflowed++;
    else this.#limited++;
    const nowMs = loopTurns.nowMs();
    if (!this.#unreadAnswers.take(issuer, nowMs, UNREAD_PER_SECOND, UNREAD_PER_SECOND)) return;
    const { workerId, incarnation } = this.#options;
    const head = { id: null, type: "", worker_id: workerId, issuer: this.#options.issuer };
    const whole = { ...head, incarnation: incarnation.toString() };
    this.#answer(message.reply, refusedReceipt(whole, refusal, 0), typeOf(message));
  }

  #answer(reply: string | null, receipt: Receipt, type: MediaType): void {
    const { publishReceipts, workerId } = this.#options;
    const isSpare = OF_FLOODS.has(receipt.reason?.split(":", 1)[0] ?? "");
    if (!this.#mayAnswerTo(reply)) this.#unasked++;
    else if (this.#publish(reply, receipt, type, isSpare)) this.#answered++;
    if (publishReceipts) this.#publish(`kv-control-receipts-${workerId}`, receipt, JSON_TYPE, true);
  }

  #progress(reply: string | null, receipt: Receipt, type: MediaType): void {
    if (this.#mayAnswerTo(reply)) this.#publish(reply, receipt, type, true);
  }

  /** The bus has looked at the reply subject; of a header nobody has. */
  #mayAnswerTo(reply: string | null): reply is string {
    return reply !== null && mayAnswerTo(reply, this.#options.replyPrefixes ?? null);
  }

  /** Whether the bus took it. `isSpare`: nobody waits for it, so that it may go first. */
  #publish(subject: string, receipt: Receipt, type: MediaType, isSpare: boolean): boolean {
    const { bus } = this.#options;
    const bytes = encodeReceipt(receipt, type, bus.payloadBytesMax);
    const outcome = bus.publish(subject, bytes, { headers: HEADERS[type], isSpare });
    if (outcome === "dropped") this.#lost++;
    return outcome !== "dropped";
  }
}

/** The issuer that the subject names, `kv-control-w.ISSUER`; null: all share the subject. */
function subjectIssuerOf({ subject }: BusMessage): string | null {
  return subject.split(".")[1] ?? null;
}

/** In which it is answered. */
function typeOf(message: BusMessage): MediaType {
  return answerTypeOf(headerOf(message, "accept"), headerOf(message, "content-type"));
}

/** Header names are compared without regard to case. */
function headerOf({ headers }: BusMessage, name: string): string | null {
  const wanted = name.toLowerCase();
  const exact = Object.entries(headers).find(([key]) => key.toLowerCase() === wanted);
  return exact?.[1] ?? null;
}

/** Commands of one subject that came and are not answered yet, and bytes of their bodies. */
const WAITING_MAX = 4_096;
const WAITING_BYTES_MAX = 32 * 2 ** 20;
/** The same of all subjects together. */
const ALL_WAITING_MAX = 8_192;
const ALL_WAITING_BYTES_MAX = 64 * 2 ** 20;
/** Subjects of issuers with an intake of their own; further ones use the one that all share. */
const SUBJECTS_MAX = 64;
/** Issuers that may use up their rates on the subject that all share. */
const SHARED_ISSUERS = 16;

/** The commands of one subject: it has slices of its own, and room that it cannot exceed. */
interface Intake {
  readonly source: TurnSource;
  /** The issuer that the subject names; empty: all share it. */
  readonly issuer: string;
  waiting: number;
  waitingBytes: number;
}

interface IntakeRefusal {
  readonly word: Extract<RefusalWord, "busy" | "rate_limited">;
  readonly words: string;
}

/** What comes on each subject, so that a flood on one leaves the others their room and time. */
class Intakes {
  readonly #limits: () => ControlLimits;
  readonly #rates = new TokenBuckets();
  readonly #byIssuer = new Map<string, Intake>();
  waiting = 0;
  #waitingBytes = 0;

  constructor(limits: () => ControlLimits) {
    this.#limits = limits;
  }

  /** `issuer`: that the subject names; null: all share it. */
  of(issuer: string | null): Intake {
    const key = issuer ?? "";
    const known = this.#byIssuer.get(key);
    if (known !== undefined) return known;
    if (this.#byIssuer.size >= SUBJECTS_MAX && key !== "") {
      this.#dropIdle();
      if (this.#byIssuer.size >= SUBJECTS_MAX) return this.of(null);
    }
    const intake = { source: loopTurns.source(), issuer: key, waiting: 0, waitingBytes: 0 };
    this.#byIssuer.set(key, intake);
    return intake;
  }

  /** Why one more is not even read; null if it may come, and then a token of the rate is gone. */
  refusal({ issuer, waiting, waitingBytes }: Intake, bytes: number): IntakeRefusal | null {
    const isFull = waiting >= WAITING_MAX || waitingBytes + bytes > WAITING_BYTES_MAX;
    const areFull =
      this.waiting >= ALL_WAITING_MAX || this.#waitingBytes + bytes > ALL_WAITING_BYTES_MAX;
    if (isFull || areFull) return { word: "busy", words: `${this.waiting} commands wait here` };
    const { commandsPerSecond, commandsBurst } = this.#limits();
    const issuers = issuer === "" ? SHARED_ISSUERS : 1;
    const [perSecond, burst] = [commandsPerSecond * issuers, commandsBurst * issuers];
    if (this.#rates.take(issuer, loopTurns.nowMs(), perSecond, burst)) return null;
    return { word: "rate_limited", words: `${perSecond} commands a second on one subject` };
  }

  /** Counts a command that waits; the result ends that. */
  enter(intake: Intake, bytes: number): Disposable {
    const count = (sign: number) => {
      intake.waiting += sign;
      intake.waitingBytes += sign * bytes;
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
