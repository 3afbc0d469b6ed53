import { constants } from "node:crypto";
import { type AddressInfo, isIP, type Socket } from "node:net";
import {
  type ConnectionOptions,
  connect,
  createServer,
  type Server,
  type TLSSocket,
  type TlsOptions,
} from "node:tls";
import { assert, HearthError, messageOf, type WorkerId } from "../../../core/index.ts";
import type { ConnectionFault, ConnectionFaultKind, Endpoint } from "../../transport.ts";
import type { Credentials, PeerIdentity, Trust } from "../../trust.ts";

const VERSION = "TLSv1.3";

/**
 * Returns the TLS options that both sides use. Session tickets are off: each connection presents
 * its certificate, so that changed credentials take effect at once.
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
 * Creates a TLS server that requests client certificates. The caller authorizes them with
 * `identify`. `protocol`: ALPN protocol name.
 */
export function createTlsServer(
  { credentials }: Trust,
  protocol: string,
  handshakeMs: number,
): Server {
  return createServer({
    ...serverSecrets(credentials),
    ALPNProtocols: [protocol],
    handshakeTimeout: handshakeMs,
  });
}

/** Makes the server use the latest credentials for new connections. */
export function renewTlsServer(server: Server, trust: Trust): void {
  server.setSecureContext(serverSecrets(trust.credentials));
}

/** Identity and certificate of a peer, or the reason it was refused. */
type Identified =
  | { readonly ok: true; readonly identity: PeerIdentity; readonly der: Uint8Array }
  | { readonly ok: false; readonly why: string };

/**
 * Decides whether to accept the peer's certificate, after the TLS library has verified its chain.
 */
export function identify(
  socket: TLSSocket,
  trust: Trust,
  protocol: string,
  dialled: WorkerId | null,
): Identified {
  if (!socket.authorized) return { ok: false, why: "its certificate was not accepted" };
  if (socket.getProtocol() !== VERSION) return { ok: false, why: `it does not support ${VERSION}` };
  if (socket.alpnProtocol !== protocol)
    return { ok: false, why: `it does not support ${protocol}` };
  const der = socket.getPeerCertificate(true).raw as Uint8Array | undefined;
  if (der === undefined) return { ok: false, why: "it presented no certificate" };
  const authorized = trust.authorize(der, dialled);
  return authorized.ok ? { ...authorized, der } : authorized;
}

type Connected =
  | { readonly ok: true; readonly socket: TLSSocket }
  | { readonly ok: false; readonly fault: ConnectionFault };

/**
 * Opens a TLS connection whose certificate chain is verified. The caller must check the peer's
 * identity with `identify`.
 */
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
    // Sends no server name, which would be unencrypted. `identify` checks the certificate's URI
    // name instead.
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
        // Ignores errors while the connection is closed.
        socket.on("error", () => {});
        socket.destroy();
      }
      resolve(result);
    };
    const fail = (kind: ConnectionFaultKind, why: string) =>
      settle({ ok: false, fault: { kind, why } });
    const onAbort = () => fail("aborted", "the dial was cancelled");
    signal.addEventListener("abort", onAbort, { once: true });
    socket.on("secureConnect", () => settle({ ok: true, socket }));
    socket.on("error", (error: Error & { code?: string }) => {
      fail(faultKindOf(error.code ?? ""), error.message);
    });
    socket.on("close", () => fail("refused", "connection closed during the handshake"));
    if (signal.aborted) onAbort();
  });
}

/**
 * Classifies a connection error. System errors mean that the peer is unreachable; other errors come
 * from the TLS handshake.
 */
function faultKindOf(code: string): ConnectionFaultKind {
  if (code === "ECONNRESET" || code === "EPIPE") return "broken";
  const isSystems = /^(?:E[A-Z0-9]+|EAI_[A-Z]+)$/.test(code) && !code.startsWith("ERR_");
  return isSystems ? "unreachable" : "refused";
}

/**
 * Converts an IP address for the native library: removes brackets, and converts an IPv4-mapped IPv6
 * address to IPv4.
 */
export function plainAddress(address: string): string {
  const mapped = /^::ffff:([0-9.]+)$/i.exec(address)?.[1];
  return mapped !== undefined && isIP(mapped) === 4 ? mapped : address;
}

/**
 * Returns the oldest connection of the address that has the most connections. A peer with a valid
 * key completes its handshake in a few round trips, so connection floods from other addresses do
 * not displace it.
 */
export function oldestOfMost<S extends Pick<Socket, "remoteAddress">>(sockets: Iterable<S>): S {
  const byAddress = new Map<string, S[]>();
  for (const socket of sockets) {
    const own = byAddress.get(socket.remoteAddress ?? "");
    if (own === undefined) byAddress.set(socket.remoteAddress ?? "", [socket]);
    else own.push(socket);
  }
  const [oldest] = [...byAddress.values()].reduce((most, own) =>
    own.length > most.length ? own : most,
  );
  return oldest!;
}

export function addressOf(socket: Socket): string {
  return socket.remoteAddress ?? "";
}

/**
 * Starts to listen and resolves with the bound address. `key`: configuration key of the address,
 * for error messages.
 */
export function listenAt(server: Server, endpoint: Endpoint, key: string): Promise<AddressInfo> {
  const { host, port } = endpoint;
  return new Promise((resolve, reject) => {
    server.once("error", (cause) => {
      const what = `cannot listen for peers at ${host}:${port}: ${messageOf(cause)}`;
      const fix = `let [peers].${key} name a free port of this host`;
      reject(new HearthError("CONFIG_INVALID", what, { cause, fix }));
    });
    server.listen(port, host, () => {
      server.removeAllListeners("error");
      server.on("error", () => {});
      const address = server.address();
      assert(address !== null && typeof address === "object", "a TCP server has a port");
      resolve(address);
    });
  });
}
