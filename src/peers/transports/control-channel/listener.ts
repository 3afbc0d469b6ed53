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
  Dialled,
  Endpoint,
  LinkFault,
  LinkFaultKind,
  PeerLink,
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
function createTlsServer(trust: Trust, protocol: string, handshakeMs: number): Server {
  const { credentials } = trust;
  return createServer({
    ...serverSecrets(credentials),
    ALPNProtocols: [protocol],
    handshakeTimeout: handshakeMs,
  });
}

/** Those who come from now on see the latest certificates, and are held against them. */
function renewTlsServer(server: Server, trust: Trust): void {
  server.setSecureContext(serverSecrets(trust.credentials));
}

/** Who is at the other end, and the certificate that proves it. */
type Identified =
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

type Connected =
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

export interface ConnectionTableOptions<Own> {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
  readonly limits: ChannelLimits;
  readonly codec: Codec<Own>;
  /** What is spoken, in the handshake. */
  readonly protocol: string;
  /** The key below [peers] that names where it listens. */
  readonly key: string;
}

/** A link of another worker to us. */
export interface AcceptedConnection<Own> extends ChannelHandler<Own> {
  readonly peer: PeerIdentity;
  end(kind: LinkFaultKind, why: string): void;
  /** Resolves when it has ended, and nothing of it is under way. */
  readonly torn: Promise<void>;
}

/** Makes a link of a line whose peer was verified; `onOver` says that it lends nothing any more. */
export type AcceptConnection<Own> = (
  peer: PeerIdentity,
  channel: ControlChannel<Own>,
  onOver: () => void,
) => AcceptedConnection<Own>;

/** A link of ours. */
export interface DialledConnection extends PeerLink {
  /** The peer's certificate is not accepted any more. */
  refuse(why: string): void;
}

/** Room for what stands around a request in its message. */
const AROUND_BYTES = 64;

/**
 * The links of a transport whose requests go over TLS, in both directions: who is let in, how many,
 * and whether they are believed still.
 */
export class ConnectionTable<Own> {
  readonly #options: ConnectionTableOptions<Own>;
  readonly #served = new Map<AcceptedConnection<Own>, Disposable>();
  readonly #asked = new Set<PeerLink>();
  /** Connections that have not shown a certificate yet. */
  readonly #shaking = new Set<Socket>();
  readonly #held: TrustedConnections;
  #tls: Server | null = null;
  #requests = 0;
  #isClosed = false;

  constructor(options: ConnectionTableOptions<Own>) {
    this.#options = options;
    const { trust, clock, log, limits } = options;
    this.#held = new TrustedConnections({ trust, clock, log, lookMs: limits.judgeMs });
  }

  get inbound(): number {
    return this.#served.size;
  }

  /** Listens, and says where; those who come are made links as `takeWith` says. */
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
      ...{ server, clock, log, limits },
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

  /** Those who come are made links from now on. */
  takeWith(take: AcceptConnection<Own>): void {
    const { log, limits } = this.#options;
    const tls = this.#tls;
    assert(tls !== null, "it listens");
    tls.on("connection", (socket) => {
      loopTurns.touch();
      if (this.#shaking.size >= limits.handshakesMax) {
        const dropped = oldestOfMost(this.#shaking);
        const from = addressOf(dropped);
        log("warn", "handshake limit reached, dropping a connection", { from });
        this.#shaking.delete(dropped);
        dropped.destroy();
      }
      this.#shaking.add(socket);
      socket.once("close", () => this.#shaking.delete(socket));
    });
    tls.on("tlsClientError", (error, socket) => {
      log("warn", "a peer was refused", { from: addressOf(socket), why: error.message });
      socket.destroy();
    });
    tls.on("secureConnection", (socket) => {
      this.#shaking.delete(socket);
      this.#welcome(socket, take);
    });
  }

  /** Looks at who it is before anything is read. */
  #welcome(socket: TLSSocket, take: AcceptConnection<Own>): void {
    const { trust, clock, log, codec, protocol, limits } = this.#options;
    socket.setNoDelay(true);
    const judged = identify(socket, trust, protocol, null);
    const channel = new ControlChannel(socket, {
      ...{ clock, codec, unreadBytesMax: limits.unreadBytesMax },
      messageBytesMax: REQUEST_BYTES_MAX + AROUND_BYTES,
      worker: judged.ok ? judged.identity.worker : "",
    });
    const refusal = judged.ok ? this.#whyNoMore(judged.identity.worker) : judged.why;
    if (!judged.ok || refusal !== null) {
      log("warn", "a peer was refused", { from: addressOf(socket), why: refusal ?? "" });
      const why = judged.ok ? "it takes no more links" : "the certificate is not accepted";
      channel.close({ kind: "bye", fault: "refused", why });
      return;
    }
    const { identity, der } = judged;
    const connection = take(identity, channel, () => {
      this.#served.get(connection)?.[Symbol.dispose]();
      this.#served.delete(connection);
    });
    const refuse = (why: string) => connection.end("refused", why);
    this.#served.set(connection, this.#held.hold({ identity, der, dialled: null, refuse }));
    channel.handTo(connection);
  }

  #whyNoMore(worker: WorkerId): string | null {
    if (this.#isClosed) return "this side is closing";
    const { linksMax, workerLinksMax } = this.#options.limits;
    if (this.#served.size >= linksMax) return `there are ${linksMax} links`;
    const own = [...this.#served.keys()].filter((connection) => connection.peer.worker === worker);
    return own.length < workerLinksMax ? null : `${worker} has ${workerLinksMax} links`;
  }

  /** A link of ours that stands: it is held against what is believed, until it ends. */
  async adopt(connection: DialledConnection, der: Uint8Array, dialled: WorkerId): Promise<Dialled> {
    const { identity } = connection;
    const refuse = (why: string) => connection.refuse(why);
    const held = this.#held.hold({ identity, der, dialled, refuse });
    this.#asked.add(connection);
    void connection.ended.then(() => {
      this.#asked.delete(connection);
      held[Symbol.dispose]();
    });
    // What is believed may have changed while it was set up.
    const judged = this.#options.trust.judge(der, dialled);
    if (!judged.ok) connection.refuse(judged.why);
    if (this.#isClosed) await connection[Symbol.asyncDispose]();
    return connection.fault === null
      ? { ok: true, connection }
      : { ok: false, fault: connection.fault };
  }

  reload(): void {
    this.#held.judge();
    if (this.#tls !== null) renewTlsServer(this.#tls, this.#options.trust);
  }

  /** Resolves when no link writes or lends anything any more. */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#tls?.close();
    const asked = [...this.#asked];
    const served = [...this.#served.keys()];
    for (const connection of served) connection.end("closed", "it is closing");
    await Promise.all(asked.map((connection) => connection[Symbol.asyncDispose]()));
    await Promise.all(served.map((connection) => connection.torn));
  }
}

/**
 * The oldest connection of the address that has most of them: a peer that knows a key is done in a
 * few round trips, and strangers from another address do not end its handshake.
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

/** Where it listens, once it does. */
function listenAt(server: Server, endpoint: Endpoint, key: string): Promise<AddressInfo> {
  const { host, port } = endpoint;
  return new Promise((resolve, reject) => {
    server.once("error", (cause) => {
      const what = `peers cannot be taken at ${host}:${port}: ${messageOf(cause)}`;
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
