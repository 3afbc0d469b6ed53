import { type Clock, HearthError } from "../core/index.ts";
import type { BusMessage } from "./bus.ts";

const WAITING_MESSAGES_MAX = 10_000;

/**
 * Receives the replies to all requests of one process with a single subscription. The last token of
 * a reply's subject identifies its request (mailbox). Replies without an open mailbox are dropped.
 */
export class Inbox implements Disposable {
  readonly #clock: Clock;
  readonly #prefix: string;
  readonly #open = new Map<string, Mailbox>();
  #opened = 0;
  #isClosed = false;

  /** `prefix`: a subject prefix that no other inbox uses. */
  constructor(prefix: string, clock: Clock) {
    this.#prefix = prefix;
    this.#clock = clock;
  }

  /** Pattern to subscribe to in order to receive all replies. */
  get pattern(): string {
    return `${this.#prefix}.*`;
  }

  /** Number of open mailboxes. */
  get size(): number {
    return this.#open.size;
  }

  /** Opens a mailbox for one request. Throws ENGINE_CLOSED if the inbox is closed. */
  open(): Mailbox {
    if (this.#isClosed) throw closed();
    const subject = `${this.#prefix}.${(++this.#opened).toString(36)}`;
    const mailbox = new Mailbox(subject, this.#clock, () => this.#open.delete(subject));
    this.#open.set(subject, mailbox);
    return mailbox;
  }

  deliver(message: BusMessage): void {
    this.#open.get(message.subject)?.put(message);
  }

  [Symbol.dispose](): void {
    this.#isClosed = true;
    for (const mailbox of [...this.#open.values()]) mailbox.fail(closed());
  }
}

function closed(): HearthError {
  return new HearthError("ENGINE_CLOSED", "the client was closed");
}

/** Returns the error for an aborted wait: the signal's own error if it has one, else ABORTED. */
export function abortFault(signal: AbortSignal): HearthError {
  const reason: unknown = signal.reason;
  if (reason instanceof HearthError) return reason;
  return new HearthError("ABORTED", "the wait for an answer was aborted", { cause: reason });
}

/** Returns true if the message is the broker's report that a request had no subscriber. */
export function hasNoResponders({ headers, data }: BusMessage): boolean {
  return data.length === 0 && headers.Status === "503";
}

/** Replies to one request, in order of arrival. */
export class Mailbox implements Disposable {
  /** Reply subject to send with the request. */
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
    // Limits memory if too many replies arrive. Further ones are dropped.
    if (this.#waiting.length < WAITING_MESSAGES_MAX) this.#waiting.push(message);
    this.#wake?.();
  }

  fail(fault: HearthError): void {
    this.#fault = fault;
    this.#wake?.();
  }

  /**
   * Returns the next reply, or null if none arrives within `ms`. Rejects with ABORTED or
   * ENGINE_CLOSED.
   */
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
