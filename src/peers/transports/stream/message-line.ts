import type { TLSSocket } from "node:tls";
import type { Clock } from "../../../core/index.ts";
import { MessageReader } from "../../wire/index.ts";
import { type ControlMessage, decodeControl, encodeControl } from "./control/index.ts";

/** For the other side to close, too. */
const LINGER_MS = 2_000;

export interface MessageLineOptions {
  readonly clock: Clock;
  /** The longest message that is taken. */
  readonly messageBytesMax: number;
  /** What may wait to be written before nothing more is read. */
  readonly unreadBytesMax: number;
}

/** Who is told of what comes. */
export interface LineHandler {
  receive(message: ControlMessage): void;
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
export class MessageLine {
  readonly #socket: TLSSocket;
  readonly #options: MessageLineOptions;
  readonly #reader: MessageReader;
  #handler: LineHandler | null = null;
  /** Nothing more is taken. */
  #isDeaf = false;
  /** Nothing more is said. */
  #ended = false;
  #heldBack = false;
  /** Wakes those who wait for room. */
  #drained: (() => void)[] = [];
  /** Monotonic: when anything came last, and since when a message is incomplete. */
  heardMs: number;
  partialSinceMs: number | null = null;
  /** Since when more waits to be written than may; null while it does not. */
  clogSinceMs: number | null = null;

  constructor(socket: TLSSocket, options: MessageLineOptions) {
    this.#socket = socket;
    this.#options = options;
    this.#reader = new MessageReader(options.messageBytesMax);
    this.heardMs = options.clock.monotonicMs();
    socket.on("drain", () => this.#onDrain());
    socket.on("error", (error) => this.#end("broken", error.message));
    socket.on("end", () => this.#end("broken", "the other side hung up"));
    socket.on("close", () => this.#end("broken", "the connection ended"));
  }

  /** Begins to read, or goes on for another. */
  handTo(handler: LineHandler): void {
    const isFirst = this.#handler === null;
    this.#handler = handler;
    if (isFirst) this.#socket.on("data", (chunk: Uint8Array) => this.#receive(chunk));
  }

  /** More waits to be written than may. */
  get isFull(): boolean {
    return this.#socket.writableLength > this.#options.unreadBytesMax;
  }

  send(message: ControlMessage): void {
    if (this.#ended) return;
    this.#socket.write(encodeControl(message));
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
  close(last?: ControlMessage): void {
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
    this.#socket.resume();
  }

  #receive(chunk: Uint8Array): void {
    if (this.#isDeaf) return;
    this.heardMs = this.#options.clock.monotonicMs();
    const reader = this.#reader;
    for (let at = 0; at < chunk.length && !this.#isDeaf; ) {
      at = reader.take(chunk, at);
      if (reader.fault !== null) this.#end("protocol", reader.fault);
      else if (reader.message !== null) this.#hand(reader.message);
    }
    if (reader.within) this.partialSinceMs ??= this.heardMs;
  }

  #hand(bytes: Uint8Array): void {
    this.partialSinceMs = null;
    const message = decodeControl(bytes);
    if (message === null) this.#end("protocol", "it sent a message that makes no sense");
    else this.#handler?.receive(message);
  }
}
