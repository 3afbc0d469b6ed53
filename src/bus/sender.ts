import { type Clock, messageOf, yieldToLoop } from "../core/index.ts";
import { type BusLimits, type BusLog, isSubject, type PublishOutcome } from "./bus.ts";
import { areHeaders, type BrokerConnection, messageBytes, type Outgoing } from "./connection.ts";

/**
 * Maximum bytes of a message before the first broker has reported its own limit: the default of
 * NATS servers.
 */
const PAYLOAD_BYTES_DEFAULT = 2 ** 20;
/** Fraction of the queue that best-effort messages may fill. */
const SPARE_SHARE = 0.5;
/** Queued messages sent in one turn of the event loop. */
const SLICE = 512;

/**
 * Sends messages over the current connection. Queues them if there is none or it is slow. The
 * client libraries silently discard their buffers when they reconnect, so this class leaves nothing
 * in them.
 */
export class Sender {
  readonly #clock: Clock;
  readonly #log: BusLog;
  readonly #limits: BusLimits;
  readonly #outbox: Outbox;
  #connection: BrokerConnection | null = null;
  #inFlight: InFlight | null = null;
  #isDraining = false;
  #droppedFromQueue = 0;
  sent = 0;
  dropped = 0;
  doubtful = 0;
  payloadBytesMax = PAYLOAD_BYTES_DEFAULT;
  /** Called whenever the last queued message has been sent. */
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

  /** Sends or queues a message. `isSpare`: queue it only while the queue is less than half full. */
  publish(message: Outgoing, isSpare = false): PublishOutcome {
    if (!isSendable(message) || messageBytes(message) > this.payloadBytesMax) return this.#drop();
    if (this.#connection !== null && this.#outbox.length === 0 && !this.#inFlight!.isFull) {
      return this.#send(this.#connection, message) ? "sent" : "dropped";
    }
    if (this.#outbox.push(message, isSpare ? SPARE_SHARE : 1)) return "queued";
    if (this.#droppedFromQueue++ === 0) {
      const fields = { messages: this.#outbox.length, bytes: this.#outbox.bytes };
      this.#log("warn", "NATS queue full, dropping new messages", fields);
    }
    return this.#drop();
  }

  /** Starts to use a new connection and sends the queued messages over it, in order. */
  attach(connection: BrokerConnection): void {
    this.#connection = connection;
    this.payloadBytesMax = connection.payloadBytesMax;
    this.#inFlight = new InFlight(connection, this.#clock, this.#limits);
    this.#inFlight.onRoom = () => void this.#drain();
    void this.#drain();
  }

  /**
   * Stops using the connection, because it has ended. Returns the number of its messages that the
   * broker had not confirmed.
   */
  detach(): number {
    const unconfirmed = this.#inFlight?.messages ?? 0;
    this.#inFlight?.[Symbol.dispose]();
    this.#inFlight = null;
    this.#connection = null;
    this.doubtful += unconfirmed;
    return unconfirmed;
  }

  /** Drops the queued messages. */
  close(): void {
    this.detach();
    const left = this.#outbox.clear();
    this.dropped += left;
    this.#droppedFromQueue += left;
    this.#reportDropped();
  }

  #drop(): "dropped" {
    this.dropped++;
    return "dropped";
  }

  #send(connection: BrokerConnection, message: Outgoing): boolean {
    try {
      connection.publish(message);
    } catch (thrown) {
      this.#drop();
      const fields = { subject: message.subject, why: messageOf(thrown) };
      this.#log("warn", "NATS message rejected by the client library", fields);
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
    this.#reportDropped();
    this.onEmpty();
  }

  /**
   * Sends one queued message. Returns false if there is none, or no connection that can take it.
   */
  #drainOne(): boolean {
    if (this.#connection === null || this.#inFlight!.isFull) return false;
    const message = this.#outbox.shift();
    if (message === undefined) return false;
    // Checked again, because this broker may have a smaller limit than the previous one.
    if (messageBytes(message) > this.payloadBytesMax) this.#drop();
    else this.#send(this.#connection, message);
    return true;
  }

  #reportDropped(): void {
    if (this.#droppedFromQueue === 0) return;
    const fields = { messages: this.#droppedFromQueue };
    this.#log("warn", "NATS queue was full, messages were dropped", fields);
    this.#droppedFromQueue = 0;
  }
}

function isSendable({ subject, reply, headers }: Outgoing): boolean {
  if (!isSubject(subject) || (reply !== null && !isSubject(reply))) return false;
  return headers === null || areHeaders(headers);
}

/**
 * Messages sent on one connection that the broker has not confirmed. Client libraries and kernels
 * buffer without limit towards a stalled server; this class limits the unconfirmed bytes and so
 * detects such a server.
 */
class InFlight implements Disposable {
  readonly #connection: BrokerConnection;
  readonly #clock: Clock;
  readonly #limits: BusLimits;
  readonly #timer: Disposable;
  /** Number of unconfirmed messages. */
  messages = 0;
  #bytes = 0;
  #askedAtMs: number | null = null;
  /** Called when the broker has confirmed some messages, so that more may be sent. */
  onRoom: () => void = () => undefined;

  constructor(connection: BrokerConnection, clock: Clock, limits: BusLimits) {
    this.#connection = connection;
    this.#clock = clock;
    this.#limits = limits;
    this.#timer = clock.every(limits.pingMs, () => this.#tick());
  }

  get isFull(): boolean {
    return this.#bytes >= this.#limits.windowBytes;
  }

  add(bytes: number): void {
    this.messages++;
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
    this.#connection.end(`no answer for ${Math.round(silentMs / 1_000)} s`);
  }

  #ask(): void {
    if (this.#askedAtMs !== null) return;
    const messages = this.messages;
    const bytes = this.#bytes;
    this.#askedAtMs = this.#clock.monotonicMs();
    this.#connection.confirm().then(
      () => {
        this.#askedAtMs = null;
        this.messages -= messages;
        this.#bytes -= bytes;
        if (this.#bytes >= this.#limits.windowBytes / 4) this.#ask();
        this.onRoom();
      },
      // The connection has ended. `closed` reports that, too.
      () => undefined,
    );
  }
}

/**
 * Bytes counted for each queued message in addition to its content, so that empty messages count,
 * too.
 */
const ENTRY_BYTES = 128;

/**
 * First-in, first-out queue of messages that wait for a connection. Bounded in messages and bytes.
 */
class Outbox {
  readonly #messagesMax: number;
  readonly #bytesMax: number;
  #waiting: (Outgoing | undefined)[] = [];
  /** Number of entries at the front of `#waiting` that were sent or dropped. */
  #taken = 0;
  #bytes = 0;

  constructor(messagesMax: number, bytesMax: number) {
    this.#messagesMax = messagesMax;
    this.#bytesMax = bytesMax;
  }

  get length(): number {
    return this.#waiting.length - this.#taken;
  }

  /** Bytes of the queue: data and headers of all messages, and a fixed cost for each. */
  get bytes(): number {
    return this.#bytes;
  }

  /**
   * Adds a message. Returns false if it would fill more than this share of the queue. Queued
   * messages are never evicted.
   */
  push(message: Outgoing, share = 1): boolean {
    const bytes = costOf(message);
    if (this.length >= this.#messagesMax * share) return false;
    if (this.#bytes + bytes > this.#bytesMax * share) return false;
    this.#waiting.push(message);
    this.#bytes += bytes;
    return true;
  }

  /** Removes and returns the first message. */
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

  /** Removes all messages and returns their number. */
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
