import type { TLSSocket } from "node:tls";
import { type Clock, NamedSources, type TurnSource } from "../../../core/index.ts";
import { MessageReader } from "../../wire/index.ts";
import type { Codec, CommonMessage } from "./codec.ts";

/** Milliseconds that the peer has to close the connection after the last message. */
const LINGER_MS = 2_000;

/**
 * Number of peers that each get their own share of event-loop time. Further peers use a common
 * share.
 */
const PEERS_MAX = 16;
/**
 * Shares of event-loop time. All channels of a peer, in both directions and of all transports, use
 * the same one.
 */
const sources = new NamedSources(PEERS_MAX);

export interface ControlChannelOptions<Own> {
  readonly codec: Codec<Own>;
  readonly clock: Clock;
  /** Name of the peer, which selects its share of event-loop time. Empty if unknown. */
  readonly worker: string;
  /** Maximum size of a received message in bytes. */
  readonly messageBytesMax: number;
  /** If more bytes than this wait to be written, nothing more is read until they are written. */
  readonly unreadBytesMax: number;
}

/** Receives the messages of a control channel. */
export interface ChannelHandler<Own> {
  receive(message: Own | CommonMessage): void;
  /**
   * Called once when the channel has ended: the peer closed it, the connection broke, or a message
   * was invalid.
   */
  channelEnded(end: ChannelEnd): void;
}

export interface ChannelEnd {
  readonly kind: "broken" | "protocol";
  readonly why: string;
}

/**
 * A TLS connection that carries messages. Nothing is read before `handTo`, or while too much output
 * waits to be written, so that a peer that does not read cannot fill this host's memory.
 */
export class ControlChannel<Own> {
  readonly #socket: TLSSocket;
  readonly #options: ControlChannelOptions<Own>;
  readonly #reader: MessageReader;
  readonly #source: TurnSource;
  #handler: ChannelHandler<Own> | null = null;
  /** True if further input is ignored. */
  #inputClosed = false;
  /** True if nothing more is sent. */
  #ended = false;
  #heldBack = false;
  /**
   * Received data that waits for the peer's share of event-loop time. Nothing more is read
   * meanwhile.
   */
  #deferred: Uint8Array[] = [];
  /**
   * Reason why the connection ended while received data was still waiting. The data may contain the
   * peer's last message.
   */
  #endWhy: string | null = null;
  /** Callbacks that wake callers waiting for output space. */
  #drained: (() => void)[] = [];
  /**
   * Monotonic milliseconds at which data last arrived (`heardMs`), and since when a message is
   * incomplete (`partialSinceMs`; null if none is).
   */
  heardMs: number;
  partialSinceMs: number | null = null;
  /**
   * Monotonic milliseconds since when too much output waits to be written. Null if that is not so.
   */
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

  /** Delivers messages to this handler from now on. The first call starts reading. */
  handTo(handler: ChannelHandler<Own>): void {
    const isFirst = this.#handler === null;
    this.#handler = handler;
    if (isFirst) this.#socket.on("data", (chunk: Uint8Array) => this.#receive(chunk));
  }

  /** True if more output waits to be written than permitted. */
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

  /** Resolves when there is space for output, or when the channel has ended. */
  room(): Promise<void> {
    if (this.#ended || !this.isFull) return Promise.resolve();
    return new Promise((resolve) => this.#drained.push(resolve));
  }

  /** Sends `last`, if given, and closes the connection. Nothing more is read. */
  close(last?: Own | CommonMessage): void {
    if (last !== undefined) this.send(last);
    this.#stop();
    this.#socket.end();
    this.#socket.resume();
    const linger = this.#options.clock.after(LINGER_MS, () => this.#socket.destroy());
    this.#socket.on("close", () => linger[Symbol.dispose]());
  }

  /** Ends the connection immediately, without a message. */
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
    // Input is closed after an invalid message, but the reason can still be sent to the peer.
    if (kind === "protocol") this.#inputClosed = true;
    else this.#stop();
    this.#handler?.channelEnded({ kind, why });
  }

  #inputEnded(why: string): void {
    if (this.#deferred.length === 0) this.#end("broken", why);
    else this.#endWhy ??= why;
  }

  #onDrain(): void {
    // The peer has read output, so it is alive.
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

  /**
   * Processes `rest`, and data that arrives before then, in the peer's next share of event-loop
   * time.
   */
  #defer(rest: Uint8Array): void {
    this.#deferred.unshift(rest);
    this.#socket.pause();
    void this.#source.turn().then(() => {
      while (this.#deferred.length > 0 && !this.#inputClosed) {
        // `#read` puts the remainder back at the front if it does not finish the chunk.
        const chunk = this.#deferred.shift()!;
        if (!this.#read(chunk)) return;
      }
      if (this.#endWhy !== null) this.#end("broken", this.#endWhy);
      else if (!this.#heldBack) this.#socket.resume();
    });
  }

  /**
   * Processes received data until the peer's share of event-loop time is used up. Returns false if
   * data is left, which is then deferred.
   */
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
