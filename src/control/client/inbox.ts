import type { Bus, BusMessage, Subscription } from "../../bus/index.ts";
import { type Clock, HearthError, type Random } from "../../core/index.ts";
import { abortFault } from "./abort.ts";
import { randomHex } from "./envelope.ts";

const PREFIX_WORDS = 4;
const WAITING_MESSAGES_MAX = 10_000;

/** Answers to one command, in the order in which they came. */
export interface Mailbox extends Disposable {
  /** Where they are to be sent. */
  readonly subject: string;
  /** The next one; null where none has come after `ms`. Rejects with ABORTED, or ENGINE_CLOSED. */
  next(ms: number, signal?: AbortSignal): Promise<BusMessage | null>;
}

/**
 * One subscription for the answers to all commands of a client: what comes for a command that is no
 * longer waited for is dropped.
 */
export class Inbox implements Disposable {
  readonly #clock: Clock;
  readonly #prefix: string;
  readonly #subscription: Subscription;
  readonly #open = new Map<string, OpenMailbox>();
  #opened = 0;
  #isClosed = false;

  constructor(bus: Bus, clock: Clock, random: Random) {
    this.#clock = clock;
    this.#prefix = `${bus.inboxPrefix}.${randomHex(random, PREFIX_WORDS)}`;
    this.#subscription = bus.subscribe(`${this.#prefix}.*`, (message) => {
      this.#open.get(message.subject)?.put(message);
    });
  }

  open(): Mailbox {
    if (this.#isClosed) throw closed();
    const subject = `${this.#prefix}.${++this.#opened}`;
    const mailbox = new OpenMailbox(subject, this.#clock, () => this.#open.delete(subject));
    this.#open.set(subject, mailbox);
    return mailbox;
  }

  [Symbol.dispose](): void {
    this.#isClosed = true;
    this.#subscription.unsubscribe();
    for (const mailbox of [...this.#open.values()]) mailbox.fail(closed());
  }
}

function closed(): HearthError {
  return new HearthError("ENGINE_CLOSED", "the control client was closed");
}

class OpenMailbox implements Mailbox {
  readonly subject: string;
  readonly #clock: Clock;
  readonly #onClose: () => void;
  readonly #waiting: BusMessage[] = [];
  #wake: (() => void) | null = null;
  #fault: HearthError | null = null;

  constructor(subject: string, clock: Clock, onClose: () => void) {
    this.subject = subject;
    this.#clock = clock;
    this.#onClose = onClose;
  }

  put(message: BusMessage): void {
    // Whoever floods an inbox loses the flood, not our memory.
    if (this.#waiting.length < WAITING_MESSAGES_MAX) this.#waiting.push(message);
    this.#wake?.();
  }

  fail(fault: HearthError): void {
    this.#fault = fault;
    this.#wake?.();
  }

  async next(ms: number, signal?: AbortSignal): Promise<BusMessage | null> {
    if (this.#waiting.length === 0 && this.#fault === null && ms > 0 && !signal?.aborted) {
      await this.#wait(ms, signal);
    }
    if (signal?.aborted) throw abortFault(signal);
    if (this.#fault !== null) throw this.#fault;
    return this.#waiting.shift() ?? null;
  }

  [Symbol.dispose](): void {
    this.#onClose();
  }

  #wait(ms: number, signal: AbortSignal | undefined): Promise<void> {
    return new Promise((resolve) => {
      const wake = () => {
        timer[Symbol.dispose]();
        signal?.removeEventListener("abort", wake);
        this.#wake = null;
        resolve();
      };
      const timer = this.#clock.after(ms, wake);
      signal?.addEventListener("abort", wake, { once: true });
      this.#wake = wake;
    });
  }
}
