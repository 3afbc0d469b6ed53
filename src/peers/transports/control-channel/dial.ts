import type { TLSSocket } from "node:tls";
import type { Clock } from "../../../core/index.ts";
import type { ConnectionFault, ConnectionFaultKind, DialTarget } from "../../transport.ts";
import type { PeerIdentity, Trust } from "../../trust.ts";
import { ANSWER_BYTES_MAX } from "../../wire/index.ts";
import type { Codec, CommonMessage, OwnMessage } from "./codec.ts";
import { type ChannelEnd, type ChannelHandler, ControlChannel } from "./control-channel.ts";
import type { ChannelLimits } from "./limits.ts";
import { connectTls, identify, plainAddress } from "./tls.ts";

/**
 * Kinds of faults that a peer may report. The others, such as a cancelled call, can only occur on
 * this host.
 */
const THEIRS: ReadonlySet<ConnectionFaultKind> = new Set([
  "refused",
  "protocol",
  "stalled",
  "broken",
]);

/** Converts a fault that the peer reported. Kinds that a peer cannot report become `broken`. */
export function theirFault(kind: ConnectionFaultKind, why: string): ConnectionFault {
  return { kind: THEIRS.has(kind) ? kind : "broken", why: `peer reported: ${why}` };
}

export interface ChannelDialOptions<Own> {
  readonly trust: Trust;
  /** ALPN protocol name in the TLS handshake. */
  readonly protocol: string;
  readonly codec: Codec<Own>;
  readonly clock: Clock;
  readonly limits: Pick<ChannelLimits, "unreadBytesMax">;
}

export type Step<T> =
  | { readonly ok: true; readonly value: T }
  | { readonly ok: false; readonly fault: ConnectionFault };

/** A control channel to the dialled worker, whose certificate was accepted. */
export interface DialledChannel<Own extends OwnMessage> {
  readonly dialling: Dialling<Own>;
  readonly identity: PeerIdentity;
  /** Certificate of the peer in DER. */
  readonly der: Uint8Array;
}

/** Maximum bytes that a control message adds to the reply that it contains. */
const AROUND_BYTES = 64;

/** Connects to a worker and verifies its certificate. */
export async function dialChannel<Own extends OwnMessage>(
  target: DialTarget,
  options: ChannelDialOptions<Own>,
  signal: AbortSignal,
): Promise<Step<DialledChannel<Own>>> {
  const { host, port } = target;
  const { trust, protocol } = options;
  const connected = await connectTls({ host, port }, trust.credentials, protocol, signal);
  if (!connected.ok) return connected;
  const { socket } = connected;
  const authorized = identify(socket, trust, protocol, target.worker);
  if (!authorized.ok) {
    socket.on("error", () => {});
    socket.destroy();
    return { ok: false, fault: { kind: "refused", why: authorized.why } };
  }
  const dialling = new Dialling(socket, target.worker, options, signal);
  return { ok: true, value: { ...authorized, dialling } };
}

/** A control channel to a dialled worker, until the connection is set up. */
export class Dialling<Own extends OwnMessage> implements ChannelHandler<Own> {
  /** IP address of the peer. */
  readonly address: string;
  readonly channel: ControlChannel<Own>;
  /** Round trip of the hello and its reply in milliseconds. 0 before the reply. */
  rttMs = 0;
  readonly #signal: AbortSignal;
  readonly #clock: Clock;
  /** Receives the next message while `greet` waits for the hello. Null otherwise. */
  #onMessage: ((message: Own | CommonMessage) => void) | null = null;
  #fault: ConnectionFault | null = null;
  #onFault: ((fault: ConnectionFault) => void) | null = null;
  readonly #onAbort = () => this.#fail("aborted", "the dial was cancelled");

  constructor(
    socket: TLSSocket,
    worker: string,
    options: ChannelDialOptions<Own>,
    signal: AbortSignal,
  ) {
    this.#signal = signal;
    this.address = plainAddress(socket.remoteAddress ?? "");
    const { clock, codec, limits } = options;
    this.#clock = clock;
    this.channel = new ControlChannel(socket, {
      clock,
      codec,
      worker,
      messageBytesMax: ANSWER_BYTES_MAX + AROUND_BYTES,
      unreadBytesMax: limits.unreadBytesMax,
    });
    this.channel.handTo(this);
    signal.addEventListener("abort", this.#onAbort, { once: true });
    if (signal.aborted) this.#onAbort();
  }

  /** Reason why the dial has failed. Null if it has not. */
  get fault(): ConnectionFault | null {
    return this.#fault;
  }

  receive(message: Own | CommonMessage): void {
    if (message.kind === "bye") {
      const { fault, why } = message as Extract<CommonMessage, { kind: "bye" }>;
      const theirs = theirFault(fault, why);
      this.#fail(theirs.kind, theirs.why);
    } else if (this.#onMessage !== null) this.#onMessage(message);
    else this.#fail("protocol", "unexpected message before the hello");
  }

  channelEnded(end: ChannelEnd): void {
    // If the peer does not accept this host's certificate, it ends the connection after this host
    // has completed the TLS handshake.
    this.#fail(end.kind === "broken" ? "refused" : end.kind, end.why);
  }

  /**
   * Sends a hello and waits for the reply. `read` returns the reply's fields, or the reason if it
   * is invalid.
   */
  greet<T extends object>(
    hello: Own,
    read: (message: Own | CommonMessage) => T | string,
  ): Promise<Step<T>> {
    return this.#step((done) => {
      const startMs = this.#clock.monotonicMs();
      this.#onMessage = (message) => {
        this.#onMessage = null;
        this.rttMs = this.#clock.monotonicMs() - startMs;
        const value = read(message);
        if (typeof value === "string") this.#fail("protocol", value);
        else done(value);
      };
      this.channel.send(hello);
    });
  }

  /**
   * Waits for a local resource. If the dial fails meanwhile, the resource is closed. `why`: reason
   * to report if the resource cannot be opened.
   */
  wait<T extends AsyncDisposable>(
    coming: Promise<T>,
    why: (thrown: unknown) => string,
  ): Promise<Step<T>> {
    return this.#step((done) => {
      coming.then(
        (value) => {
          if (this.#fault === null) done(value);
          else void value[Symbol.asyncDispose]();
        },
        (thrown) => this.#fail("unreachable", why(thrown)),
      );
    });
  }

  /** Completes the set-up: messages now go to the connection. */
  handTo(connection: ChannelHandler<Own>): void {
    this.#signal.removeEventListener("abort", this.#onAbort);
    this.channel.handTo(connection);
  }

  giveUp(fault: ConnectionFault): { readonly ok: false; readonly fault: ConnectionFault } {
    this.#signal.removeEventListener("abort", this.#onAbort);
    this.channel.destroy();
    return { ok: false, fault };
  }

  #step<T>(begin: (done: (value: T) => void) => void): Promise<Step<T>> {
    return new Promise((resolve) => {
      if (this.#fault !== null) return resolve({ ok: false, fault: this.#fault });
      this.#onFault = (fault) => resolve({ ok: false, fault });
      begin((value) => resolve({ ok: true, value }));
    });
  }

  #fail(kind: ConnectionFaultKind, why: string): void {
    if (this.#fault !== null) return;
    this.#fault = { kind, why };
    this.#onFault?.(this.#fault);
  }
}
