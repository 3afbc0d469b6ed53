import type { LinkFault } from "../../transport.ts";

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
