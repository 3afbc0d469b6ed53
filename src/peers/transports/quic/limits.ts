import type { ConnectionFault } from "../../transport.ts";

const KIB = 2 ** 10;
const MIB = 2 ** 20;

/** Limits of a QUIC transport. Times in milliseconds, sizes in bytes. */
export interface QuicLimits {
  /** Maximum inbound connections: in all, per worker, and per address. */
  readonly linksMax: number;
  readonly workerLinksMax: number;
  readonly addressLinksMax: number;
  readonly handshakeMs: number;
  /** Maximum concurrent requests served: per connection, and in all. */
  readonly connectionRequestsMax: number;
  readonly requestsMax: number;
  /** Maximum time to serve a request, whatever the client's deadline. */
  readonly requestMs: number;
  /** Time without data after which a request ends. */
  readonly stallMs: number;
  /** Interval of keep-alives, and the silence after which a connection ends. */
  readonly keepAliveMs: number;
  readonly silentMs: number;
  /** Interval of the check for expired certificates. */
  readonly expiryCheckMs: number;
  /** Idle time after which an outbound connection is closed. */
  readonly idleMs: number;
  /** Lifetime of a session ticket after the peer's last answer. */
  readonly ticketMs: number;
  /** Maximum time that inbound connections continue with old certificates after a reload. */
  readonly reloadMs: number;
  /** Timeout of an orderly close, for a connection or a listener. */
  readonly closeMs: number;
  /** Maximum bytes per write: larger writes slow the runtime down. */
  readonly pieceBytes: number;
  /** Maximum bytes queued in the runtime for one stream. */
  readonly waitingBytes: number;
  /** Buffer size of UDP sockets, as far as the kernel allows. */
  readonly socketBytes: number;
  /** Memory of finished streams above which a garbage collection is forced. */
  readonly litterBytes: number;
  /** Retry time sent with busy answers. */
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
  expiryCheckMs: 5_000,
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

/** Application error codes of `hearth-kv/1` for stream resets and closed connections. */
export const Code = {
  /** No error. */
  none: 0,
  /** Sent by the runtime for streams of a session ticket that it refused. */
  internal: 1,
  /** The certificate is not accepted. */
  refused: 0x10,
  /** A connection limit is reached. */
  full: 0x11,
  /** Invalid message. */
  protocol: 0x12,
  /** The peer sent no data, or did not read, for too long. */
  stalled: 0x13,
  /** The request could not be answered. */
  failed: 0x14,
  /** The client cancelled the request. */
  cancelled: 0x15,
  /** This side is shutting down, or has new certificates. */
  leaving: 0x16,
} as const;

const FAULTS: Readonly<Record<number, ConnectionFault>> = {
  [Code.refused]: { kind: "refused", why: "the peer does not accept our certificate" },
  [Code.full]: { kind: "refused", why: "the peer's connection limit is reached" },
  [Code.protocol]: { kind: "protocol", why: "the peer received an invalid message" },
  [Code.stalled]: { kind: "stalled", why: "the peer cancelled it" },
  [Code.failed]: { kind: "broken", why: "the peer could not answer" },
  [Code.leaving]: { kind: "broken", why: "the peer closed the connection" },
};

/** QUIC error codes for TLS alerts: 0x100 plus the alert. */
const TLS_ALERT = 0x100;
const CONNECTION_REFUSED = 2;

/** Messages for TLS alerts about certificates (RFC 8446, section 6.2). */
const ALERTS: Readonly<Record<number, string>> = {
  42: "a certificate is damaged",
  43: "a certificate is for another use",
  44: "a certificate is revoked",
  45: "a certificate is not in date",
  46: "a certificate is invalid",
  48: "no known authority signed a certificate",
  51: "a signature is wrong",
  112: "a certificate has another DNS name",
  116: "a certificate is missing",
  120: "the peer supports another protocol",
};

const HANDSHAKE_TIMED_OUT = /handshake timed out/;

interface QuicErrorLike {
  readonly errorCode?: bigint;
  readonly type?: string;
  readonly message?: string;
}

/** The fault that a connection's end means; `thrown` undefined: it ended without an error. */
export function faultOf(thrown: unknown): ConnectionFault {
  if (thrown === undefined) return { kind: "broken", why: "the connection ended" };
  const { errorCode, type, message } = thrown as QuicErrorLike;
  const code = Number(errorCode ?? -1);
  const why = message ?? "the connection failed";
  // The runtime reports a handshake timeout like a TLS failure.
  if (HANDSHAKE_TIMED_OUT.test(why)) return { kind: "unreachable", why: "handshake timed out" };
  if (type === "application") return FAULTS[code] ?? { kind: "broken", why };
  if (code >= TLS_ALERT && code < 2 * TLS_ALERT) {
    const message = ALERTS[code - TLS_ALERT];
    return { kind: "refused", why: message === undefined ? why : `${message}: ${why}` };
  }
  if (code === CONNECTION_REFUSED) {
    return { kind: "refused", why: "the peer's connection limit is reached" };
  }
  return { kind: "broken", why };
}

const RESET = /error code (\d+)/;

/** The code of a stream reset, from the error of its read loop; null: not a reset. */
export function resetCodeOf(thrown: unknown): number | null {
  const { code, message } = thrown as { readonly code?: string; readonly message?: string };
  if (code !== "ERR_QUIC_STREAM_RESET") return null;
  return Number(RESET.exec(message ?? "")?.[1] ?? Code.internal);
}

/** The fault that a stream reset means. */
export function resetFault(code: number): ConnectionFault {
  return FAULTS[code] ?? { kind: "broken", why: `the peer reset the stream (${code})` };
}
