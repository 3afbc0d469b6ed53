import { LENGTH_BYTES } from "./layout.ts";

const BYTES_MIN = 4 * 1024;

/** Returns the length prefix of a message. */
export function lengthOf(message: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(LENGTH_BYTES);
  new DataView(bytes.buffer).setUint32(0, message.length, true);
  return bytes;
}

/** Returns a copy of the message with its length prefix. */
export function withLength(message: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(LENGTH_BYTES + message.length);
  bytes.set(lengthOf(message));
  bytes.set(message, LENGTH_BYTES);
  return bytes;
}

/**
 * Splits a byte stream into messages. `take` consumes the bytes of at most one message, so that
 * other data, such as a payload, can follow a message:
 *
 *     for (let at = 0; at < chunk.length; ) {
 *       at = reader.take(chunk, at);
 *       if (reader.fault !== null) return end(reader.fault);
 *       if (reader.message !== null) handle(reader.message);
 *     }
 *
 * A length prefix above `bytesMax` is a fault before any of the message is buffered. The buffer
 * grows as bytes arrive, so a large length prefix alone uses no memory.
 */
export class MessageReader {
  /** Maximum size of a message in bytes. May be changed between two messages. */
  bytesMax: number;
  /** Message that the latest call of `take` completed. Null if no message was completed. */
  message: Uint8Array | null = null;
  /** The reason the stream is invalid. Null if it is valid so far. */
  fault: string | null = null;

  readonly #length = new Uint8Array(LENGTH_BYTES);
  #lengthBytes = 0;
  /** Size in bytes of the current message, after its length prefix has been read. */
  #wanted = 0;
  #kept = new Uint8Array(0);
  #keptBytes = 0;

  constructor(bytesMax: number) {
    this.bytesMax = bytesMax;
  }

  /** True if part of a message has arrived, so that the stream must not end here. */
  get within(): boolean {
    return this.#lengthBytes > 0;
  }

  /**
   * Consumes bytes from offset `at` of `chunk`. Returns the offset after the last consumed byte.
   */
  take(chunk: Uint8Array, at: number): number {
    this.message = null;
    while (this.#lengthBytes < LENGTH_BYTES && at < chunk.length && this.fault === null) {
      this.#length[this.#lengthBytes++] = chunk[at++];
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
    if (this.#wanted === 0) this.fault = "empty message";
    else if (this.#wanted > this.bytesMax) {
      this.fault = `message of ${this.#wanted} bytes, maximum ${this.bytesMax}`;
    }
  }

  #complete(message: Uint8Array): void {
    this.message = message;
    this.#lengthBytes = 0;
    this.#keptBytes = 0;
    // The caller owns the returned array, so the reader does not write to it again.
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
