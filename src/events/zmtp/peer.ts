import { type Clock, loopTurns, type TurnBudget, type TurnSource } from "../../core/index.ts";
import {
  decodeCommand,
  encodeError,
  encodeGreeting,
  encodePing,
  encodePong,
  encodeReady,
  FrameReader,
  GREETING_BYTES,
  greetingFault,
  greetingVersion,
  PARTNERS,
  type ZmtpCommand,
  type ZmtpFrame,
} from "./wire.ts";
import type { ZmtpLimits, ZmtpMessage } from "./zmtp.ts";

/** Callbacks of a connection. They must not throw. */
export interface PeerEvents {
  /** Called when the handshake is complete. From then on both sides may send messages. */
  onReady(peer: Peer): void;
  onMessage(peer: Peer, message: ZmtpMessage): void;
  /**
   * Called for a subscription (`isWanted` true) or its cancellation that the peer sent as a
   * command. Those sent as messages arrive like other messages.
   */
  onTopic(peer: Peer, topic: Uint8Array, isWanted: boolean): void;
  /**
   * Called exactly once, as the last callback. `isRefused`: the peer sent something other than ZMTP
   * or too long a frame, or has an incompatible socket type.
   */
  onClosed(peer: Peer, why: string, isRefused: boolean): void;
}

interface PeerOptions {
  readonly wire: Wire;
  readonly type: keyof typeof PARTNERS;
  readonly limits: ZmtpLimits;
  readonly clock: Clock;
  readonly events: PeerEvents;
  readonly turns?: TurnBudget;
}

/** Bytes parsed per step, between which other work runs. */
const PIECE_BYTES = 8 * 1024;

/**
 * State of a connection. In `ready`, it waits for the peer's READY: in ZMTP 3.0 and 3.1 no other
 * message may come first.
 */
type Phase = "greeting" | "ready" | "open" | "closed";

/**
 * One ZMTP connection from its greeting on, dialed or accepted. States: greeting, ready (waits for
 * the peer's READY), open, closed.
 */
export class Peer {
  readonly #options: PeerOptions;
  readonly #queue: SendQueue;
  readonly #reader: FrameReader;
  readonly #greeting = new Uint8Array(GREETING_BYTES);
  #greetingLength = 0;
  #phase: Phase = "greeting";
  #timer: Disposable;
  #parts: Uint8Array[] = [];
  #partsBytes = 0;
  #heardMs: number;
  #minor = 0;
  /** True if the connection was closed because the peer sent nothing for too long. */
  isHung = false;
  readonly #source: TurnSource;
  /**
   * Received input that waits for this peer's turn or for `resume`. The socket is paused meanwhile.
   */
  #held: Uint8Array[] = [];
  #isPaused = false;
  #waitsForTurn = false;

  constructor(options: PeerOptions) {
    const { wire, limits, clock, turns = loopTurns } = options;
    this.#options = options;
    this.#source = turns.source();
    this.#queue = new SendQueue(wire, limits);
    this.#reader = new FrameReader(limits.frameBytesMax);
    this.#heardMs = clock.monotonicMs();
    const why = `no handshake within ${limits.handshakeMs} ms`;
    this.#timer = clock.after(limits.handshakeMs, () => this.#hung(why));
    this.#queue.push(encodeGreeting());
  }

  /**
   * Queues a message. Returns false if the connection is not open or the queue is full. `encoded`
   * is a whole message; several connections may share its bytes.
   */
  send(encoded: Uint8Array): boolean {
    return this.#phase === "open" && this.#queue.push(encoded);
  }

  /** Processes received input, in time slices of this peer's source. */
  receive(chunk: Uint8Array): void {
    if (this.#phase === "closed") return;
    this.#heardMs = this.#options.clock.monotonicMs();
    const mayRead = this.#held.length === 0 && !this.#isPaused && this.#source.begin();
    if (mayRead) this.#read(chunk);
    else this.#hold(chunk);
  }

  /** Stops reading until `resume`. Input that was received before may still be delivered. */
  pause(): void {
    if (this.#isPaused) return;
    this.#isPaused = true;
    this.#options.wire.pause();
  }

  resume(): void {
    if (!this.#isPaused) return;
    this.#isPaused = false;
    this.#goOn();
  }

  #read(chunk: Uint8Array): void {
    for (let at = 0; at < chunk.length && !this.#isClosed(); at += PIECE_BYTES) {
      this.#receivePiece(chunk.subarray(at, at + PIECE_BYTES));
      if (this.#source.goOn() && !this.#isPaused) continue;
      if (at + PIECE_BYTES < chunk.length) this.#hold(chunk.subarray(at + PIECE_BYTES), "first");
      return;
    }
  }

  #hold(chunk: Uint8Array, place: "first" | "last" = "last"): void {
    if (this.#isClosed()) return;
    const own = new Uint8Array(chunk);
    if (place === "first") this.#held.unshift(own);
    else this.#held.push(own);
    this.#options.wire.pause();
    this.#goOn();
  }

  /** Processes the waiting input in a turn of its own, then resumes the socket. */
  #goOn(): void {
    if (this.#isPaused || this.#waitsForTurn || this.#isClosed()) return;
    if (this.#held.length === 0) {
      this.#options.wire.resume();
      return;
    }
    this.#waitsForTurn = true;
    void this.#source.turn().then(() => {
      this.#waitsForTurn = false;
      if (this.#isPaused || this.#isClosed()) return;
      const chunk = this.#held.shift();
      if (chunk !== undefined) this.#read(chunk);
      this.#goOn();
    });
  }

  #receivePiece(chunk: Uint8Array): void {
    const rest = this.#phase === "greeting" ? this.#greet(chunk) : chunk;
    if (rest === null || this.#isClosed()) return;
    const why = this.#reader.push(rest, (frame) => this.#take(frame));
    if (why !== null) this.#refuse(why);
  }

  drained(): void {
    if (this.#phase !== "closed" && !this.#queue.drain()) this.close("connection lost");
  }

  /** Closes the connection immediately. Queued messages are lost. */
  close(why: string): void {
    this.#end(why, false);
  }

  /**
   * Returns whether the connection is closed. A direct comparison would not compile: the compiler
   * assumes that `#phase` has not changed since the last check.
   */
  #isClosed(): boolean {
    return this.#phase === "closed";
  }

  #hung(why: string): void {
    this.isHung = true;
    this.close(why);
  }

  #end(why: string, isRefused: boolean): void {
    if (this.#phase === "closed") return;
    this.#phase = "closed";
    this.#timer[Symbol.dispose]();
    this.#parts = [];
    this.#held = [];
    if (isRefused) this.#options.wire.end();
    else this.#options.wire.terminate();
    this.#options.events.onClosed(this, why, isRefused);
  }

  #refuse(why: string): void {
    if (this.#phase === "ready") this.#queue.push(encodeError(why));
    this.#end(why, true);
  }

  /**
   * Reads the peer's greeting. Returns the rest of the chunk that follows it; null if the greeting
   * is incomplete or was refused.
   */
  #greet(chunk: Uint8Array): Uint8Array | null {
    const some = chunk.subarray(0, GREETING_BYTES - this.#greetingLength);
    this.#greeting.set(some, this.#greetingLength);
    this.#greetingLength += some.length;
    const why = greetingFault(this.#greeting, this.#greetingLength);
    if (why !== null) {
      this.#refuse(why);
      return null;
    }
    if (this.#greetingLength < GREETING_BYTES) return null;
    const { major, minor } = greetingVersion(this.#greeting);
    this.#minor = major > 3 ? 1 : minor;
    this.#phase = "ready";
    this.#queue.push(encodeReady(this.#options.type));
    return chunk.subarray(some.length);
  }

  /** Handles one frame. Returns false if no more frames may be processed now. */
  #take(frame: ZmtpFrame): boolean {
    if (frame.isCommand) this.#command(decodeCommand(frame.body));
    else if (this.#phase === "open") this.#part(frame);
    else this.#refuse("message before READY");
    return !this.#isClosed();
  }

  #part({ body, hasMore }: ZmtpFrame): void {
    this.#parts.push(body);
    this.#partsBytes += body.length;
    const { framesMax, messageBytesMax } = this.#options.limits;
    const isLong = this.#partsBytes > messageBytesMax;
    if (isLong) this.#refuse(`message of more than ${messageBytesMax} bytes`);
    else if (this.#parts.length > framesMax) this.#refuse(`more than ${framesMax} frames`);
    if (hasMore || this.#isClosed()) return;
    const message = this.#parts;
    this.#parts = [];
    this.#partsBytes = 0;
    this.#options.events.onMessage(this, message);
  }

  #command(command: ZmtpCommand): void {
    switch (command.kind) {
      case "ready":
        this.#ready(command.socketType);
        return;
      case "error":
        this.close(`the peer sent an error: ${command.reason}`);
        return;
      case "ping":
        // The result is ignored: if the queue is full, the PONG is dropped, but other data already
        // shows the peer that this side is alive.
        this.#queue.push(encodePong(command.context));
        return;
      case "subscribe":
      case "cancel":
        if (this.#phase === "open") {
          this.#options.events.onTopic(this, command.topic.slice(), command.kind === "subscribe");
        }
        return;
      case "malformed":
        this.#refuse(command.why);
        return;
      case "pong":
      case "other":
        return;
      default:
        command satisfies never;
    }
  }

  #ready(socketType: string): void {
    const isPartner = PARTNERS[this.#options.type].includes(socketType);
    if (this.#phase !== "ready" || !isPartner) {
      const name = socketType.replace(/[^A-Z]/g, "?").slice(0, 16);
      this.#refuse(
        isPartner
          ? "READY twice"
          : `socket types ${name} and ${this.#options.type} are incompatible`,
      );
      return;
    }
    this.#phase = "open";
    this.#timer[Symbol.dispose]();
    this.#timer = this.#options.clock.every(this.#options.limits.pingMs, () =>
      this.#listenForLife(),
    );
    this.#options.events.onReady(this);
  }

  #listenForLife(): void {
    // While input is not read, the peer's silence cannot be measured, so the silence timeout starts
    // again.
    if (this.#isPaused || this.#waitsForTurn) this.#heardMs = this.#options.clock.monotonicMs();
    if (this.#minor < 1) return;
    const silentMs = this.#options.clock.monotonicMs() - this.#heardMs;
    if (silentMs >= this.#options.limits.silenceMs)
      this.#hung(`silent for ${Math.round(silentMs)} ms`);
    else if (silentMs >= this.#options.limits.pingMs) this.#queue.push(encodePing());
  }
}

/** The part of Bun's socket that `Peer` uses. `write` returns the number of bytes written. */
interface Wire {
  write(bytes: Uint8Array): number;
  pause(): void;
  resume(): void;
  end(): void;
  terminate(): void;
}

/** A bounded queue of whole messages, sent in order as fast as the socket accepts them. */
class SendQueue {
  readonly #wire: Wire;
  readonly #limits: ZmtpLimits;
  #waiting: Uint8Array[] = [];
  /**
   * Index of the first message that is not completely sent, and the number of its bytes already
   * sent.
   */
  #first = 0;
  #sent = 0;
  #bytes = 0;

  constructor(wire: Wire, limits: ZmtpLimits) {
    this.#wire = wire;
    this.#limits = limits;
  }

  get messages(): number {
    return this.#waiting.length - this.#first;
  }

  /**
   * Queues a message. If the queue is full, queues nothing and returns false. `bytes` is not
   * changed and may be shared between connections.
   */
  push(bytes: Uint8Array): boolean {
    const { queueBytesMax, queueMessagesMax } = this.#limits;
    const isFull = this.messages >= queueMessagesMax || this.#bytes + bytes.length > queueBytesMax;
    // An empty queue accepts one message of any length.
    if (isFull && this.messages > 0) return false;
    this.#waiting.push(bytes);
    this.#bytes += bytes.length;
    if (this.messages === 1) this.drain();
    return true;
  }

  /** Writes as much as the socket accepts. Returns false if the socket is closed. */
  drain(): boolean {
    while (this.#first < this.#waiting.length) {
      const message = this.#waiting[this.#first];
      const written = this.#wire.write(message.subarray(this.#sent));
      if (written < 0) return false;
      this.#sent += written;
      this.#bytes -= written;
      if (this.#sent < message.length) break;
      this.#sent = 0;
      this.#first++;
    }
    this.#tidy();
    return true;
  }

  #tidy(): void {
    if (this.#first === this.#waiting.length) this.#waiting = [];
    else if (this.#first < 1_024 || this.#first * 2 < this.#waiting.length) return;
    else this.#waiting.splice(0, this.#first);
    this.#first = 0;
  }
}
