import type { ZmtpMessage } from "./zmtp.ts";

/** Bits of a frame's first byte; the others are zero. */
const MORE = 1;
const LONG = 2;
const COMMAND = 4;
const SHORT_BYTES_MAX = 255;

/** Room is made for so much of a frame before any of it came. */
const BODY_FIRST_BYTES = 64 * 1024;

export interface ZmtpFrame {
  readonly isCommand: boolean;
  /** Another frame of the same message follows. */
  readonly hasMore: boolean;
  /** The receiver's own: not a view of what was read. */
  readonly body: Uint8Array;
}

/** One message as it goes over the wire. */
export function encodeMessage(frames: ZmtpMessage): Uint8Array {
  let bytes = 0;
  for (const frame of frames) bytes += headBytes(frame.length) + frame.length;
  const encoded = new Uint8Array(bytes);
  let at = 0;
  for (const [i, frame] of frames.entries()) {
    at = writeFrame(encoded, at, i < frames.length - 1 ? MORE : 0, frame);
  }
  return encoded;
}

/** A command: its name, and what it carries. */
export function encodeCommand(name: string, data: Uint8Array): Uint8Array {
  const body = new Uint8Array(1 + name.length + data.length);
  body[0] = name.length;
  body.set(new TextEncoder().encode(name), 1);
  body.set(data, 1 + name.length);
  const encoded = new Uint8Array(headBytes(body.length) + body.length);
  writeFrame(encoded, 0, COMMAND, body);
  return encoded;
}

function headBytes(length: number): number {
  return length > SHORT_BYTES_MAX ? 9 : 2;
}

function writeFrame(into: Uint8Array, at: number, flags: number, body: Uint8Array): number {
  const isLong = body.length > SHORT_BYTES_MAX;
  into[at] = flags | (isLong ? LONG : 0);
  if (isLong) new DataView(into.buffer).setBigUint64(at + 1, BigInt(body.length));
  else into[at + 1] = body.length;
  const start = at + headBytes(body.length);
  into.set(body, start);
  return start + body.length;
}

/**
 * Cuts a stream into frames. Takes no more memory than bytes came, whatever lengths are announced.
 */
export class FrameReader {
  readonly #bytesMax: number;
  readonly #head = new Uint8Array(9);
  #headLength = 0;
  /** Of the frame whose head is complete; null before that. */
  #body: Uint8Array | null = null;
  #bodyLength = 0;
  #bodyTotal = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /**
   * Gives each frame that is complete to `take`, until that returns false. Why the stream is no
   * ZMTP, or null. What comes behind a fault, or behind a false, is not looked at.
   */
  push(read: Uint8Array, take: (frame: ZmtpFrame) => boolean): string | null {
    // A Buffer's `slice` would not copy.
    const chunk = new Uint8Array(read.buffer, read.byteOffset, read.byteLength);
    let at = 0;
    for (;;) {
      const missing = this.#headMissing();
      if (missing > 0) {
        if (at === chunk.length) return null;
        const some = Math.min(missing, chunk.length - at);
        this.#head.set(chunk.subarray(at, at + some), this.#headLength);
        this.#headLength += some;
        at += some;
        const why = this.#headFault();
        if (why !== null) return why;
        continue;
      }
      const frame = this.#bodyFrom(chunk, at);
      at += frame.used;
      if (frame.body === null) return null;
      const flags = this.#head[0]!;
      this.#headLength = 0;
      const isCommand = (flags & COMMAND) !== 0;
      if (!take({ isCommand, hasMore: (flags & MORE) !== 0, body: frame.body })) return null;
    }
  }

  /** Bytes of the head that have not come. */
  #headMissing(): number {
    if (this.#headLength === 0) return 1;
    return ((this.#head[0]! & LONG) !== 0 ? 9 : 2) - this.#headLength;
  }

  #headFault(): string | null {
    const flags = this.#head[0]!;
    if ((flags & ~(MORE | LONG | COMMAND)) !== 0) return "a frame with flags that are not known";
    if ((flags & COMMAND) !== 0 && (flags & MORE) !== 0) return "a command in parts";
    if (this.#headMissing() > 0) return null;
    const isLong = (flags & LONG) !== 0;
    const length = isLong
      ? Number(new DataView(this.#head.buffer).getBigUint64(1))
      : this.#head[1]!;
    if (length > this.#bytesMax) return `a frame of ${length} bytes, ${this.#bytesMax} at most`;
    this.#bodyTotal = length;
    return null;
  }

  #bodyFrom(chunk: Uint8Array, at: number): { used: number; body: Uint8Array | null } {
    const wanted = this.#bodyTotal - this.#bodyLength;
    const used = Math.min(wanted, chunk.length - at);
    if (this.#body === null && used === wanted) {
      return { used, body: chunk.slice(at, at + used) };
    }
    this.#room(this.#bodyLength + used);
    this.#body!.set(chunk.subarray(at, at + used), this.#bodyLength);
    this.#bodyLength += used;
    if (this.#bodyLength < this.#bodyTotal) return { used, body: null };
    const body = this.#body!.subarray(0, this.#bodyTotal);
    this.#body = null;
    this.#bodyLength = 0;
    return { used, body };
  }

  #room(bytes: number): void {
    const room = this.#body?.length ?? 0;
    if (this.#body !== null && bytes <= room) return;
    const wanted = Math.max(bytes, room * 2, BODY_FIRST_BYTES);
    const grown = new Uint8Array(Math.min(wanted, this.#bodyTotal));
    if (this.#body !== null) grown.set(this.#body.subarray(0, this.#bodyLength));
    this.#body = grown;
  }
}
