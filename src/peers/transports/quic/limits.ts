import type { ConnectionFault } from "../../transport.ts";

const KIB = 2 ** 10;
const MIB = 2 ** 20;

/** Limits of a QUIC transport. Times in milliseconds, sizes in bytes. */
export interface QuicLimits {
  /** Maximum open connections from peers: in total, from one worker, and from one IP address. */
  readonly linksMax: number;
  readonly workerLinksMax: number;
  readonly addressLinksMax: number;
  readonly handshakeMs: number;
  /** Maximum concurrent requests served: per connection, and in total. */
  readonly connectionRequestsMax: number;
  readonly requestsMax: number;
  /** Maximum time to serve a request, even if the client's deadline is later. */
  readonly requestMs: number;
  /** A request is ended if no data arrives for this time. */
  readonly stallMs: number;
  /**
   * Interval of keep-alive packets, and the time without packets after which a connection is
   * closed.
   */
  readonly keepAliveMs: number;
  readonly silentMs: number;
  /** Interval at which connections are checked for expired certificates. */
  readonly expiryCheckMs: number;
  /** Idle time after which this host closes a connection that it opened. */
  readonly idleMs: number;
  /** Time after the peer's last reply for which a session ticket can be used. */
  readonly ticketMs: number;
  /**
   * Maximum time for which peers' connections continue with the old certificates after a reload.
   */
  readonly reloadMs: number;
  /** Timeout of the orderly close of a connection or a listener. After it, the close is forced. */
  readonly closeMs: number;
  /** Maximum bytes of one write to a stream. Larger writes slow the runtime down. */
  readonly pieceBytes: number;
  /** Maximum bytes that wait in the runtime to be sent on one stream. */
  readonly waitingBytes: number;
  /** Size of the UDP sockets' buffers. Kernel limits may reduce it. */
  readonly socketBytes: number;
  /** When finished streams occupy more memory than this, a garbage collection is forced. */
  readonly litterBytes: number;
  /** Time after which clients shall try again, sent in `busy` replies. */
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

/**
 * Application error codes of the protocol `hearth-kv/1`, used when a stream is reset or a
 * connection closed.
 */
export const Code = {
  /** The connection or stream ended without an error. */
  none: 0,
  /** Only the runtime sends this code: on streams of a session ticket that it refused. */
  internal: 1,
  /** The sender does not accept the other side's certificate. */
  refused: 0x10,
  /** The sender's limit on connections is reached. */
  full: 0x11,
  /** The other side has sent an invalid message. */
  protocol: 0x12,
  /** For too long, the other side has sent no data or read none. */
  stalled: 0x13,
  /** The server could not answer the request. */
  failed: 0x14,
  /** The client cancelled the request. */
  cancelled: 0x15,
  /** The sender shuts down, or has new certificates. */
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

/** TLS alerts are reported as QUIC error codes from 0x100 on: 0x100 plus the alert's number. */
const TLS_ALERT = 0x100;
const CONNECTION_REFUSED = 2;

/** Messages for TLS alerts about certificates (RFC 8446, section 6.2), by alert number. */
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

/**
 * Returns the fault that describes why a connection ended. `thrown`: the runtime's error, or
 * undefined if it ended without an error.
 */
export function faultOf(thrown: unknown): ConnectionFault {
  if (thrown === undefined) return { kind: "broken", why: "the connection ended" };
  const { errorCode, type, message } = thrown as QuicErrorLike;
  const code = Number(errorCode ?? -1);
  const why = message ?? "the connection failed";
  // The runtime reports a handshake timeout with the same error as a failed TLS handshake.
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

/**
 * Returns the code with which the peer reset a stream, from the error that reading it threw. Null
 * if the stream was not reset.
 */
export function resetCodeOf(thrown: unknown): number | null {
  const { code, message } = thrown as { readonly code?: string; readonly message?: string };
  if (code !== "ERR_QUIC_STREAM_RESET") return null;
  return Number(RESET.exec(message ?? "")?.[1] ?? Code.internal);
}

/** Returns the fault that describes why the peer reset a stream. */
export function resetFault(code: number): ConnectionFault {
  return FAULTS[code] ?? { kind: "broken", why: `the peer reset the stream (${code})` };
}
