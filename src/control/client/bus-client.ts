import {
  type Bus,
  type BusMessage,
  hasNoResponders,
  Inbox,
  type Mailbox,
  type PublishOutcome,
  type Subscription,
} from "../../bus/index.ts";
import {
  type Clock,
  HearthError,
  type Json,
  parseJson,
  type Random,
  sleep,
} from "../../core/index.ts";
import {
  ALL_WORKERS,
  BROADCAST_SUBJECT,
  decodeReceipt,
  issuerSubject,
  REPLY_HEADER,
  type Receipt,
  SERVICE_NAME,
} from "../index.ts";
import {
  absentMs,
  type BroadcastResult,
  type ControlClient,
  commandSubject,
  type FoundWorker,
  identified,
  isNoBroadcast,
  isUnread,
  PROGRESS_MS,
  randomHex,
  type SendOptions,
  type SendResult,
  tryMs,
  unlessAborted,
  type Wire,
  type WireCommand,
} from "./control-client.ts";
import { broadcastParts, sendParts, splitCommand } from "./split-command.ts";

const DEADLINE_MS = 30_000;
/** Maximum ms that a broker needs to report that a subject has no subscriber. */
const LAST_TRY_MS = 100;
const DISCOVERY_MS = 1_000;
/**
 * Fraction of a broadcast's deadline after which workers that have not replied are addressed one by
 * one.
 */
const BROADCAST_SHARE = 1 / 3;
const BROADCAST_MS_MAX = 2_000;
/** Number of 32-bit words in the random part of an inbox subject. */
const PREFIX_WORDS = 4;

export interface BusClientOptions {
  readonly bus: Bus;
  /** True if closing the client also closes the bus. */
  readonly ownsBus: boolean;
  readonly clock: Clock;
  readonly random: Random;
  readonly issuer: string | null;
  readonly wire: Wire;
  /**
   * Issuer on whose own subjects commands are published. Null: the subjects that all issuers share.
   */
  readonly subjectIssuer: string | null;
}

/** Parameters of one wait for a receipt. */
interface Wait {
  readonly data: Uint8Array;
  readonly endMs: number;
  /** Monotonic ms at which the wait ends if no worker is connected by then. */
  readonly absentEndMs: number;
  readonly signal: AbortSignal | undefined;
  readonly onProgress: (receipt: Receipt) => void;
}

type Heard =
  | { readonly kind: "receipt"; readonly receipt: Receipt }
  | { readonly kind: "nobody" | "silence" };

export class BusControlClient implements ControlClient {
  readonly #options: BusClientOptions;
  readonly #inbox: Inbox;
  readonly #subscription: Subscription;

  constructor(options: BusClientOptions) {
    this.#options = options;
    const { bus, clock, random } = options;
    this.#inbox = new Inbox(`${bus.inboxPrefix}.${randomHex(random, PREFIX_WORDS)}`, clock);
    this.#subscription = bus.subscribe(this.#inbox.pattern, (message) => {
      this.#inbox.deliver(message);
    });
  }

  async send(worker: string, command: WireCommand, options: SendOptions = {}): Promise<SendResult> {
    const { clock, random } = this.#options;
    const sending = { clock, options, deadlineMs: DEADLINE_MS };
    return sendParts(splitCommand(command, random), sending, (part, own) =>
      this.#ask(worker, this.#wait(part, own)),
    );
  }

  async broadcast(command: WireCommand, options: SendOptions = {}): Promise<BroadcastResult> {
    const { clock, random } = this.#options;
    const sending = { clock, options, deadlineMs: DEADLINE_MS };
    return broadcastParts(splitCommand(command, random), sending, (part, own) =>
      this.#broadcast(part, own),
    );
  }

  async #broadcast(command: WireCommand, options: SendOptions): Promise<BroadcastResult> {
    const { bus, clock } = this.#options;
    const wait = this.#wait(command, options);
    const leftMs = () => wait.endMs - clock.monotonicMs();
    const connectMs = wait.absentEndMs - clock.monotonicMs();
    if (!(await this.#isConnected(connectMs, wait.signal))) {
      return { receipts: [], silent: [], why: this.#whyNot() };
    }
    const found = await this.workers(Math.min(DISCOVERY_MS, leftMs() / 2), wait.signal);
    const missing = new Set(found.map(({ id }) => id));
    const receipts = new Map<string, Receipt>();
    using mailbox = this.#inbox.open();
    const subject = this.#subjectOf(BROADCAST_SUBJECT);
    bus.publish(subject, wait.data, this.#replyTo(mailbox, ALL_WORKERS, wait.data));
    const broadcastMs = Math.min(leftMs() * BROADCAST_SHARE, BROADCAST_MS_MAX);
    const note = (receipt: Receipt) => {
      missing.delete(receipt.worker_id);
      receipts.set(receipt.worker_id, receipt);
    };
    await this.#collect(mailbox, broadcastMs, wait, (receipt) => {
      note(receipt);
      return found.length > 0 && missing.size === 0;
    });
    // If a worker has refused the command because it must not be broadcast, the workers that have
    // not replied must not get it directly either.
    const silent = [...receipts.values()].some(isNoBroadcast) ? [] : [...missing];
    const answers = silent.map(async (id) => {
      const result = await this.#ask(id, wait, true);
      if (result.kind === "receipt") note(result.receipt);
    });
    await Promise.all(answers);
    const byName = (a: Receipt, b: Receipt) => (a.worker_id < b.worker_id ? -1 : 1);
    const why = receipts.size + missing.size === 0 ? "no worker answered discovery" : null;
    return { receipts: [...receipts.values()].sort(byName), silent: [...missing].sort(), why };
  }

  async workers(ms = DISCOVERY_MS, signal?: AbortSignal): Promise<readonly FoundWorker[]> {
    const { bus, clock } = this.#options;
    const endMs = clock.monotonicMs() + ms;
    if (!(await this.#isConnected(ms, signal))) {
      throw new HearthError("DEADLINE", this.#whyNot());
    }
    using mailbox = this.#inbox.open();
    return await findWorkers(bus, clock, mailbox, endMs, signal);
  }

  publish(worker: string, command: WireCommand): PublishOutcome {
    const { bus, wire, random } = this.#options;
    const subject = this.#subjectOf(commandSubject(worker));
    let outcome: PublishOutcome | null = null;
    for (const part of splitCommand(command, random)) {
      const data = this.#encode(part, DEADLINE_MS);
      const own = bus.publish(subject, data, { headers: wire.headers(worker, data) });
      if (outcome === null || own === "dropped") outcome = own;
    }
    return outcome!;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#subscription.unsubscribe();
    this.#inbox[Symbol.dispose]();
    if (this.#options.ownsBus) await this.#options.bus[Symbol.asyncDispose]();
  }

  #wait(command: WireCommand, options: SendOptions): Wait {
    const { clock } = this.#options;
    const { deadlineMs = DEADLINE_MS } = options;
    const nowMs = clock.monotonicMs();
    return {
      data: this.#encode(command, deadlineMs),
      endMs: nowMs + deadlineMs,
      absentEndMs: nowMs + Math.min(deadlineMs, options.absentMs ?? deadlineMs),
      signal: options.signal,
      onProgress: options.onProgress ?? (() => undefined),
    };
  }

  /**
   * Sends the command to one worker, repeatedly, until a receipt arrives or the deadline passes.
   * `mayBeDone`: the worker may already have carried out the command.
   */
  async #ask(worker: string, wait: Wait, mayBeDone = false): Promise<SendResult> {
    const { bus, clock, random } = this.#options;
    const subject = this.#subjectOf(commandSubject(worker));
    using mailbox = this.#inbox.open();
    const replyTo = this.#replyTo(mailbox, worker, wait.data);
    let tries = 0;
    const leftMs = () => (mayBeDone ? wait.endMs : wait.absentEndMs) - clock.monotonicMs();
    // The broker needs LAST_TRY_MS to report that the subject has no subscriber; a shorter attempt
    // would count as sent.
    const isWorthwhile = () => leftMs() > (mayBeDone || tries === 0 ? 0 : LAST_TRY_MS);
    while (isWorthwhile()) {
      // Do not queue the message on a disconnected bus: it could be carried out after this wait has
      // ended.
      if (!(await this.#isConnected(leftMs(), wait.signal))) break;
      tries++;
      const outcome = bus.publish(subject, wait.data, replyTo);
      const heard = await this.#listen(worker, mailbox, tries, wait);
      // A refusal before decoding (high load) says nothing about earlier attempts, which may have
      // been carried out.
      if (heard.kind === "receipt" && !(mayBeDone && isUnread(heard.receipt))) return heard;
      if (heard.kind === "receipt") await this.#rest(absentMs(tries, random), wait);
      if (heard.kind === "silence" && outcome !== "dropped") mayBeDone = true;
    }
    if (mayBeDone) return { kind: "unanswered", tries, why: `${worker} did not answer` };
    const isConnected = bus.state.status === "connected";
    const why = isConnected ? `no worker listens as ${worker}` : this.#whyNot();
    return { kind: "unreachable", tries, why };
  }

  /**
   * Waits for the receipt of one attempt. A progress report extends the wait; a report of a missing
   * subscriber shortens it.
   */
  async #listen(worker: string, mailbox: Mailbox, tries: number, wait: Wait): Promise<Heard> {
    const { clock, random } = this.#options;
    let untilMs = clock.monotonicMs() + tryMs(tries, random);
    let kind: "nobody" | "silence" = "silence";
    for (;;) {
      const leftMs = Math.min(untilMs, wait.endMs) - clock.monotonicMs();
      const message = await mailbox.next(leftMs, wait.signal);
      if (message === null) return { kind };
      if (hasNoResponders(message)) {
        kind = "nobody";
        untilMs = clock.monotonicMs() + absentMs(tries, random);
        continue;
      }
      const receipt = receiptIn(message);
      if (receipt?.worker_id !== worker) continue;
      if (receipt.status !== "running") return { kind: "receipt", receipt };
      kind = "silence";
      untilMs = clock.monotonicMs() + PROGRESS_MS;
      wait.onProgress(receipt);
    }
  }

  /** Passes arriving receipts to `take` until it returns true. */
  async #collect(
    mailbox: Mailbox,
    ms: number,
    wait: Wait,
    take: (receipt: Receipt) => boolean,
  ): Promise<void> {
    const { clock } = this.#options;
    const untilMs = clock.monotonicMs() + ms;
    for (;;) {
      const message = await mailbox.next(untilMs - clock.monotonicMs(), wait.signal);
      if (message === null || hasNoResponders(message)) return;
      const receipt = receiptIn(message);
      if (receipt === null) continue;
      if (receipt.status === "running") wait.onProgress(receipt);
      else if (take(receipt)) return;
    }
  }

  #rest(ms: number, { endMs, signal }: Wait): Promise<void> {
    const { clock } = this.#options;
    return sleep(clock, Math.max(0, Math.min(ms, endMs - clock.monotonicMs())), signal);
  }

  async #isConnected(ms: number, signal: AbortSignal | undefined): Promise<boolean> {
    const { bus } = this.#options;
    return bus.state.status === "connected" || unlessAborted(bus.connected(ms), signal);
  }

  #whyNot(): string {
    const { why, status } = this.#options.bus.state;
    return `no connection to the broker: ${why ?? status}`;
  }

  #fitting(data: Uint8Array): Uint8Array {
    const { payloadBytesMax } = this.#options.bus;
    if (data.length <= payloadBytesMax) return data;
    const what = `the command has ${data.length} bytes, the broker's maximum is ${payloadBytesMax}`;
    throw new HearthError("LIMIT", what, { fix: "send fewer blocks at once" });
  }

  #encode(command: WireCommand, deadlineMs: number): Uint8Array {
    const { wire, clock, random, issuer } = this.#options;
    const identity = { random, issuer, clock: wire.isSigned ? clock : null };
    return this.#fitting(wire.encode(identified(command, identity, deadlineMs)));
  }

  #subjectOf(subject: string): string {
    const { subjectIssuer } = this.#options;
    return subjectIssuer === null ? subject : issuerSubject(subject, subjectIssuer);
  }

  #replyTo(
    { subject }: Mailbox,
    worker: string,
    body: Uint8Array,
  ): { reply: string; headers: Record<string, string> } {
    const headers = this.#options.wire.headers(worker, body);
    // The header repeats the reply subject, because JetStream uses the message's own one for its
    // acknowledgement.
    return { reply: subject, headers: { ...headers, [REPLY_HEADER]: subject } };
  }
}

/**
 * Decodes the receipt in a message. Null if the message is not a receipt. Header names are
 * case-insensitive.
 */
function receiptIn({ headers, data }: BusMessage): Receipt | null {
  const type = Object.entries(headers).find(([name]) => name.toLowerCase() === "content-type");
  return decodeReceipt(data, type?.[1] ?? null);
}

/** Sends a discovery ping and collects replies until `endMs` on the monotonic clock. */
async function findWorkers(
  bus: Bus,
  clock: Clock,
  mailbox: Mailbox,
  endMs: number,
  signal: AbortSignal | undefined,
): Promise<FoundWorker[]> {
  const found = new Map<string, FoundWorker>();
  bus.publish(`$SRV.PING.${SERVICE_NAME}`, new Uint8Array(), { reply: mailbox.subject });
  for (;;) {
    const message = await mailbox.next(endMs - clock.monotonicMs(), signal);
    if (message === null || hasNoResponders(message)) break;
    const worker = readPing(message.data);
    if (worker !== null) found.set(worker.id, worker);
  }
  return [...found.values()].sort((a, b) => (a.id < b.id ? -1 : 1));
}

/**
 * Decodes a reply to a discovery ping of the NATS service protocol. Null if its sender is not an
 * agent.
 */
function readPing(data: Uint8Array): FoundWorker | null {
  let ping: Json;
  try {
    ping = parseJson(new TextDecoder().decode(data));
  } catch {
    return null;
  }
  if (typeof ping !== "object" || ping === null || Array.isArray(ping)) return null;
  const { name, version, metadata } = ping;
  if (name !== SERVICE_NAME || typeof metadata !== "object" || metadata === null) return null;
  if (Array.isArray(metadata) || typeof metadata.worker_id !== "string") return null;
  return {
    id: metadata.worker_id,
    version: typeof version === "string" ? version : "",
    incarnation: typeof metadata.incarnation === "string" ? metadata.incarnation : null,
  };
}
