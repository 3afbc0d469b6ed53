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
import {
  assert,
  type Clock,
  HearthError,
  loopTurns,
  messageOf,
  type WorkerId,
} from "../../../core/index.ts";
import type {
  ConnectionFault,
  ConnectionFaultKind,
  Dialled,
  Endpoint,
  PeerConnection,
  PeerServer,
  TransportLog,
} from "../../transport.ts";
import type { Credentials, PeerIdentity, Trust } from "../../trust.ts";
import { REQUEST_BYTES_MAX } from "../../wire/index.ts";
import { TrustedConnections } from "../connection-state.ts";
import { type ChannelHandler, type Codec, ControlChannel } from "./control-channel.ts";
import type { ChannelLimits } from "./limits.ts";
import type { ConnectionHost } from "./server-connection.ts";

const VERSION = "TLSv1.3";

/**
 * TLS options of both sides. Session tickets are off: each connection presents its certificate, so
 * that new credentials apply at once.
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
 * A server that requests client certificates, which `trust` authorizes later. `protocol`: the ALPN
 * name.
 */
function createTlsServer(trust: Trust, protocol: string, handshakeMs: number): Server {
  const { credentials } = trust;
  return createServer({
    ...serverSecrets(credentials),
    ALPNProtocols: [protocol],
    handshakeTimeout: handshakeMs,
  });
}

/** New connections use the latest credentials. */
function renewTlsServer(server: Server, trust: Trust): void {
  server.setSecureContext(serverSecrets(trust.credentials));
}

/** The peer's identity and certificate. */
type Identified =
  | { readonly ok: true; readonly identity: PeerIdentity; readonly der: Uint8Array }
  | { readonly ok: false; readonly why: string };

/** Authorizes the connection's certificate, in addition to the TLS library's verification. */
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

/** A TLS connection with a verified chain; its identity is not checked yet. */
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
    // No server name in the clear; the certificate's URI name is checked instead.
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
        // Errors during close are ignored.
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

/** System errors mean that the peer is unreachable; other errors come from the handshake. */
function faultKindOf(code: string): ConnectionFaultKind {
  if (code === "ECONNRESET" || code === "EPIPE") return "broken";
  const isSystems = /^(?:E[A-Z0-9]+|EAI_[A-Z]+)$/.test(code) && !code.startsWith("ERR_");
  return isSystems ? "unreachable" : "refused";
}

/** An address for the native library: without brackets, and IPv4 if it is IPv4-mapped. */
export function plainAddress(address: string): string {
  const mapped = /^::ffff:([0-9.]+)$/i.exec(address)?.[1];
  return mapped !== undefined && isIP(mapped) === 4 ? mapped : address;
}

export interface ConnectionTableOptions<Own> {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
  readonly limits: ChannelLimits;
  readonly codec: Codec<Own>;
  /** The ALPN protocol name. */
  readonly protocol: string;
  /** The key in [peers] that configures the listening address. */
  readonly key: string;
}

/** An inbound connection. */
export interface AcceptedConnection<Own> extends ChannelHandler<Own> {
  readonly peer: PeerIdentity;
  end(kind: ConnectionFaultKind, why: string): void;
  /** Resolves when it has ended and nothing of it is running. */
  readonly torn: Promise<void>;
}

/**
 * Makes a connection of an authorized channel; `onOver` reports that it holds no slot references
 * any more.
 */
export type AcceptConnection<Own> = (
  peer: PeerIdentity,
  channel: ControlChannel<Own>,
  onOver: () => void,
) => AcceptedConnection<Own>;

/** An outbound connection. */
export interface DialledConnection extends PeerConnection {
  /** The peer's certificate is no longer accepted. */
  refuse(why: string): void;
}

/** Space for the fields around a request in its message. */
const AROUND_BYTES = 64;

/**
 * All connections of a transport with a TLS control channel, in both directions. Authorizes and
 * limits inbound connections, and ends those that are no longer authorized.
 */
export class ConnectionTable<Own> {
  readonly #options: ConnectionTableOptions<Own>;
  readonly #inbound = new Map<AcceptedConnection<Own>, Disposable>();
  readonly #outbound = new Set<PeerConnection>();
  /** Connections without a verified certificate. */
  readonly #handshaking = new Set<Socket>();
  readonly #trusted: TrustedConnections;
  #tls: Server | null = null;
  #requests = 0;
  #isClosed = false;

  constructor(options: ConnectionTableOptions<Own>) {
    this.#options = options;
    const { trust, clock, log, limits } = options;
    this.#trusted = new TrustedConnections({ trust, clock, log, checkMs: limits.expiryCheckMs });
  }

  get inbound(): number {
    return this.#inbound.size;
  }

  /** Listens and returns the bound address; connections are accepted after `takeWith`. */
  async listen(endpoint: Endpoint): Promise<{ address: string; port: number }> {
    assert(this.#tls === null, "a transport listens once");
    const { trust, protocol, limits, key } = this.#options;
    const tls = createTlsServer(trust, protocol, limits.handshakeMs);
    this.#tls = tls;
    return await listenAt(tls, endpoint, key);
  }

  hostFor(server: PeerServer): ConnectionHost {
    const { clock, log, limits } = this.#options;
    return {
      server,
      clock,
      log,
      limits,
      takeRequest: () => {
        if (this.#requests >= limits.requestsMax) return false;
        this.#requests++;
        return true;
      },
      giveRequest: () => {
        this.#requests--;
      },
    };
  }

  /** Starts accepting connections. */
  takeWith(take: AcceptConnection<Own>): void {
    const { log, limits } = this.#options;
    const tls = this.#tls;
    assert(tls !== null, "the transport is listening");
    tls.on("connection", (socket) => {
      loopTurns.touch();
      if (this.#handshaking.size >= limits.handshakesMax) {
        const dropped = oldestOfMost(this.#handshaking);
        const from = addressOf(dropped);
        log("warn", "handshake limit reached, dropping oldest connection", { from });
        this.#handshaking.delete(dropped);
        dropped.destroy();
      }
      this.#handshaking.add(socket);
      socket.once("close", () => this.#handshaking.delete(socket));
    });
    tls.on("tlsClientError", (error, socket) => {
      log("warn", "peer refused", { from: addressOf(socket), why: error.message });
      socket.destroy();
    });
    tls.on("secureConnection", (socket) => {
      this.#handshaking.delete(socket);
      this.#welcome(socket, take);
    });
  }

  /** Authorizes the peer before any message is read. */
  #welcome(socket: TLSSocket, take: AcceptConnection<Own>): void {
    const { trust, clock, log, codec, protocol, limits } = this.#options;
    socket.setNoDelay(true);
    const authorized = identify(socket, trust, protocol, null);
    const channel = new ControlChannel(socket, {
      clock,
      codec,
      unreadBytesMax: limits.unreadBytesMax,
      messageBytesMax: REQUEST_BYTES_MAX + AROUND_BYTES,
      worker: authorized.ok ? authorized.identity.worker : "",
    });
    const refusal = authorized.ok ? this.#whyNoMore(authorized.identity.worker) : authorized.why;
    if (!authorized.ok || refusal !== null) {
      log("warn", "peer refused", { from: addressOf(socket), why: refusal ?? "" });
      const why = authorized.ok ? "connection limit reached" : "certificate not accepted";
      channel.close({ kind: "bye", fault: "refused", why });
      return;
    }
    const { identity, der } = authorized;
    const connection = take(identity, channel, () => {
      this.#inbound.get(connection)?.[Symbol.dispose]();
      this.#inbound.delete(connection);
    });
    const refuse = (why: string) => connection.end("refused", why);
    this.#inbound.set(connection, this.#trusted.watch({ identity, der, dialled: null, refuse }));
    channel.handTo(connection);
  }

  #whyNoMore(worker: WorkerId): string | null {
    if (this.#isClosed) return "the agent is shutting down";
    const { linksMax, workerLinksMax } = this.#options.limits;
    if (this.#inbound.size >= linksMax) return `connection limit reached: ${linksMax} connections`;
    const own = [...this.#inbound.keys()].filter((connection) => connection.peer.worker === worker);
    return own.length < workerLinksMax
      ? null
      : `connection limit reached: ${worker} has ${workerLinksMax} connections`;
  }

  /** Watches the authorization of an outbound connection until it ends. */
  async adopt(connection: DialledConnection, der: Uint8Array, dialled: WorkerId): Promise<Dialled> {
    const { identity } = connection;
    const refuse = (why: string) => connection.refuse(why);
    const trusted = this.#trusted.watch({ identity, der, dialled, refuse });
    this.#outbound.add(connection);
    void connection.ended.then(() => {
      this.#outbound.delete(connection);
      trusted[Symbol.dispose]();
    });
    // The credentials may have changed during the set-up.
    const authorized = this.#options.trust.authorize(der, dialled);
    if (!authorized.ok) connection.refuse(authorized.why);
    if (this.#isClosed) await connection[Symbol.asyncDispose]();
    return connection.fault === null
      ? { ok: true, connection }
      : { ok: false, fault: connection.fault };
  }

  reload(): void {
    this.#trusted.authorize();
    if (this.#tls !== null) renewTlsServer(this.#tls, this.#options.trust);
  }

  /** Resolves when no connection writes or holds slot references any more. */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#tls?.close();
    const outbound = [...this.#outbound];
    const inbound = [...this.#inbound.keys()];
    for (const connection of inbound) connection.end("closed", "the agent is shutting down");
    await Promise.all(outbound.map((connection) => connection[Symbol.asyncDispose]()));
    await Promise.all(inbound.map((connection) => connection.torn));
  }
}

/**
 * The oldest connection of the address that has the most. A peer with a valid key completes its
 * handshake in a few round trips, so floods from other addresses do not end it.
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

function addressOf(socket: Socket): string {
  return socket.remoteAddress ?? "";
}

/** Resolves with the bound address. */
function listenAt(server: Server, endpoint: Endpoint, key: string): Promise<AddressInfo> {
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
