import type { TLSSocket } from "node:tls";
import { type Clock, NamedSources, type TurnSource } from "../../../core/index.ts";
import { CONNECTION_FAULTS, type ConnectionFaultKind } from "../../transport.ts";
import { MessageReader } from "../../wire/index.ts";

/** Length and message kind. */
const PREFIX_BYTES = 5;
const WHY_BYTES_MAX = 255;

/** A little-endian number of this width, or bytes. */
export type Field = readonly [width: 1 | 2 | 4, value: number] | Uint8Array;

/**
 * Encodes a message: `length u32, kind u8, fields`. The length counts the bytes after it; all
 * numbers are little-endian.
 */
export function frame(code: number, ...fields: readonly Field[]): Uint8Array {
  let length = PREFIX_BYTES;
  for (const field of fields) length += field instanceof Uint8Array ? field.length : field[0];
  const bytes = new Uint8Array(length);
  const view = new DataView(bytes.buffer);
  view.setUint32(0, length - 4, true);
  bytes[4] = code;
  let at = PREFIX_BYTES;
  for (const field of fields) {
    if (field instanceof Uint8Array) {
      bytes.set(field, at);
      at += field.length;
      continue;
    }
    const [width, value] = field;
    if (width === 1) bytes[at] = value;
    else if (width === 2) view.setUint16(at, value, true);
    else view.setUint32(at, value, true);
    at += width;
  }
  return bytes;
}

/** A reason for the peer, truncated to the limit of the message. */
function reasonBytes(text: string): Uint8Array {
  const bytes = new Uint8Array(WHY_BYTES_MAX);
  return bytes.subarray(0, new TextEncoder().encodeInto(text, bytes).written);
}

/** Null: not valid text. */
function textOf(bytes: Uint8Array): string | null {
  if (bytes.length > WHY_BYTES_MAX) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

/**
 * Messages that all transports share. `body` is encoded by the common wire codec and comes last.
 */
export type CommonMessage =
  | { readonly kind: "call"; readonly id: number; readonly body: Uint8Array }
  | { readonly kind: "answer"; readonly id: number; readonly body: Uint8Array }
  /** A block whose header was sent will not be sent. */
  | { readonly kind: "lost"; readonly id: number; readonly index: number }
  /** The pull was not started because the server is busy. */
  | { readonly kind: "busy"; readonly id: number; readonly retryAfterMs: number }
  /** The remaining items of a pull will not be answered. */
  | {
      readonly kind: "end";
      readonly id: number;
      readonly fault: ConnectionFaultKind;
      readonly why: string;
    }
  | { readonly kind: "cancel"; readonly id: number }
  | { readonly kind: "ping"; readonly nonce: number }
  | { readonly kind: "pong"; readonly nonce: number }
  /** The last message: the reason this side ends the connection. */
  | { readonly kind: "bye"; readonly fault: ConnectionFaultKind; readonly why: string };

type CommonKind = CommonMessage["kind"];

/** Byte of each kind, the same for all transports. */
const COMMON_CODES: Readonly<Record<CommonKind, number>> = {
  call: 3,
  answer: 4,
  lost: 8,
  busy: 9,
  end: 10,
  cancel: 11,
  ping: 12,
  pong: 13,
  bye: 14,
};
const KINDS = new Map(Object.entries(COMMON_CODES).map(([kind, code]) => [code, kind]));

/** Size of each kind's fixed fields, and whether variable fields may follow. */
const FIXED: Readonly<Record<CommonKind, readonly [bytes: number, more: boolean]>> = {
  call: [4, true],
  answer: [4, true],
  lost: [6, false],
  busy: [8, false],
  end: [5, true],
  cancel: [4, false],
  ping: [4, false],
  pong: [4, false],
  bye: [1, true],
};

export function isCommon(message: { readonly kind: string }): message is CommonMessage {
  return message.kind in COMMON_CODES;
}

/** The complete message with its length prefix. */
export function encodeCommon(said: CommonMessage): Uint8Array {
  return frame(COMMON_CODES[said.kind], ...fieldsOf(said));
}

function fieldsOf(said: CommonMessage): Field[] {
  switch (said.kind) {
    case "call":
    case "answer":
      return [[4, said.id], said.body];
    case "lost":
      return [
        [4, said.id],
        [2, said.index],
      ];
    case "busy":
      return [
        [4, said.id],
        [4, said.retryAfterMs],
      ];
    case "end":
      return [[4, said.id], [1, CONNECTION_FAULTS.indexOf(said.fault)], reasonBytes(said.why)];
    case "cancel":
      return [[4, said.id]];
    case "ping":
    case "pong":
      return [[4, said.nonce]];
    case "bye":
      return [[1, CONNECTION_FAULTS.indexOf(said.fault)], reasonBytes(said.why)];
    default:
      throw said satisfies never;
  }
}

/** Null: invalid. Undefined: not a common message. Fields are views, not copies. */
export function decodeCommon(bytes: Uint8Array): CommonMessage | null | undefined {
  const kind = KINDS.get(bytes[0] ?? 0) as CommonKind | undefined;
  if (kind === undefined) return undefined;
  const fields = bytes.subarray(1);
  const [fixed, more] = FIXED[kind];
  if (fields.length < fixed || (!more && fields.length > fixed)) return null;
  const rest = fields.subarray(fixed);
  const view = new DataView(fields.buffer, fields.byteOffset, fields.length);
  const u32 = (at: number) => view.getUint32(at, true);
  switch (kind) {
    case "call":
    case "answer":
      return { kind, id: u32(0), body: rest };
    case "lost":
      return { kind, id: u32(0), index: view.getUint16(4, true) };
    case "busy":
      return { kind, id: u32(0), retryAfterMs: u32(4) };
    case "end": {
      const [fault, why] = [CONNECTION_FAULTS[fields[4]!], textOf(rest)];
      return fault === undefined || why === null ? null : { kind, id: u32(0), fault, why };
    }
    case "cancel":
      return { kind, id: u32(0) };
    case "ping":
    case "pong":
      return { kind, nonce: u32(0) };
    case "bye": {
      const [fault, why] = [CONNECTION_FAULTS[fields[0]!], textOf(rest)];
      return fault === undefined || why === null ? null : { kind, fault, why };
    }
    default:
      throw kind satisfies never;
  }
}

/** Time for the peer to close after the last message. */
const LINGER_MS = 2_000;

/** Peers with their own share of the event loop; further peers share one. */
const PEERS_MAX = 16;
/** All channels of a peer, in both directions and of all transports, use one share. */
const sources = new NamedSources(PEERS_MAX);

/** Encodes a transport's own messages and the common ones. */
export interface Codec<Own> {
  /** The complete message with its length prefix. */
  encode(message: Own | CommonMessage): Uint8Array;
  /**
   * `bytes`: the message without its length prefix. Null: invalid. Fields are views, not copies.
   */
  decode(bytes: Uint8Array): Own | CommonMessage | null;
}

export interface ControlChannelOptions<Own> {
  readonly codec: Codec<Own>;
  readonly clock: Clock;
  /** The peer, for its share of the event loop; empty: unknown. */
  readonly worker: string;
  /** Maximum size of a received message. */
  readonly messageBytesMax: number;
  /** Bytes waiting to be written above which nothing more is read. */
  readonly unreadBytesMax: number;
}

/** Receives the channel's messages. */
export interface ChannelHandler<Own> {
  receive(message: Own | CommonMessage): void;
  /**
   * Called once when the channel has ended: closed by the peer, broken, or after an invalid
   * message.
   */
  channelEnded(end: ChannelEnd): void;
}

export interface ChannelEnd {
  readonly kind: "broken" | "protocol";
  readonly why: string;
}

/**
 * A TLS connection that carries messages. It reads nothing before `handTo`, and nothing while too
 * much output is waiting, so that a peer that does not read cannot fill this host's memory.
 */
export class ControlChannel<Own> {
  readonly #socket: TLSSocket;
  readonly #options: ControlChannelOptions<Own>;
  readonly #reader: MessageReader;
  readonly #source: TurnSource;
  #handler: ChannelHandler<Own> | null = null;
  /** Input is ignored. */
  #inputClosed = false;
  /** Output is closed. */
  #ended = false;
  #heldBack = false;
  /** Received chunks waiting for their share of the event loop; nothing more is read meanwhile. */
  #deferred: Uint8Array[] = [];
  /** Wakes callers that wait for output space. */
  #drained: (() => void)[] = [];
  /** Monotonic times: when data arrived last, and since when a message is incomplete. */
  heardMs: number;
  partialSinceMs: number | null = null;
  /** Since when too much output is waiting; null: it is not. */
  clogSinceMs: number | null = null;

  constructor(socket: TLSSocket, options: ControlChannelOptions<Own>) {
    this.#socket = socket;
    this.#options = options;
    this.#source = sources.of(options.worker);
    this.#reader = new MessageReader(options.messageBytesMax);
    this.heardMs = options.clock.monotonicMs();
    socket.on("drain", () => this.#onDrain());
    socket.on("error", (error) => this.#end("broken", error.message));
    socket.on("end", () => this.#end("broken", "the peer closed the connection"));
    socket.on("close", () => this.#end("broken", "the connection ended"));
  }

  /** Starts reading, or continues with another handler. */
  handTo(handler: ChannelHandler<Own>): void {
    const isFirst = this.#handler === null;
    this.#handler = handler;
    if (isFirst) this.#socket.on("data", (chunk: Uint8Array) => this.#receive(chunk));
  }

  /** More output is waiting than allowed. */
  get isFull(): boolean {
    return this.#socket.writableLength > this.#options.unreadBytesMax;
  }

  send(message: Own | CommonMessage): void {
    if (this.#ended) return;
    this.#socket.write(this.#options.codec.encode(message));
    if (this.#heldBack || !this.isFull) return;
    this.#heldBack = true;
    this.clogSinceMs = this.#options.clock.monotonicMs();
    this.#socket.pause();
  }

  /** Resolves when there is output space, or the channel has ended. */
  room(): Promise<void> {
    if (this.#ended || !this.isFull) return Promise.resolve();
    return new Promise((resolve) => this.#drained.push(resolve));
  }

  /** Sends the last message, if any, and closes. Nothing more is read. */
  close(last?: Own | CommonMessage): void {
    if (last !== undefined) this.send(last);
    this.#stop();
    this.#socket.end();
    this.#socket.resume();
    const linger = this.#options.clock.after(LINGER_MS, () => this.#socket.destroy());
    this.#socket.on("close", () => linger[Symbol.dispose]());
  }

  /** Ends the connection without a message. */
  destroy(): void {
    this.#stop();
    this.#socket.destroy();
  }

  #stop(): void {
    this.#inputClosed = true;
    this.#ended = true;
    this.#deferred = [];
    for (const wake of this.#drained.splice(0)) wake();
  }

  #end(kind: ChannelEnd["kind"], why: string): void {
    if (this.#inputClosed) return;
    // After an invalid message, the reason can still be sent.
    if (kind === "protocol") this.#inputClosed = true;
    else this.#stop();
    this.#handler?.channelEnded({ kind, why });
  }

  #onDrain(): void {
    // The peer accepted output, so it is alive.
    this.heardMs = this.#options.clock.monotonicMs();
    if (this.isFull) return;
    this.clogSinceMs = null;
    for (const wake of this.#drained.splice(0)) wake();
    if (!this.#heldBack) return;
    this.#heldBack = false;
    if (this.#deferred.length === 0) this.#socket.resume();
  }

  #receive(chunk: Uint8Array): void {
    if (this.#inputClosed) return;
    this.heardMs = this.#options.clock.monotonicMs();
    if (this.#deferred.length > 0) this.#deferred.push(chunk);
    else if (this.#source.begin()) this.#read(chunk);
    else this.#defer(chunk);
  }

  /** Continues in the channel's next share of the event loop. */
  #defer(rest: Uint8Array): void {
    this.#deferred.unshift(rest);
    this.#socket.pause();
    void this.#source.turn().then(() => {
      while (this.#deferred.length > 0 && !this.#inputClosed) {
        // `rest` goes back to the front if the chunk is not fully processed.
        const chunk = this.#deferred.shift()!;
        if (!this.#read(chunk)) return;
      }
      if (!this.#heldBack) this.#socket.resume();
    });
  }

  /** Processes a chunk within its share. False: the rest waits for the next one. */
  #read(chunk: Uint8Array): boolean {
    const reader = this.#reader;
    for (let at = 0; at < chunk.length && !this.#inputClosed; ) {
      at = reader.take(chunk, at);
      if (reader.fault !== null) this.#end("protocol", reader.fault);
      else if (reader.message !== null) this.#hand(reader.message);
      if (this.#source.goOn() || at === chunk.length || this.#inputClosed) continue;
      this.#defer(chunk.subarray(at));
      return false;
    }
    if (reader.within) this.partialSinceMs ??= this.heardMs;
    return true;
  }

  #hand(bytes: Uint8Array): void {
    this.partialSinceMs = null;
    const message = this.#options.codec.decode(bytes);
    if (message === null) this.#end("protocol", "invalid message");
    else this.#handler?.receive(message);
  }
}
