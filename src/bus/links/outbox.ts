import { messageBytes, type Outgoing } from "./link.ts";

/** What an entry costs beside its payload, so that empty messages count as well. */
const ENTRY_BYTES = 128;

/** Messages that wait for a connection: first in, first out, bounded in number and in bytes. */
export class Outbox {
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
