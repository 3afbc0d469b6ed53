import type { Clock } from "../../../core/index.ts";
import type { ControlChannel } from "./control-channel.ts";

interface KeepAliveOptions {
  readonly channel: Pick<
    ControlChannel<never>,
    "send" | "heardMs" | "partialSinceMs" | "clogSinceMs"
  >;
  readonly clock: Clock;
  readonly limits: Pick<ChannelLimits, "pingMs" | "silentMs">;
  /**
   * True on the client, which sends pings. The server only replies to them. Both detect a silent
   * peer.
   */
  readonly asks: boolean;
  onRtt(ms: number): void;
  onDead(why: string): void;
}

/** Detects a dead peer: one that sends nothing, stops within a message, or does not read. */
export class KeepAlive implements Disposable {
  readonly #options: KeepAliveOptions;
  readonly #timer: Disposable;
  #nonce = 0;
  /** Monotonic milliseconds at which the current ping was sent. Null if no reply is outstanding. */
  #askedMs: number | null = null;

  constructor(options: KeepAliveOptions) {
    this.#options = options;
    this.#timer = options.clock.every(options.limits.pingMs, () => this.#check());
  }

  answered(nonce: number): void {
    if (this.#askedMs === null || nonce !== this.#nonce) return;
    this.#options.onRtt(this.#options.clock.monotonicMs() - this.#askedMs);
    this.#askedMs = null;
  }

  #check(): void {
    const { channel, clock, asks, onDead } = this.#options;
    const why = this.#whyDead();
    if (why !== null) onDead(why);
    if (why !== null || !asks || this.#askedMs !== null) return;
    this.#askedMs = clock.monotonicMs();
    this.#nonce = (this.#nonce + 1) % 2 ** 32;
    channel.send({ kind: "ping", nonce: this.#nonce });
  }

  #whyDead(): string | null {
    const { channel, clock, limits } = this.#options;
    const oldest = clock.monotonicMs() - limits.silentMs;
    // While output is blocked, this side does not read either, so the lack of input proves nothing.
    if (channel.clogSinceMs !== null) {
      return channel.clogSinceMs < oldest ? "the peer does not read" : null;
    }
    if ((channel.partialSinceMs ?? oldest) < oldest) return "incomplete message";
    return channel.heardMs < oldest ? "no data from the peer" : null;
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
  }
}

const KIB = 2 ** 10;
const MIB = 2 ** 20;

/** Limits of a transport with a TLS control channel. Times in milliseconds, sizes in bytes. */
export interface ChannelLimits {
  /** Maximum open connections from peers: in total, and from one worker. */
  readonly linksMax: number;
  readonly workerLinksMax: number;
  /** Maximum connections whose TLS handshake is not complete, and the timeout of a handshake. */
  readonly handshakesMax: number;
  readonly handshakeMs: number;
  /** Timeout from the completed handshake until payload can be sent. */
  readonly setUpMs: number;
  /** Maximum concurrent requests served: per connection, and in total. */
  readonly connectionRequestsMax: number;
  readonly requestsMax: number;
  /** Maximum requests of this host that wait for a slot on one connection. */
  readonly waitingMax: number;
  /** If more bytes of output than this wait on a connection, nothing more is read from it. */
  readonly unreadBytesMax: number;
  /**
   * Maximum blocks of one pull being sent, and their total bytes (a single block may be larger).
   */
  readonly lentMax: number;
  readonly lentBytesMax: number;
  /** Maximum time to serve a request, even if the client's deadline is later. */
  readonly requestMs: number;
  /**
   * Interval of the client's pings, and the time without data after which a connection is closed.
   */
  readonly pingMs: number;
  readonly silentMs: number;
  /** Interval at which connections are checked for expired certificates. */
  readonly expiryCheckMs: number;
  /**
   * Interval at which received bytes are reported, and the time without data after which a pull is
   * cancelled.
   */
  readonly progressMs: number;
  readonly stallMs: number;
  /** Time after which clients shall try again, sent in `busy` replies. */
  readonly retryAfterMs: number;
}

export const CHANNEL_LIMITS: ChannelLimits = {
  linksMax: 640,
  workerLinksMax: 8,
  handshakesMax: 64,
  handshakeMs: 5_000,
  setUpMs: 5_000,
  connectionRequestsMax: 64,
  requestsMax: 1_024,
  waitingMax: 4_096,
  unreadBytesMax: 512 * KIB,
  lentMax: 8,
  lentBytesMax: 64 * MIB,
  requestMs: 120_000,
  pingMs: 2_000,
  silentMs: 10_000,
  expiryCheckMs: 5_000,
  progressMs: 200,
  stallMs: 5_000,
  retryAfterMs: 100,
};
