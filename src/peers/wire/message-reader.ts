import { LENGTH_BYTES } from "./layout.ts";

const BYTES_MIN = 4 * 1024;

/** What stands in front of a message as it goes over a connection. */
export function lengthOf(message: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(LENGTH_BYTES);
  new DataView(bytes.buffer).setUint32(0, message.length, true);
  return bytes;
}

/** A copy of a message with its length in front. */
export function withLength(message: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(LENGTH_BYTES + message.length);
  bytes.set(lengthOf(message));
  bytes.set(message, LENGTH_BYTES);
  return bytes;
}

/**
 * Cuts messages out of chunks that begin and end anywhere. It takes from a chunk what belongs to
 * one message and no more, so that something else may follow, such as a payload:
 *
 *     for (let at = 0; at < chunk.length; ) {
 *       at = reader.take(chunk, at);
 *       if (reader.fault !== null) return end(reader.fault);
 *       if (reader.message !== null) handle(reader.message);
 *     }
 *
 * A length above `bytesMax` is a fault, before anything is kept. Room is made as bytes arrive: a
 * promise of length costs nothing.
 */
export class MessageReader {
  /** Longest message, in bytes; may be changed between two messages. */
  bytesMax: number;
  /** The message that the last `take` completed, until the next; null: it is not complete. */
  message: Uint8Array | null = null;
  /** Why there is nothing more to be had from this connection; null: all is well. */
  fault: string | null = null;

  readonly #length = new Uint8Array(LENGTH_BYTES);
  #lengthBytes = 0;
  /** Of the message that is under way; its length is known. */
  #wanted = 0;
  #kept = new Uint8Array(0);
  #keptBytes = 0;

  constructor(bytesMax: number) {
    this.bytesMax = bytesMax;
  }

  /** Whether a message has begun and is not complete: the end of the stream would cut it off. */
  get within(): boolean {
    return this.#lengthBytes > 0;
  }

  /** Takes from `chunk[at...]` on; answers where it stopped, which is at most its end. */
  take(chunk: Uint8Array, at: number): number {
    this.message = null;
    while (this.#lengthBytes < LENGTH_BYTES && at < chunk.length && this.fault === null) {
      this.#length[this.#lengthBytes++] = chunk[at++]!;
      if (this.#lengthBytes === LENGTH_BYTES) this.#begin();
    }
    if (this.fault !== null) return chunk.length;
    if (this.#lengthBytes < LENGTH_BYTES) return at;
    const end = at + this.#wanted - this.#keptBytes;
    if (this.#keptBytes === 0 && end <= chunk.length) {
      this.#complete(chunk.subarray(at, end));
      return end;
    }
    const to = Math.min(end, chunk.length);
    this.#keep(chunk.subarray(at, to));
    if (to === end) this.#complete(this.#kept.subarray(0, this.#keptBytes));
    return to;
  }

  #begin(): void {
    this.#wanted = new DataView(this.#length.buffer).getUint32(0, true);
    if (this.#wanted === 0) this.fault = "a message without content";
    else if (this.#wanted > this.bytesMax) {
      this.fault = `a message of ${this.#wanted} bytes, at most ${this.bytesMax} are taken`;
    }
  }

  #complete(message: Uint8Array): void {
    this.message = message;
    this.#lengthBytes = 0;
    this.#keptBytes = 0;
    // The array, if any, goes with the message: what is handed out is not written to again.
    this.#kept = new Uint8Array(0);
  }

  #keep(bytes: Uint8Array): void {
    const needed = this.#keptBytes + bytes.length;
    if (needed > this.#kept.length) {
      const grown = new Uint8Array(Math.min(this.#wanted, Math.max(BYTES_MIN, 2 * needed)));
      grown.set(this.#kept.subarray(0, this.#keptBytes));
      this.#kept = grown;
    }
    this.#kept.set(bytes, this.#keptBytes);
    this.#keptBytes = needed;
  }
}
