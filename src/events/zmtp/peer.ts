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

/** What a socket does with one of its connections. None of these may throw. */
export interface PeerEvents {
  /** The handshake is done: messages may go both ways. */
  onReady(peer: Peer): void;
  onMessage(peer: Peer, message: ZmtpMessage): void;
  /** A subscriber's wish, as a command; others come as messages. */
  onTopic(peer: Peer, topic: Uint8Array, isWanted: boolean): void;
  /** Once, last. `isRefused`: what came is no ZMTP, too long, or of a socket of a wrong type. */
  onClosed(peer: Peer, why: string, isRefused: boolean): void;
}

/** Bytes that are cut into frames before others may have their turn. */
const PIECE_BYTES = 8 * 1024;

/** A 3.0 or 3.1 peer may not say anything else first. */
type Phase = "greeting" | "ready" | "open" | "closed";

/**
 * One connection, from its greeting on, whichever end dialled. States: greeting, ready (waits for
 * the peer's READY), open, closed.
 */
export class Peer {
  readonly #wire: Wire;
  readonly #type: keyof typeof PARTNERS;
  readonly #limits: ZmtpLimits;
  readonly #events: PeerEvents;
  readonly #clock: Clock;
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
  /** It ended for the other end's silence. */
  isHung = false;
  readonly #source: TurnSource;
  /** What was read and waits: for this peer's turn, or for `resume`. The socket is paused then. */
  #held: Uint8Array[] = [];
  #isPaused = false;
  #waitsForTurn = false;

  constructor(options: {
    readonly wire: Wire;
    readonly type: keyof typeof PARTNERS;
    readonly limits: ZmtpLimits;
    readonly clock: Clock;
    readonly events: PeerEvents;
    readonly turns?: TurnBudget;
  }) {
    const { wire, type, limits, clock, events, turns = loopTurns } = options;
    this.#source = turns.source();
    this.#wire = wire;
    this.#type = type;
    this.#limits = limits;
    this.#clock = clock;
    this.#events = events;
    this.#queue = new SendQueue(wire, limits);
    this.#reader = new FrameReader(limits.frameBytesMax);
    this.#heardMs = clock.monotonicMs();
    const why = `no handshake within ${limits.handshakeMs} ms`;
    this.#timer = clock.after(limits.handshakeMs, () => this.#hung(why));
    this.#queue.push(encodeGreeting());
  }

  get isOpen(): boolean {
    return this.#phase === "open";
  }

  /** False: not open, or the queue is full. `encoded` is a whole message, and may be shared. */
  send(encoded: Uint8Array): boolean {
    return this.#phase === "open" && this.#queue.push(encoded);
  }

  /** Takes what the socket brought, in slices of this peer's. */
  receive(chunk: Uint8Array): void {
    if (this.#phase === "closed") return;
    this.#heardMs = this.#clock.monotonicMs();
    const mayRead = this.#held.length === 0 && !this.#isPaused && this.#source.begin();
    if (mayRead) this.#read(chunk);
    else this.#hold(chunk);
  }

  /** Reads nothing until `resume`; what the socket brought already may still come. */
  pause(): void {
    if (this.#isPaused) return;
    this.#isPaused = true;
    this.#wire.pause();
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
    this.#wire.pause();
    this.#goOn();
  }

  /** Takes up what is held, in a turn of its own; with nothing held the socket is read again. */
  #goOn(): void {
    if (this.#isPaused || this.#waitsForTurn || this.#isClosed()) return;
    if (this.#held.length === 0) {
      this.#wire.resume();
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
    if (this.#phase !== "closed" && !this.#queue.drain()) this.close("the connection broke");
  }

  /** Ends it at once; what waits is lost. */
  close(why: string): void {
    this.#end(why, false);
  }

  /** Through a call, so that the compiler does not believe that nothing closed it meanwhile. */
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
    if (isRefused) this.#wire.end();
    else this.#wire.terminate();
    this.#events.onClosed(this, why, isRefused);
  }

  #refuse(why: string): void {
    if (this.#phase === "ready") this.#queue.push(encodeError(why));
    this.#end(why, true);
  }

  /** What is left of the chunk behind the greeting; null: nothing, or it was refused. */
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
    this.#queue.push(encodeReady(this.#type));
    return chunk.subarray(some.length);
  }

  /** Whether more may come. */
  #take(frame: ZmtpFrame): boolean {
    if (frame.isCommand) this.#command(decodeCommand(frame.body));
    else if (this.#phase === "open") this.#part(frame);
    else this.#refuse("a message before READY");
    return !this.#isClosed();
  }

  #part({ body, hasMore }: ZmtpFrame): void {
    this.#parts.push(body);
    this.#partsBytes += body.length;
    const { framesMax, messageBytesMax } = this.#limits;
    const isLong = this.#partsBytes > messageBytesMax;
    if (isLong) this.#refuse(`a message of more than ${messageBytesMax} bytes`);
    else if (this.#parts.length > framesMax) this.#refuse(`more than ${framesMax} frames`);
    if (hasMore || this.#isClosed()) return;
    const message = this.#parts;
    this.#parts = [];
    this.#partsBytes = 0;
    this.#events.onMessage(this, message);
  }

  #command(command: ZmtpCommand): void {
    switch (command.kind) {
      case "ready":
        this.#ready(command.socketType);
        return;
      case "error":
        this.close(`the peer refused: ${command.reason}`);
        return;
      case "ping":
        // Where the queue is full the peer hears from us anyway.
        this.#queue.push(encodePong(command.context));
        return;
      case "subscribe":
      case "cancel":
        if (this.#phase === "open") {
          this.#events.onTopic(this, command.topic.slice(), command.kind === "subscribe");
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
    const isPartner = PARTNERS[this.#type].includes(socketType);
    if (this.#phase !== "ready" || !isPartner) {
      const name = socketType.replace(/[^A-Z]/g, "?").slice(0, 16);
      this.#refuse(isPartner ? "READY twice" : `a ${name} cannot talk to a ${this.#type}`);
      return;
    }
    this.#phase = "open";
    this.#timer[Symbol.dispose]();
    this.#timer = this.#clock.every(this.#limits.pingMs, () => this.#listenForLife());
    this.#events.onReady(this);
  }

  #listenForLife(): void {
    // What is not read is not heard.
    if (this.#isPaused || this.#waitsForTurn) this.#heardMs = this.#clock.monotonicMs();
    if (this.#minor < 1) return;
    const silentMs = this.#clock.monotonicMs() - this.#heardMs;
    if (silentMs >= this.#limits.silenceMs) this.#hung(`silent for ${Math.round(silentMs)} ms`);
    else if (silentMs >= this.#limits.pingMs) this.#queue.push(encodePing());
  }
}

/** What of Bun's socket is used. `write` takes what fits and says how much that was. */
interface Wire {
  write(bytes: Uint8Array): number;
  pause(): void;
  resume(): void;
  end(): void;
  terminate(): void;
}

/** Whole messages that wait until the socket takes them, in order, bounded. */
class SendQueue {
  readonly #wire: Wire;
  readonly #limits: ZmtpLimits;
  #waiting: Uint8Array[] = [];
  /** Index of the first that is not gone, and how much of it is. */
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

  /** False: no room, and nothing of it is sent. `bytes` may be shared: it is not changed. */
  push(bytes: Uint8Array): boolean {
    const { queueBytesMax, queueMessagesMax } = this.#limits;
    const isFull = this.messages >= queueMessagesMax || this.#bytes + bytes.length > queueBytesMax;
    // One message goes into an empty queue, whatever its length.
    if (isFull && this.messages > 0) return false;
    this.#waiting.push(bytes);
    this.#bytes += bytes.length;
    if (this.messages === 1) this.drain();
    return true;
  }

  /** Writes as far as the socket takes it. False: the socket is gone. */
  drain(): boolean {
    while (this.#first < this.#waiting.length) {
      const message = this.#waiting[this.#first]!;
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
