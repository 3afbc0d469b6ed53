import type { ZmtpMessage } from "./zmtp.ts";

/** Bits in the first byte of a frame. The other bits are zero. */
const MORE = 1;
const LONG = 2;
const COMMAND = 4;
const SHORT_BYTES_MAX = 255;

/** Initial allocation in bytes for a frame's body, before any byte of it has arrived. */
const BODY_FIRST_BYTES = 64 * 1024;

export interface ZmtpFrame {
  readonly isCommand: boolean;
  /** True if another frame of the same message follows. */
  readonly hasMore: boolean;
  /** Content of the frame. The receiver owns it; it is not a view of the input. */
  readonly body: Uint8Array;
}

/** Encodes a message as a sequence of frames. */
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

/** Encodes a command frame from the command's name and data. */
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
 * Splits a byte stream into frames. Memory grows only with received bytes: announcing a long frame
 * does not allocate it.
 */
export class FrameReader {
  readonly #bytesMax: number;
  readonly #head = new Uint8Array(9);
  #headLength = 0;
  /** Body of the frame that is being received. Null while its head is incomplete. */
  #body: Uint8Array | null = null;
  #bodyLength = 0;
  #bodyTotal = 0;

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  /**
   * Passes each complete frame to `take` until `take` returns false. Returns why the stream is not
   * valid ZMTP, or null. After a fault or a false, further input is ignored.
   */
  push(read: Uint8Array, take: (frame: ZmtpFrame) => boolean): string | null {
    // A Uint8Array is needed: `slice` of a Buffer would not copy.
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
      const flags = this.#head[0];
      this.#headLength = 0;
      const isCommand = (flags & COMMAND) !== 0;
      if (!take({ isCommand, hasMore: (flags & MORE) !== 0, body: frame.body })) return null;
    }
  }

  /** Returns how many bytes of the frame's head are still missing. */
  #headMissing(): number {
    if (this.#headLength === 0) return 1;
    return ((this.#head[0] & LONG) !== 0 ? 9 : 2) - this.#headLength;
  }

  #headFault(): string | null {
    const flags = this.#head[0];
    if ((flags & ~(MORE | LONG | COMMAND)) !== 0) return "frame with unknown flags";
    if ((flags & COMMAND) !== 0 && (flags & MORE) !== 0) return "command in several frames";
    if (this.#headMissing() > 0) return null;
    const isLong = (flags & LONG) !== 0;
    const length = isLong ? Number(new DataView(this.#head.buffer).getBigUint64(1)) : this.#head[1];
    if (length > this.#bytesMax)
      return `frame of ${length} bytes, the maximum is ${this.#bytesMax}`;
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

/** Socket types that each type may be connected to. */
export const PARTNERS: Readonly<Record<"PUB" | "SUB" | "DEALER" | "ROUTER", readonly string[]>> = {
  PUB: ["SUB", "XSUB"],
  SUB: ["PUB", "XPUB"],
  DEALER: ["ROUTER", "DEALER", "REP"],
  ROUTER: ["DEALER", "ROUTER", "REQ"],
};

/** A command received from the peer. `data` is a view of the frame. */
export type ZmtpCommand =
  | { readonly kind: "ready"; readonly socketType: string }
  | { readonly kind: "error"; readonly reason: string }
  | { readonly kind: "ping"; readonly context: Uint8Array }
  | { readonly kind: "pong" }
  | { readonly kind: "subscribe" | "cancel"; readonly topic: Uint8Array }
  /** A command that this implementation does not know and ignores. */
  | { readonly kind: "other" }
  | { readonly kind: "malformed"; readonly why: string };

const PROPERTIES_MAX = 64;
/** Maximum bytes of a PING's context that the PONG must repeat. */
const CONTEXT_BYTES_MAX = 16;

export function encodeReady(type: keyof typeof PARTNERS): Uint8Array {
  const properties = [property("Socket-Type", type)];
  if (type === "DEALER" || type === "ROUTER") properties.push(property("Identity", ""));
  return encodeCommand("READY", Buffer.concat(properties));
}

export function encodeError(reason: string): Uint8Array {
  const bytes = Buffer.from(reason.slice(0, 200), "latin1");
  return encodeCommand("ERROR", Buffer.concat([Uint8Array.of(bytes.length), bytes]));
}

/**
 * Encodes a PING with TTL 0: the peer need not disconnect if it receives nothing from this side.
 */
export function encodePing(): Uint8Array {
  return encodeCommand("PING", new Uint8Array(2));
}

export function encodePong(context: Uint8Array): Uint8Array {
  return encodeCommand("PONG", context);
}

function property(name: string, value: string): Uint8Array {
  const bytes = Buffer.alloc(1 + name.length + 4 + value.length);
  bytes[0] = name.length;
  bytes.write(name, 1, "latin1");
  bytes.writeUInt32BE(value.length, 1 + name.length);
  bytes.write(value, 5 + name.length, "latin1");
  return bytes;
}

/** Decodes the body of a command frame. */
export function decodeCommand(body: Uint8Array): ZmtpCommand {
  const length = body[0] ?? 0;
  if (length === 0 || 1 + length > body.length) return malformed("command without a name");
  const name = Buffer.from(body.subarray(1, 1 + length)).toString("latin1");
  const data = body.subarray(1 + length);
  switch (name) {
    case "READY":
      return decodeReady(data);
    case "ERROR":
      return { kind: "error", reason: reasonOf(data) };
    case "PING": {
      const context = data.subarray(2);
      const isPing = data.length >= 2 && context.length <= CONTEXT_BYTES_MAX;
      return isPing ? { kind: "ping", context } : malformed("malformed PING");
    }
    case "PONG":
      return { kind: "pong" };
    case "SUBSCRIBE":
      return { kind: "subscribe", topic: data };
    case "CANCEL":
      return { kind: "cancel", topic: data };
    default:
      return { kind: "other" };
  }
}

function decodeReady(data: Uint8Array): ZmtpCommand {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  let [at, socketType] = [0, null as string | null];
  for (let count = 0; at < data.length; count++) {
    const nameEnd = at + 1 + data[at];
    if (count === PROPERTIES_MAX || nameEnd === at + 1 || nameEnd + 4 > data.length) {
      return malformed("malformed READY");
    }
    const name = Buffer.from(data.subarray(at + 1, nameEnd)).toString("latin1");
    const end = nameEnd + 4 + view.getUint32(nameEnd);
    if (end > data.length) return malformed("malformed READY");
    const value = data.subarray(nameEnd + 4, end);
    if (name.toLowerCase() === "socket-type") socketType = Buffer.from(value).toString("latin1");
    at = end;
  }
  if (socketType === null) return malformed("READY without a socket type");
  return { kind: "ready", socketType };
}

/** Returns the reason in an ERROR command as short, printable text for a log. */
function reasonOf(data: Uint8Array): string {
  const text = Buffer.from(data.subarray(1, 1 + (data[0] ?? 0))).toString("latin1");
  return text.replace(/[^\x20-\x7e]/g, "?");
}

function malformed(why: string): ZmtpCommand {
  return { kind: "malformed", why };
}

export const GREETING_BYTES = 64;

const SIGNATURE_BYTES = 10;
const MAJOR_AT = 10;
const MINOR_AT = 11;
const MECHANISM_AT = 12;
const MECHANISM_BYTES = 20;

/**
 * Encodes the greeting of ZMTP 3.1 with the mechanism NULL: no authentication and no encryption.
 */
export function encodeGreeting(): Uint8Array {
  const greeting = new Uint8Array(GREETING_BYTES);
  greeting[0] = 0xff;
  greeting[9] = 0x7f;
  greeting[MAJOR_AT] = 3;
  greeting[MINOR_AT] = 1;
  greeting.set(new TextEncoder().encode("NULL"), MECHANISM_AT);
  return greeting;
}

/** Checks the first `length` bytes of a greeting. Returns the fault, or null. */
export function greetingFault(greeting: Uint8Array, length: number): string | null {
  if (length >= 1 && greeting[0] !== 0xff) return "the peer does not speak ZMTP";
  if (length >= SIGNATURE_BYTES && greeting[9] !== 0x7f) return "the peer does not speak ZMTP 3";
  if (length > MAJOR_AT && greeting[MAJOR_AT] < 3) {
    return `the peer speaks ZMTP ${greeting[MAJOR_AT]}, version 3 is required`;
  }
  if (length < MECHANISM_AT + MECHANISM_BYTES) return null;
  const bytes = greeting.subarray(MECHANISM_AT, MECHANISM_AT + MECHANISM_BYTES);
  const end = bytes.indexOf(0);
  const mechanism = Buffer.from(bytes.subarray(0, end < 0 ? undefined : end)).toString("latin1");
  if (mechanism === "NULL") return null;
  const name = mechanism.replace(/[^A-Z0-9-]/g, "?");
  return `the peer requires the security mechanism ${name}, only NULL is supported`;
}

/**
 * Returns the version in a complete, valid greeting. Peers with a later major version state their
 * own number.
 */
export function greetingVersion(greeting: Uint8Array): { major: number; minor: number } {
  return { major: greeting[MAJOR_AT], minor: greeting[MINOR_AT] };
}
