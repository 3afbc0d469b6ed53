import type { Clock } from "../../../core/index.ts";
import type { ControlChannel } from "./control-channel.ts";

interface KeepAliveOptions {
  readonly channel: Pick<
    ControlChannel<never>,
    "send" | "heardMs" | "partialSinceMs" | "clogSinceMs"
  >;
  readonly clock: Clock;
  readonly limits: Pick<ChannelLimits, "pingMs" | "silentMs">;
  /** The asker asks, the other side answers; both notice silence. */
  readonly asks: boolean;
  onRtt(ms: number): void;
  onDead(why: string): void;
}

/**
 * Notices an end that does nothing any more: that is silent, that stops within a message, or that
 * does not take what is written to it.
 */
export class KeepAlive implements Disposable {
  readonly #options: KeepAliveOptions;
  readonly #timer: Disposable;
  #nonce = 0;
  /** Null: nothing is asked. */
  #askedMs: number | null = null;

  constructor(options: KeepAliveOptions) {
    this.#options = options;
    this.#timer = options.clock.every(options.limits.pingMs, () => this.#look());
  }

  answered(nonce: number): void {
    if (this.#askedMs === null || nonce !== this.#nonce) return;
    this.#options.onRtt(this.#options.clock.monotonicMs() - this.#askedMs);
    this.#askedMs = null;
  }

  #look(): void {
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
    // While it does not take what is sent nothing is read of it either.
    if (channel.clogSinceMs !== null) {
      return channel.clogSinceMs < oldest ? "it does not take what is sent" : null;
    }
    if ((channel.partialSinceMs ?? oldest) < oldest) return "a message did not end";
    return channel.heardMs < oldest ? "nothing was heard of it" : null;
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
  }
}

const KIB = 2 ** 10;
const MIB = 2 ** 20;

/** What bounds a transport whose requests go over TLS. Times in milliseconds, lengths in bytes. */
export interface ChannelLimits {
  /** Links of others to us: in all, and of one worker. */
  readonly linksMax: number;
  readonly workerLinksMax: number;
  /** Connections that have not shown a certificate yet, and for how long each may not. */
  readonly handshakesMax: number;
  readonly handshakeMs: number;
  /** From the certificate until payload can come. */
  readonly setUpMs: number;
  /** Requests under way that are answered here: of one link, and in all. */
  readonly connectionRequestsMax: number;
  readonly requestsMax: number;
  /** Requests of ours that wait for their turn on one link. */
  readonly waitingMax: number;
  /** What may wait to be written to one link before nothing more is read from it. */
  readonly unreadBytesMax: number;
  /** Blocks of one pull that are lent at a time, and their bytes (one block may be longer). */
  readonly lentMax: number;
  readonly lentBytesMax: number;
  /** The longest that a request is worked on here, whatever the asker says. */
  readonly requestMs: number;
  /** How often the asker shows that it lives, and after how much silence a link is given up. */
  readonly pingMs: number;
  readonly silentMs: number;
  /** How often it is looked whether the certificate of a link has ended. */
  readonly judgeMs: number;
  /** How often bytes on their way are counted, and after how long without any a pull is over. */
  readonly progressMs: number;
  readonly stallMs: number;
  /** For those who are told to come again. */
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
  judgeMs: 5_000,
  progressMs: 200,
  stallMs: 5_000,
  retryAfterMs: 100,
};
