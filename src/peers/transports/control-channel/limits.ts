import type { Clock } from "../../../core/index.ts";
import type { ControlChannel } from "./control-channel.ts";

interface KeepAliveOptions {
  readonly channel: Pick<
    ControlChannel<never>,
    "send" | "heardMs" | "partialSinceMs" | "clogSinceMs"
  >;
  readonly clock: Clock;
  readonly limits: Pick<ChannelLimits, "pingMs" | "silentMs">;
  /** The client sends pings, the server answers; both detect silence. */
  readonly asks: boolean;
  onRtt(ms: number): void;
  onDead(why: string): void;
}

/** Detects a dead peer: one that is silent, stops within a message, or does not read. */
export class KeepAlive implements Disposable {
  readonly #options: KeepAliveOptions;
  readonly #timer: Disposable;
  #nonce = 0;
  /** Null: no ping is outstanding. */
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
    // While the peer does not read, this side does not read either, so silence proves nothing.
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
  /** Maximum inbound connections: in all, and per worker. */
  readonly linksMax: number;
  readonly workerLinksMax: number;
  /** Maximum unauthenticated connections, and the handshake timeout of each. */
  readonly handshakesMax: number;
  readonly handshakeMs: number;
  /** Timeout from the certificate until payload can be sent. */
  readonly setUpMs: number;
  /** Maximum concurrent requests served: per connection, and in all. */
  readonly connectionRequestsMax: number;
  readonly requestsMax: number;
  /** Maximum own requests waiting on one connection. */
  readonly waitingMax: number;
  /** Output waiting on one connection above which nothing more is read from it. */
  readonly unreadBytesMax: number;
  /** Maximum slot references per pull, and their bytes (a single block may be larger). */
  readonly lentMax: number;
  readonly lentBytesMax: number;
  /** Maximum time to serve a request, whatever the client's deadline. */
  readonly requestMs: number;
  /** Interval of the client's pings, and the silence after which a connection ends. */
  readonly pingMs: number;
  readonly silentMs: number;
  /** Interval of the check for expired certificates. */
  readonly expiryCheckMs: number;
  /** Interval of progress reports, and the time without data after which a pull ends. */
  readonly progressMs: number;
  readonly stallMs: number;
  /** Retry time sent with busy answers. */
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
