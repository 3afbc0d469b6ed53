import { type Clock, messageOf, yieldToLoop } from "../core/index.ts";
import { type BusLimits, type BusLog, isSubject, type PublishOutcome } from "./bus.ts";
import { areHeaders, type Link, messageBytes, type Outgoing } from "./connection.ts";

/** What the largest message may be before a broker has said so: what brokers allow by default. */
const PAYLOAD_BYTES_DEFAULT = 2 ** 20;
/** Of the queue, for what nobody waits for. */
const SPARE_SHARE = 0.5;
/** So many messages of the queue go out before everything else gets a turn. */
const SLICE = 512;

/**
 * The way out: over the link there is, or into the queue. Client libraries empty their own buffer
 * silently whenever they dial, so nothing is left to it: with no link, or one that does not keep
 * up, messages wait here.
 */
export class Sender {
  readonly #clock: Clock;
  readonly #log: BusLog;
  readonly #limits: BusLimits;
  readonly #outbox: Outbox;
  #link: Link | null = null;
  #inFlight: InFlight | null = null;
  #isDraining = false;
  #droppedFromQueue = 0;
  sent = 0;
  dropped = 0;
  doubtful = 0;
  payloadBytesMax = PAYLOAD_BYTES_DEFAULT;
  /** Called whenever the queue has run empty. */
  onEmpty: () => void = () => undefined;

  constructor(clock: Clock, limits: BusLimits, log: BusLog) {
    this.#clock = clock;
    this.#log = log;
    this.#limits = limits;
    this.#outbox = new Outbox(limits.queueMessages, limits.queueBytes);
  }

  get queuedMessages(): number {
    return this.#outbox.length;
  }
  get queuedBytes(): number {
    return this.#outbox.bytes;
  }

  /** `isSpare`: it waits only where the queue is less than half full. */
  publish(message: Outgoing, isSpare = false): PublishOutcome {
    if (!isSendable(message) || messageBytes(message) > this.payloadBytesMax) return this.#drop();
    if (this.#link !== null && this.#outbox.length === 0 && !this.#inFlight!.isFull) {
      return this.#send(this.#link, message) ? "sent" : "dropped";
    }
    if (this.#outbox.push(message, isSpare ? SPARE_SHARE : 1)) return "queued";
    if (this.#droppedFromQueue++ === 0) {
      const fields = { messages: this.#outbox.length, bytes: this.#outbox.bytes };
      this.#log("warn", "the queue for NATS is full, new messages are dropped", fields);
    }
    return this.#drop();
  }

  /** Takes a link into use; what waits goes out over it, in order. */
  attach(link: Link): void {
    this.#link = link;
    this.payloadBytesMax = link.payloadBytesMax;
    this.#inFlight = new InFlight(link, this.#clock, this.#limits, () => void this.#drain());
    void this.#drain();
  }

  /** The link is over; how many messages went into it that nobody confirmed. */
  detach(): number {
    const unconfirmed = this.#inFlight?.messages ?? 0;
    this.#inFlight?.[Symbol.dispose]();
    this.#inFlight = null;
    this.#link = null;
    this.doubtful += unconfirmed;
    return unconfirmed;
  }

  /** Drops what still waits. */
  close(): void {
    this.detach();
    const left = this.#outbox.clear();
    this.dropped += left;
    this.#droppedFromQueue += left;
    this.#tellDropped();
  }

  #drop(): "dropped" {
    this.dropped++;
    return "dropped";
  }

  #send(link: Link, message: Outgoing): boolean {
    try {
      link.publish(message);
    } catch (thrown) {
      this.#drop();
      const fields = { subject: message.subject, why: messageOf(thrown) };
      this.#log("warn", "the NATS client refused a message", fields);
      return false;
    }
    this.sent++;
    this.#inFlight?.add(messageBytes(message));
    return true;
  }

  async #drain(): Promise<void> {
    if (this.#isDraining) return;
    this.#isDraining = true;
    for (let count = 1; this.#drainOne(); count++) if (count % SLICE === 0) await yieldToLoop();
    this.#isDraining = false;
    if (this.#outbox.length > 0) return;
    this.#tellDropped();
    this.onEmpty();
  }

  /** False when there is nothing to send, or nothing to send it over. */
  #drainOne(): boolean {
    if (this.#link === null || this.#inFlight!.isFull) return false;
    const message = this.#outbox.shift();
    if (message === undefined) return false;
    // The broker of this link may take less than the one before.
    if (messageBytes(message) > this.payloadBytesMax) this.#drop();
    else this.#send(this.#link, message);
    return true;
  }

  #tellDropped(): void {
    if (this.#droppedFromQueue === 0) return;
    const fields = { messages: this.#droppedFromQueue };
    this.#log("warn", "messages for NATS were dropped: the queue was full", fields);
    this.#droppedFromQueue = 0;
  }
}

function isSendable({ subject, reply, headers }: Outgoing): boolean {
  if (!isSubject(subject) || (reply !== null && !isSubject(reply))) return false;
  return headers === null || areHeaders(headers);
}

interface InFlightLimits {
  /** So many bytes may be on their way without a sign that the broker has them. */
  readonly windowBytes: number;
  /** How often a silent link is asked for a sign of life. */
  readonly pingMs: number;
  /** How long the answer may take before the link counts as dead. */
  readonly silenceMs: number;
}

/**
 * What was handed to one link and not confirmed yet. Client libraries and kernels buffer without
 * bounds towards a peer that stands still; this bounds it, and finds such a peer out.
 */
class InFlight implements Disposable {
  readonly #link: Link;
  readonly #clock: Clock;
  readonly #limits: InFlightLimits;
  readonly #onRoom: () => void;
  readonly #timer: Disposable;
  #messages = 0;
  #bytes = 0;
  #askedAtMs: number | null = null;

  /** `onRoom`: some of it was confirmed. */
  constructor(link: Link, clock: Clock, limits: InFlightLimits, onRoom: () => void) {
    this.#link = link;
    this.#clock = clock;
    this.#limits = limits;
    this.#onRoom = onRoom;
    this.#timer = clock.every(limits.pingMs, () => this.#tick());
  }

  /** Messages that nobody confirmed so far. */
  get messages(): number {
    return this.#messages;
  }

  get isFull(): boolean {
    return this.#bytes >= this.#limits.windowBytes;
  }

  add(bytes: number): void {
    this.#messages++;
    this.#bytes += bytes;
    if (this.#bytes >= this.#limits.windowBytes / 4) this.#ask();
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
  }

  #tick(): void {
    if (this.#askedAtMs === null) {
      this.#ask();
      return;
    }
    const silentMs = this.#clock.monotonicMs() - this.#askedAtMs;
    if (silentMs < this.#limits.silenceMs) return;
    this.#link.end(`no sign of life for ${Math.round(silentMs / 1_000)} s`);
  }

  #ask(): void {
    if (this.#askedAtMs !== null) return;
    const messages = this.#messages;
    const bytes = this.#bytes;
    this.#askedAtMs = this.#clock.monotonicMs();
    this.#link.confirm().then(
      () => {
        this.#askedAtMs = null;
        this.#messages -= messages;
        this.#bytes -= bytes;
        if (this.#bytes >= this.#limits.windowBytes / 4) this.#ask();
        this.#onRoom();
      },
      // The link is over, which `closed` says as well.
      () => undefined,
    );
  }
}

/** What an entry costs beside its payload, so that empty messages count as well. */
const ENTRY_BYTES = 128;

/** Messages that wait for a connection: first in, first out, bounded in number and in bytes. */
class Outbox {
  readonly #messagesMax: number;
  readonly #bytesMax: number;
  #waiting: (Outgoing | undefined)[] = [];
  /** How many at the front of `#waiting` are gone. */
  #taken = 0;
  #bytes = 0;

  constructor(messagesMax: number, bytesMax: number) {
    this.#messagesMax = messagesMax;
    this.#bytesMax = bytesMax;
  }

  get length(): number {
    return this.#waiting.length - this.#taken;
  }

  /** Payloads, headers and what it costs to keep them. */
  get bytes(): number {
    return this.#bytes;
  }

  /** False when it does not fit into this share of the room; what waits already stays. */
  push(message: Outgoing, share = 1): boolean {
    const bytes = costOf(message);
    if (this.length >= this.#messagesMax * share) return false;
    if (this.#bytes + bytes > this.#bytesMax * share) return false;
    this.#waiting.push(message);
    this.#bytes += bytes;
    return true;
  }

  peek(): Outgoing | undefined {
    return this.#waiting[this.#taken];
  }

  /** Takes the first one out. */
  shift(): Outgoing | undefined {
    const message = this.#waiting[this.#taken];
    if (message === undefined) return undefined;
    this.#bytes -= costOf(message);
    this.#waiting[this.#taken++] = undefined;
    if (this.#taken * 2 > this.#waiting.length) {
      this.#waiting = this.#waiting.slice(this.#taken);
      this.#taken = 0;
    }
    return message;
  }

  /** Empties it; how many there were. */
  clear(): number {
    const { length } = this;
    this.#waiting = [];
    this.#taken = 0;
    this.#bytes = 0;
    return length;
  }
}

function costOf(message: Outgoing): number {
  return messageBytes(message) + message.subject.length + ENTRY_BYTES;
}
