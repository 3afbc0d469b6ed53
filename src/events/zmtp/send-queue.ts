import type { ZmtpLimits } from "./limits.ts";

/** What of Bun's socket is used. `write` takes what fits and says how much that was. */
export interface Wire {
  write(bytes: Uint8Array): number;
  pause(): void;
  resume(): void;
  end(): void;
  terminate(): void;
}

/** Whole messages that wait until the socket takes them, in order, bounded. */
export class SendQueue {
  readonly #wire: Wire;
  readonly #limits: ZmtpLimits;
  #waiting: Uint8Array[] = [];
  /** Index of the first that is not gone, and how much of it is. */
  #first = 0;
  #sent = 0;
  #bytes = 0;

  constructor(wire: Wire, limits: ZmtpLimits) {
    this.#wire = wire;
    this.#limits = limits;
  }

  get messages(): number {
    return this.#waiting.length - this.#first;
  }

  /** False: no room, and nothing of it is sent. `bytes` may be shared: it is not changed. */
  push(bytes: Uint8Array): boolean {
    const { queueBytesMax, queueMessagesMax } = this.#limits;
    const isFull = this.messages >= queueMessagesMax || this.#bytes + bytes.length > queueBytesMax;
    // One message goes into an empty queue, whatever its length.
    if (isFull && this.messages > 0) return false;
    this.#waiting.push(bytes);
    this.#bytes += bytes.length;
    if (this.messages === 1) this.drain();
    return true;
  }

  /** Writes as far as the socket takes it. False: the socket is gone. */
  drain(): boolean {
    while (this.#first < this.#waiting.length) {
      const message = this.#waiting[this.#first]!;
      const written = this.#wire.write(message.subarray(this.#sent));
      if (written < 0) return false;
      this.#sent += written;
      this.#bytes -= written;
      if (this.#sent < message.length) break;
      this.#sent = 0;
      this.#first++;
    }
    this.#tidy();
    return true;
  }

  #tidy(): void {
    if (this.#first === this.#waiting.length) this.#waiting = [];
    else if (this.#first < 1_024 || this.#first * 2 < this.#waiting.length) return;
    else this.#waiting.splice(0, this.#first);
    this.#first = 0;
  }
}
