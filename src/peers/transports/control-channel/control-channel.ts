import type { TLSSocket } from "node:tls";
import { type Clock, NamedSources, type TurnSource } from "../../../core/index.ts";
import { LINK_FAULTS, type LinkFaultKind } from "../../transport.ts";
import { MessageReader } from "../../wire/index.ts";

/** Length and kind. */
const PREFIX_BYTES = 5;
const WHY_BYTES_MAX = 255;

/** Numbers and bytes, one after the other. */
export type Field = readonly [width: 1 | 2 | 4, value: number] | Uint8Array;

/**
 * A message as it goes over the wire: `length u32, kind u8, fields`; the length counts what follows
 * it, all numbers are little-endian.
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

/** Words for the other side, cut to what the message holds. */
function words(text: string): Uint8Array {
  const bytes = new Uint8Array(WHY_BYTES_MAX);
  return bytes.subarray(0, new TextEncoder().encodeInto(text, bytes).written);
}

/** Null: it is none. */
function textOf(bytes: Uint8Array): string | null {
  if (bytes.length > WHY_BYTES_MAX) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

/**
 * What the ends of a link say to each other whatever carries its payload. `body` is of the common
 * wire codec and stands last.
 */
export type CommonMessage =
  | { readonly kind: "call"; readonly id: number; readonly body: Uint8Array }
  | { readonly kind: "answer"; readonly id: number; readonly body: Uint8Array }
  /** A block whose header was sent does not come after all. */
  | { readonly kind: "lost"; readonly id: number; readonly index: number }
  /** A pull is not begun: there is too much to do. */
  | { readonly kind: "busy"; readonly id: number; readonly retryAfterMs: number }
  /** What is not answered yet of a pull never will be. */
  | {
      readonly kind: "end";
      readonly id: number;
      readonly fault: LinkFaultKind;
      readonly why: string;
    }
  | { readonly kind: "cancel"; readonly id: number }
  | { readonly kind: "ping"; readonly nonce: number }
  | { readonly kind: "pong"; readonly nonce: number }
  /** The last message: why this side ends the link. */
  | { readonly kind: "bye"; readonly fault: LinkFaultKind; readonly why: string };

type CommonKind = CommonMessage["kind"];

/** The byte for each kind, the same for all transports. */
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

/** Bytes of a kind's fixed fields, and whether more may follow. */
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

/** The whole message, its length in front. */
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
      return [[4, said.id], [1, LINK_FAULTS.indexOf(said.fault)], words(said.why)];
    case "cancel":
      return [[4, said.id]];
    case "ping":
    case "pong":
      return [[4, said.nonce]];
    case "bye":
      return [[1, LINK_FAULTS.indexOf(said.fault)], words(said.why)];
    default:
      throw said satisfies never;
  }
}

/** Null: it makes no sense. Undefined: it is none of these. Views, not copies. */
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
      const [fault, why] = [LINK_FAULTS[fields[4]!], textOf(rest)];
      return fault === undefined || why === null ? null : { kind, id: u32(0), fault, why };
    }
    case "cancel":
      return { kind, id: u32(0) };
    case "ping":
    case "pong":
      return { kind, nonce: u32(0) };
    case "bye": {
      const [fault, why] = [LINK_FAULTS[fields[0]!], textOf(rest)];
      return fault === undefined || why === null ? null : { kind, fault, why };
    }
    default:
      throw kind satisfies never;
  }
}

/** For the other side to close, too. */
const LINGER_MS = 2_000;

/** Peers with slices of their own; further ones share some. */
const PEERS_MAX = 16;
/** All lines of a peer, in both directions and of all transports, share its source. */
const sources = new NamedSources(PEERS_MAX);

/** What a transport says over its lines: its own messages beside the common ones. */
export interface Codec<Own> {
  /** The whole message, its length in front. */
  encode(message: Own | CommonMessage): Uint8Array;
  /** `bytes`: what follows a message's length. Null: it makes no sense. Views, not copies. */
  decode(bytes: Uint8Array): Own | CommonMessage | null;
}

export interface ControlChannelOptions<Own> {
  readonly codec: Codec<Own>;
  readonly clock: Clock;
  /** The peer, for its slices of the event loop; empty: not known. */
  readonly worker: string;
  /** The longest message that is taken. */
  readonly messageBytesMax: number;
  /** What may wait to be written before nothing more is read. */
  readonly unreadBytesMax: number;
}

/** Who is told of what comes. */
export interface ChannelHandler<Own> {
  receive(message: Own | CommonMessage): void;
  /** Once, when nothing more comes: the other side ended it, it broke, or it said nonsense. */
  channelEnded(end: ChannelEnd): void;
}

export interface ChannelEnd {
  readonly kind: "broken" | "protocol";
  readonly why: string;
}

/**
 * A TLS connection as a line of messages. Reads nothing before `handTo`, and nothing while too much
 * waits to be written, so that nobody makes us keep what he does not take.
 */
export class ControlChannel<Own> {
  readonly #socket: TLSSocket;
  readonly #options: ControlChannelOptions<Own>;
  readonly #reader: MessageReader;
  readonly #source: TurnSource;
  #handler: ChannelHandler<Own> | null = null;
  /** Nothing more is taken. */
  #isDeaf = false;
  /** Nothing more is said. */
  #ended = false;
  #heldBack = false;
  /** What came and waits for a slice; nothing more is read meanwhile. */
  #held: Uint8Array[] = [];
  /** Wakes those who wait for room. */
  #drained: (() => void)[] = [];
  /** Monotonic: when anything came last, and since when a message is incomplete. */
  heardMs: number;
  partialSinceMs: number | null = null;
  /** Since when more waits to be written than may; null while it does not. */
  clogSinceMs: number | null = null;

  constructor(socket: TLSSocket, options: ControlChannelOptions<Own>) {
    this.#socket = socket;
    this.#options = options;
    this.#source = sources.of(options.worker);
    this.#reader = new MessageReader(options.messageBytesMax);
    this.heardMs = options.clock.monotonicMs();
    socket.on("drain", () => this.#onDrain());
    socket.on("error", (error) => this.#end("broken", error.message));
    socket.on("end", () => this.#end("broken", "the other side hung up"));
    socket.on("close", () => this.#end("broken", "the connection ended"));
  }

  /** Begins to read, or goes on for another. */
  handTo(handler: ChannelHandler<Own>): void {
    const isFirst = this.#handler === null;
    this.#handler = handler;
    if (isFirst) this.#socket.on("data", (chunk: Uint8Array) => this.#receive(chunk));
  }

  /** More waits to be written than may. */
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

  /** Resolves when there is room again, or the line has ended. */
  room(): Promise<void> {
    if (this.#ended || !this.isFull) return Promise.resolve();
    return new Promise((resolve) => this.#drained.push(resolve));
  }

  /** Says the last words, if any, and closes behind them. Nothing more is read. */
  close(last?: Own | CommonMessage): void {
    if (last !== undefined) this.send(last);
    this.#stop();
    this.#socket.end();
    this.#socket.resume();
    const linger = this.#options.clock.after(LINGER_MS, () => this.#socket.destroy());
    this.#socket.on("close", () => linger[Symbol.dispose]());
  }

  /** Ends it without a word. */
  destroy(): void {
    this.#stop();
    this.#socket.destroy();
  }

  #stop(): void {
    this.#isDeaf = true;
    this.#ended = true;
    this.#held = [];
    for (const wake of this.#drained.splice(0)) wake();
  }

  #end(kind: ChannelEnd["kind"], why: string): void {
    if (this.#isDeaf) return;
    // Whoever says nonsense may still be told so.
    if (kind === "protocol") this.#isDeaf = true;
    else this.#stop();
    this.#handler?.channelEnded({ kind, why });
  }

  #onDrain(): void {
    // It took something, so it lives.
    this.heardMs = this.#options.clock.monotonicMs();
    if (this.isFull) return;
    this.clogSinceMs = null;
    for (const wake of this.#drained.splice(0)) wake();
    if (!this.#heldBack) return;
    this.#heldBack = false;
    if (this.#held.length === 0) this.#socket.resume();
  }

  #receive(chunk: Uint8Array): void {
    if (this.#isDeaf) return;
    this.heardMs = this.#options.clock.monotonicMs();
    if (this.#held.length > 0) this.#held.push(chunk);
    else if (this.#source.begin()) this.#read(chunk);
    else this.#hold(chunk);
  }

  /** Goes on with what came in this line's next slice. */
  #hold(rest: Uint8Array): void {
    this.#held.unshift(rest);
    this.#socket.pause();
    void this.#source.turn().then(() => {
      while (this.#held.length > 0 && !this.#isDeaf) {
        // Behind the rest of this one, if it does not get through.
        const chunk = this.#held.shift()!;
        if (!this.#read(chunk)) return;
      }
      if (!this.#heldBack) this.#socket.resume();
    });
  }

  /** In a slice that has begun. False: the rest waits for the next one. */
  #read(chunk: Uint8Array): boolean {
    const reader = this.#reader;
    for (let at = 0; at < chunk.length && !this.#isDeaf; ) {
      at = reader.take(chunk, at);
      if (reader.fault !== null) this.#end("protocol", reader.fault);
      else if (reader.message !== null) this.#hand(reader.message);
      if (this.#source.goOn() || at === chunk.length || this.#isDeaf) continue;
      this.#hold(chunk.subarray(at));
      return false;
    }
    if (reader.within) this.partialSinceMs ??= this.heardMs;
    return true;
  }

  #hand(bytes: Uint8Array): void {
    this.partialSinceMs = null;
    const message = this.#options.codec.decode(bytes);
    if (message === null) this.#end("protocol", "it sent a message that makes no sense");
    else this.#handler?.receive(message);
  }
}
