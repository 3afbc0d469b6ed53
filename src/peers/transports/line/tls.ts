import { constants } from "node:crypto";
import { isIP } from "node:net";
import {
  type ConnectionOptions,
  connect,
  createServer,
  type Server,
  type TLSSocket,
  type TlsOptions,
} from "node:tls";
import type { WorkerId } from "../../../core/index.ts";
import type { Endpoint, LinkFault, LinkFaultKind } from "../../transport.ts";
import type { Credentials, PeerIdentity, Trust } from "../../trust.ts";

const VERSION = "TLSv1.3";

/**
 * What both sides of a handshake need. Without tickets: a link shows its certificate each time, and
 * those that changed meanwhile count at once.
 */
function secretsOf(credentials: Credentials) {
  return {
    cert: credentials.certificates,
    key: credentials.key,
    ca: credentials.authorities,
    minVersion: VERSION,
    maxVersion: VERSION,
    secureOptions: constants.SSL_OP_NO_TICKET,
    rejectUnauthorized: true,
  } as const;
}

function serverSecrets(credentials: Credentials): TlsOptions {
  return { ...secretsOf(credentials), requestCert: true };
}

/**
 * A server that asks for certificates; `trust` has yet to judge them. `protocol` names what is
 * spoken, in the handshake.
 */
export function createTlsServer(trust: Trust, protocol: string, handshakeMs: number): Server {
  const { credentials } = trust;
  return createServer({
    ...serverSecrets(credentials),
    ALPNProtocols: [protocol],
    handshakeTimeout: handshakeMs,
  });
}

/** Those who come from now on see the latest certificates, and are held against them. */
export function renewTlsServer(server: Server, trust: Trust): void {
  server.setSecureContext(serverSecrets(trust.credentials));
}

/** Who is at the other end, and the certificate that proves it. */
export type Identified =
  | { readonly ok: true; readonly identity: PeerIdentity; readonly der: Uint8Array }
  | { readonly ok: false; readonly why: string };

/** Whom the connection's certificate proves; it is looked at whatever the TLS library thinks. */
export function identify(
  socket: TLSSocket,
  trust: Trust,
  protocol: string,
  dialled: WorkerId | null,
): Identified {
  if (!socket.authorized) return { ok: false, why: "its certificate was not accepted" };
  if (socket.getProtocol() !== VERSION) return { ok: false, why: `it does not speak ${VERSION}` };
  if (socket.alpnProtocol !== protocol) return { ok: false, why: `it does not speak ${protocol}` };
  const der = socket.getPeerCertificate(true).raw as Uint8Array | undefined;
  if (der === undefined) return { ok: false, why: "it showed no certificate" };
  const judged = trust.judge(der, dialled);
  return judged.ok ? { ...judged, der } : judged;
}

export type Connected =
  | { readonly ok: true; readonly socket: TLSSocket }
  | { readonly ok: false; readonly fault: LinkFault };

/** A TLS connection whose chain was verified, not whose it is. */
export function connectTls(
  endpoint: Endpoint,
  credentials: Credentials,
  protocol: string,
  signal: AbortSignal,
): Promise<Connected> {
  const options: ConnectionOptions = {
    ...secretsOf(credentials),
    ...endpoint,
    ALPNProtocols: [protocol],
    // No name in the clear: whom we mean is compared with the certificate's URI.
    servername: "",
    checkServerIdentity: () => undefined,
  };
  return new Promise((resolve) => {
    const socket = connect(options);
    socket.setNoDelay(true);
    const settle = (result: Connected) => {
      signal.removeEventListener("abort", onAbort);
      socket.removeAllListeners();
      if (!result.ok) {
        // What it says while it is torn down is of no interest.
        socket.on("error", () => {});
        socket.destroy();
      }
      resolve(result);
    };
    const fail = (kind: LinkFaultKind, why: string) => settle({ ok: false, fault: { kind, why } });
    const onAbort = () => fail("aborted", "the dial was given up");
    signal.addEventListener("abort", onAbort, { once: true });
    socket.on("secureConnect", () => settle({ ok: true, socket }));
    socket.on("error", (error: Error & { code?: string }) => {
      fail(faultKindOf(error.code ?? ""), error.message);
    });
    socket.on("close", () => fail("refused", "it hung up during the handshake"));
    if (signal.aborted) onAbort();
  });
}

/** System errors say that nobody was there; what else there is comes from the handshake. */
function faultKindOf(code: string): LinkFaultKind {
  if (code === "ECONNRESET" || code === "EPIPE") return "broken";
  const isSystems = /^(?:E[A-Z0-9]+|EAI_[A-Z]+)$/.test(code) && !code.startsWith("ERR_");
  return isSystems ? "unreachable" : "refused";
}

/** An address as the native library takes it: a bracketed or mapped one is made plain. */
export function plainAddress(address: string): string {
  const mapped = /^::ffff:([0-9.]+)$/i.exec(address)?.[1];
  return mapped !== undefined && isIP(mapped) === 4 ? mapped : address;
}
