import type { TLSSocket } from "node:tls";
import { type Clock, NamedSources, type TurnSource } from "../../../core/index.ts";
import { MessageReader } from "../../wire/index.ts";
import type { CommonMessage } from "./common-messages.ts";

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

export interface MessageLineOptions<Own> {
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
export interface LineHandler<Own> {
  receive(message: Own | CommonMessage): void;
  /** Once, when nothing more comes: the other side ended it, it broke, or it said nonsense. */
  lineEnded(end: LineEnd): void;
}

export interface LineEnd {
  readonly kind: "broken" | "protocol";
  readonly why: string;
}

/**
 * A TLS connection as a line of messages. Reads nothing before `handTo`, and nothing while too much
 * waits to be written, so that nobody makes us keep what he does not take.
 */
export class MessageLine<Own> {
  readonly #socket: TLSSocket;
  readonly #options: MessageLineOptions<Own>;
  readonly #reader: MessageReader;
  readonly #source: TurnSource;
  #handler: LineHandler<Own> | null = null;
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

  constructor(socket: TLSSocket, options: MessageLineOptions<Own>) {
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
  handTo(handler: LineHandler<Own>): void {
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

  #end(kind: LineEnd["kind"], why: string): void {
    if (this.#isDeaf) return;
    // Whoever says nonsense may still be told so.
    if (kind === "protocol") this.#isDeaf = true;
    else this.#stop();
    this.#handler?.lineEnded({ kind, why });
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
