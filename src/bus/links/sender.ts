import { type Clock, messageOf, yieldToLoop } from "../../core/index.ts";
import type { PublishOutcome } from "../bus.ts";
import type { BusLimits, BusLog } from "../options.ts";
import { isSubject } from "../subjects.ts";
import { InFlight } from "./in-flight.ts";
import { areHeaders, type Link, messageBytes, type Outgoing } from "./link.ts";
import { Outbox } from "./outbox.ts";

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
