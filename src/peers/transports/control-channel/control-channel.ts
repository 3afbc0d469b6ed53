import type { TLSSocket } from "node:tls";
import { type Clock, NamedSources, type TurnSource } from "../../../core/index.ts";
import { MessageReader } from "../../wire/index.ts";
import type { Codec, CommonMessage } from "./codec.ts";

/** Time for the peer to close after the last message. */
const LINGER_MS = 2_000;

/** Peers with their own share of the event loop; further peers share one. */
const PEERS_MAX = 16;
/** All channels of a peer, in both directions and of all transports, use one share. */
const sources = new NamedSources(PEERS_MAX);

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
  /** Why the input ended behind the deferred chunks, which may hold the peer's last message. */
  #endWhy: string | null = null;
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
    socket.on("end", () => this.#inputEnded("the peer closed the connection"));
    socket.on("close", () => this.#inputEnded("the connection ended"));
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

  #inputEnded(why: string): void {
    if (this.#deferred.length === 0) this.#end("broken", why);
    else this.#endWhy ??= why;
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
      if (this.#endWhy !== null) this.#end("broken", this.#endWhy);
      else if (!this.#heldBack) this.#socket.resume();
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
