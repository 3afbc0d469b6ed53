import type { Clock } from "../../../core/index.ts";
import type { LinkFault } from "../../transport.ts";

const KIB = 2 ** 10;
const MIB = 2 ** 20;

/** What bounds a QUIC transport. Times in milliseconds, lengths in bytes. */
export interface QuicLimits {
  /** Links of others to us: in all, of one worker, and from one address. */
  readonly linksMax: number;
  readonly workerLinksMax: number;
  readonly addressLinksMax: number;
  readonly handshakeMs: number;
  /** Requests under way that are answered here: of one link, and in all. */
  readonly connectionRequestsMax: number;
  readonly requestsMax: number;
  /** The longest that a request is worked on here, whatever the asker says. */
  readonly requestMs: number;
  /** Without a byte for so long, a request is over. */
  readonly stallMs: number;
  /** How often a link shows that it lives, and after how much silence it is given up. */
  readonly keepAliveMs: number;
  readonly silentMs: number;
  /** How often it is looked whether the certificate of a link has ended. */
  readonly judgeMs: number;
  /** A link of ours on which nothing was asked for so long is closed. */
  readonly idleMs: number;
  /** For so long after the last word of a peer, a link to it may begin with a pull. */
  readonly ticketMs: number;
  /** How long links of others may go on with old certificates after new ones were read. */
  readonly reloadMs: number;
  /** How long a link or a listener may take to close before it is torn down. */
  readonly closeMs: number;
  /** What is written at once: more than this makes the runtime slow. */
  readonly pieceBytes: number;
  /** What may wait in the runtime to be sent on one stream. */
  readonly waitingBytes: number;
  /** Of UDP sockets, as far as the kernel lets. */
  readonly socketBytes: number;
  /** Memory of finished streams that the runtime has not taken back: then it is made to. */
  readonly litterBytes: number;
  /** For those who are told to come again. */
  readonly retryAfterMs: number;
}

export const QUIC_LIMITS: QuicLimits = {
  linksMax: 256,
  workerLinksMax: 8,
  addressLinksMax: 64,
  handshakeMs: 5_000,
  connectionRequestsMax: 64,
  requestsMax: 1_024,
  requestMs: 120_000,
  stallMs: 5_000,
  keepAliveMs: 2_000,
  silentMs: 6_000,
  judgeMs: 5_000,
  idleMs: 10_000,
  ticketMs: 30_000,
  reloadMs: 30_000,
  closeMs: 1_000,
  pieceBytes: 64 * KIB,
  waitingBytes: 64 * KIB,
  socketBytes: 4 * MIB,
  litterBytes: 16 * MIB,
  retryAfterMs: 100,
};

/** Application error codes of `hearth-kv/1`: why a stream is reset or a connection closed. */
export const Code = {
  /** Nothing is wrong. */
  none: 0,
  /** What the runtime itself says for streams of a ticket that it did not take. */
  internal: 1,
  /** The certificate is not accepted. */
  refused: 0x10,
  /** There are too many. */
  full: 0x11,
  /** What was said makes no sense. */
  protocol: 0x12,
  /** The other side went on and said nothing, or did not take what was sent. */
  stalled: 0x13,
  /** The request could not be answered. */
  failed: 0x14,
  /** Nobody wants the answer any more. */
  cancelled: 0x15,
  /** This side stops, or has new certificates. */
  leaving: 0x16,
} as const;

const FAULTS: Readonly<Record<number, LinkFault>> = {
  [Code.refused]: { kind: "refused", why: "the other side does not accept our certificate" },
  [Code.full]: { kind: "refused", why: "the other side takes no more links" },
  [Code.protocol]: { kind: "protocol", why: "the other side made no sense of it" },
  [Code.stalled]: { kind: "stalled", why: "the other side gave it up" },
  [Code.failed]: { kind: "broken", why: "the other side could not answer" },
  [Code.leaving]: { kind: "broken", why: "the other side closed the link" },
};

/** QUIC's own codes for what TLS refuses: 0x100 and the alert. */
const TLS_ALERT = 0x100;
const CONNECTION_REFUSED = 2;

/** TLS alerts that say something of certificates (RFC 8446, section 6.2), in words. */
const ALERTS: Readonly<Record<number, string>> = {
  42: "a certificate is damaged",
  43: "a certificate is for another use",
  44: "a certificate is revoked",
  45: "a certificate is not in date",
  46: "a certificate is not as it should be",
  48: "no authority that is known signed a certificate",
  51: "a signature is wrong",
  112: "a certificate has another DNS name",
  116: "a certificate is missing",
  120: "the other side speaks another protocol",
};

const HANDSHAKE_TIMED_OUT = /handshake timed out/;

interface QuicErrorLike {
  readonly errorCode?: bigint;
  readonly type?: string;
  readonly message?: string;
}

/** What a connection's end means; `thrown` undefined: it ended without a word. */
export function faultOf(thrown: unknown): LinkFault {
  if (thrown === undefined) return { kind: "broken", why: "the connection ended" };
  const { errorCode, type, message } = thrown as QuicErrorLike;
  const code = Number(errorCode ?? -1);
  const why = message ?? "the connection failed";
  // The runtime ends a handshake that nobody answers as if TLS had refused it.
  if (HANDSHAKE_TIMED_OUT.test(why)) return { kind: "unreachable", why: "it does not answer" };
  if (type === "application") return FAULTS[code] ?? { kind: "broken", why };
  if (code >= TLS_ALERT && code < 2 * TLS_ALERT) {
    const words = ALERTS[code - TLS_ALERT];
    return { kind: "refused", why: words === undefined ? why : `${words}: ${why}` };
  }
  if (code === CONNECTION_REFUSED) {
    return { kind: "refused", why: "the other side takes no more links" };
  }
  return { kind: "broken", why };
}

const RESET = /error code (\d+)/;

/** The code of a stream's reset, from what its read loop throws; null: it was none. */
export function resetCodeOf(thrown: unknown): number | null {
  const { code, message } = thrown as { readonly code?: string; readonly message?: string };
  if (code !== "ERR_QUIC_STREAM_RESET") return null;
  return Number(RESET.exec(message ?? "")?.[1] ?? Code.internal);
}

/** What the reset of a stream means. */
export function resetFault(code: number): LinkFault {
  return FAULTS[code] ?? { kind: "broken", why: `the other side ended it (${code})` };
}

/**
 * A caller's signal and deadline, for one who waits at a time. It has no signal of its own: in this
 * runtime those cost more than all else that a small request needs.
 */
export class Limit implements Disposable {
  /** Called once when it is over, if it is not yet. */
  onOver: (() => void) | null = null;
  /** Why it is over; null: it is not. */
  fault: LinkFault | null = null;
  readonly #signal: AbortSignal | undefined;
  readonly #clock: Clock;
  readonly #endMs: number;
  readonly #timer: Disposable;
  readonly #onAbort = () => this.#end({ kind: "aborted", why: "the request was given up" });

  constructor(clock: Clock, deadlineMs: number, signal: AbortSignal | undefined) {
    this.#clock = clock;
    this.#endMs = clock.monotonicMs() + deadlineMs;
    this.#signal = signal;
    this.#timer = clock.after(deadlineMs, () => {
      this.#end({ kind: "stalled", why: "the deadline passed" });
    });
    signal?.addEventListener("abort", this.#onAbort, { once: true });
    if (signal?.aborted) this.#onAbort();
  }

  get leftMs(): number {
    return Math.max(0, this.#endMs - this.#clock.monotonicMs());
  }

  #end(fault: LinkFault): void {
    if (this.fault !== null) return;
    this.fault = fault;
    this.onOver?.();
  }

  [Symbol.dispose](): void {
    this.#timer[Symbol.dispose]();
    this.#signal?.removeEventListener("abort", this.#onAbort);
  }
}
