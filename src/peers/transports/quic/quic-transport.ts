import { createPrivateKey } from "node:crypto";
import { lookup } from "node:dns/promises";
import { isIP } from "node:net";
import { assert, type Clock, HearthError, messageOf, type WorkerId } from "../../../core/index.ts";
import { type Native, NativeError, type Region } from "../../../native/index.ts";
import type {
  Endpoint as Address,
  ConnectionFault,
  Dialled,
  DialTarget,
  PeerServer,
  Transport,
  TransportCapabilities,
  TransportLog,
} from "../../transport.ts";
import type { Credentials, PeerIdentity, Trust } from "../../trust.ts";
import { RequestLimit, TrustedConnections } from "../connection-state.ts";
import { ClientConnection } from "./client-connection.ts";
import { QUIC_LIMITS, type QuicLimits } from "./limits.ts";
import { makeProof } from "./preface.ts";
import {
  type Endpoint,
  GcPressure,
  loadQuic,
  type QuicContext,
  type QuicModule,
  type Session,
  type SessionOptions,
} from "./runtime.ts";
import { type ConnectionHost, ServerConnection } from "./server-connection.ts";

/**
 * Session ticket of a peer, with which the next connection to it can begin with a request (0-RTT).
 * Secret, so it is kept in memory only.
 */
export interface Ticket {
  readonly ticket: Uint8Array;
  /**
   * Address validation token, which proves to the peer that this host owns its IP address. Null if
   * the peer gave none.
   */
  readonly token: Uint8Array | null;
  /** Certificate of the peer in DER. A resumed connection does not present it again. */
  readonly certificate: Uint8Array;
  readonly identity: PeerIdentity;
}

const TICKETS_MAX = 1_024;

/** Stores session tickets of recently used peers until they expire. */
class Tickets {
  readonly #clock: Clock;
  readonly #kept = new Map<string, { readonly ticket: Ticket; readonly expiry: Disposable }>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  get size(): number {
    return this.#kept.size;
  }

  /** Stores a peer's ticket for `ms` milliseconds, in place of an earlier one. */
  keep(name: string, ticket: Ticket, ms: number): void {
    this.drop(name);
    if (ms <= 0 || this.#kept.size >= TICKETS_MAX) return;
    const expiry = this.#clock.after(ms, () => void this.#kept.delete(name));
    this.#kept.set(name, { ticket, expiry });
  }

  find(name: string): Ticket | null {
    return this.#kept.get(name)?.ticket ?? null;
  }

  drop(name: string): void {
    this.#kept.get(name)?.expiry[Symbol.dispose]();
    this.#kept.delete(name);
  }

  clear(): void {
    for (const name of [...this.#kept.keys()]) this.drop(name);
  }
}

interface ListenerParts extends Omit<ConnectionHost, "onOver" | "whyNoMore"> {
  readonly quic: QuicModule;
  readonly address: Address;
  /** Called with the port when a UDP socket was opened. */
  onSocket(port: number): void;
}

/** Maximum new connections per second from one IP address, and in a burst. */
const CREATION_RATE = 100;
const CREATION_BURST = 200;

const RETRY_MS = 500;

/**
 * Accepts connections of peers. The runtime cannot change the certificates of a listening socket,
 * so changed certificates need a new socket on the same port. It is opened when no peer is
 * connected, or `reloadMs` after the change; connections that are open then are closed, and clients
 * connect again.
 */
class Listener {
  readonly #parts: ListenerParts;
  readonly #connections = new Set<ServerConnection>();
  #endpoint: Endpoint | null = null;
  #port: number;
  /** True if the certificates have changed since the socket was opened. */
  #isStale = false;
  #swapping: Promise<void> | null = null;
  #deadline: Disposable | null = null;
  #isClosed = false;

  constructor(parts: ListenerParts) {
    this.#parts = parts;
    this.#port = parts.address.port;
  }

  /** Number of connections whose peer is authorized. */
  get connections(): number {
    return [...this.#connections].filter((connection) => connection.peer !== null).length;
  }

  /**
   * Opens the socket. Resolves with its port. Throws CONFIG_INVALID if the address cannot be used.
   */
  async open(): Promise<number> {
    const { address, onSocket } = this.#parts;
    try {
      this.#endpoint = await this.#bind(this.#port);
    } catch (cause) {
      const what = `cannot listen for peers at ${address.host}:${this.#port}: ${messageOf(cause)}`;
      const fix = "let [peers].listen_quic name a free port of this host";
      throw new HearthError("CONFIG_INVALID", what, { cause, fix });
    }
    this.#port = this.#endpoint.address!.port;
    onSocket(this.#port);
    return this.#port;
  }

  /** Opens a socket with the current certificates. Throws the runtime's error if that fails. */
  async #bind(port: number): Promise<Endpoint> {
    const { quic, limits, trust, address } = this.#parts;
    const endpoint = new quic.QuicEndpoint({
      address: socketAddress(address.host, port),
      maxConnectionsTotal: limits.linksMax,
      maxConnectionsPerHost: limits.addressLinksMax,
      sessionCreationRate: CREATION_RATE,
      sessionCreationBurst: CREATION_BURST,
    });
    endpoint.closed.catch(() => {});
    try {
      const options = serverOptions(trust.credentials, limits);
      await quic.listen((session) => this.#take(session), { ...options, endpoint });
      // If no socket could be opened, the endpoint has no address, and `closed` rejects with the
      // reason.
      if (endpoint.address === undefined) await endpoint.closed;
      return endpoint;
    } catch (thrown) {
      endpoint.destroy();
      throw thrown;
    }
  }

  #take(session: Session): void {
    const host: ConnectionHost = {
      ...this.#parts,
      whyNoMore: (worker) => this.#whyNoMore(worker),
      onOver: (connection) => this.#forget(connection),
    };
    this.#connections.add(new ServerConnection(session, host));
  }

  #whyNoMore(worker: WorkerId): string | null {
    const { workerLinksMax } = this.#parts.limits;
    const own = [...this.#connections].filter((connection) => connection.proven === worker);
    return own.length < workerLinksMax
      ? null
      : `connection limit reached: ${worker} has ${workerLinksMax} connections`;
  }

  #forget(connection: ServerConnection): void {
    this.#connections.delete(connection);
    if (this.#isStale && this.#connections.size === 0 && !this.#isClosed) void this.#swap();
  }

  /**
   * Makes new connections use the latest certificates: now if no peer is connected, otherwise
   * within `reloadMs`.
   */
  async reload(): Promise<void> {
    if (this.#isClosed) return;
    this.#isStale = true;
    if (this.#deadline === null && this.#connections.size === 0) return this.#swap();
    const { clock, limits } = this.#parts;
    this.#deadline ??= clock.after(limits.reloadMs, () => void this.#swap());
  }

  #swap(): Promise<void> {
    this.#swapping ??= this.#renew().finally(() => {
      this.#swapping = null;
      // The certificates may have changed again meanwhile.
      if (this.#isStale) void this.reload();
    });
    return this.#swapping;
  }

  async #renew(): Promise<void> {
    const { log, clock } = this.#parts;
    this.#deadline?.[Symbol.dispose]();
    this.#deadline = null;
    this.#isStale = false;
    try {
      // Tests the certificates on another port before closing the socket that is in use.
      (await this.#bind(0)).destroy();
    } catch (thrown) {
      log("error", "the new certificates cannot be used", { why: messageOf(thrown) });
      return;
    }
    await this.#shut((connection) => connection.leave());
    if (this.#isClosed) return;
    try {
      await this.open();
    } catch (thrown) {
      log("error", "cannot listen for peers again", { why: messageOf(thrown) });
      this.#isStale = true;
      this.#deadline = clock.after(RETRY_MS, () => void this.#swap());
    }
  }

  /** Stops accepting, closes all connections with `end`, and releases the port. */
  async #shut(end: (connection: ServerConnection) => Promise<void>): Promise<void> {
    const endpoint = this.#endpoint;
    this.#endpoint = null;
    if (endpoint === null) return;
    endpoint.busy = true;
    await Promise.all([...this.#connections].map(end));
    const { promise: late, resolve } = Promise.withResolvers<void>();
    using _timer = this.#parts.clock.after(this.#parts.limits.closeMs, resolve);
    await Promise.race([endpoint.close().catch(() => {}), late]);
    if (!endpoint.destroyed) endpoint.destroy();
    await endpoint.closed.catch(() => {});
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#deadline?.[Symbol.dispose]();
    await this.#swapping;
    await this.#shut((connection) => connection.close());
  }
}

/** Formats an address and port as the runtime expects it. */
function socketAddress(host: string, port: number): string {
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

const ALPN = "hearth-kv/1";

const CERTIFICATE = /-----BEGIN CERTIFICATE-----[^-]*-----END CERTIFICATE-----\s*/g;

function certificatesOf(pem: string): string[] {
  return pem.match(CERTIFICATE) ?? [];
}

function common(limits: QuicLimits) {
  return {
    handshakeTimeout: limits.handshakeMs,
    transportParams: {
      initialMaxStreamsBidi: limits.connectionRequestsMax,
      initialMaxStreamsUni: 0,
      maxDatagramFrameSize: 0,
      maxIdleTimeout: Math.ceil(limits.silentMs / 1_000),
    },
  };
}

/**
 * Returns a server's TLS options. Clients can present only their own certificate, so intermediate
 * certificates are taken from this host's own chain.
 */
function serverOptions(credentials: Credentials, limits: QuicLimits): SessionOptions {
  const { key, certificates, authorities } = credentials;
  const [, ...between] = certificatesOf(certificates);
  const identity = { keys: [createPrivateKey(key)], certs: [Buffer.from(certificates)] };
  return {
    ...common(limits),
    alpn: [ALPN],
    sni: { "*": identity },
    ca: [authorities, ...between].map((pem) => Buffer.from(pem)),
    verifyClient: true,
  };
}

/**
 * Returns a client's TLS options. Presents only this host's own certificate, because the runtime
 * misreports a chain to the server. The runtime's check of host names is off; Hearth checks worker
 * names instead.
 */
function clientOptions(credentials: Credentials, limits: QuicLimits): SessionOptions {
  const { key, certificates, authorities } = credentials;
  const own = certificatesOf(certificates)[0] ?? certificates;
  const keepAlive = { keepAlive: limits.keepAliveMs };
  return {
    ...common(limits),
    ...keepAlive,
    alpn: ALPN,
    keys: [createPrivateKey(key)],
    certs: [Buffer.from(own)],
    ca: [Buffer.from(authorities)],
    verifyPeer: "manual",
  };
}

export interface QuicOptions {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
  readonly native: Native;
  readonly limits?: Partial<QuicLimits>;
}

const ANY_ADDRESS = { 4: "0.0.0.0", 6: "::" } as const;

/**
 * Transport over the JavaScript runtime's QUIC: one connection per peer, one stream per request.
 * Needs only one UDP port. Slow on fast networks, because payload passes through JavaScript.
 */
export class QuicTransport implements Transport {
  readonly name = "quic";
  readonly capabilities: TransportCapabilities = {
    encrypted: true,
    direct: false,
    early: true,
    oneSided: false,
  };
  unsupported: string | null = null;
  readonly #options: QuicOptions;
  readonly #limits: QuicLimits;
  readonly #tickets: Tickets;
  readonly #connections = new Set<ClientConnection>();
  readonly #context: Omit<QuicContext, "region">;
  readonly #endpoints = new Map<4 | 6, Endpoint>();
  #quic: QuicModule | null = null;
  #region: Region | null = null;
  #listener: Listener | null = null;
  #closed: Promise<void> | null = null;

  constructor(options: QuicOptions) {
    this.#options = options;
    this.#limits = { ...QUIC_LIMITS, ...options.limits };
    const { trust, clock, log } = options;
    const { expiryCheckMs: checkMs, litterBytes, requestsMax } = this.#limits;
    this.#context = {
      trust,
      clock,
      log,
      limits: this.#limits,
      trusted: new TrustedConnections({ trust, clock, log, checkMs }),
      gcPressure: new GcPressure(litterBytes),
      requests: new RequestLimit(requestsMax),
    };
    this.#tickets = new Tickets(options.clock);
  }

  get inboundConnections(): number {
    return this.#listener?.connections ?? 0;
  }

  async register(region: Region): Promise<void> {
    assert(this.#region === null, "a region is registered once");
    this.#region = region;
    try {
      this.#quic = await loadQuic();
    } catch (thrown) {
      if (!(thrown instanceof HearthError)) throw thrown;
      this.unsupported = thrown.text;
    }
  }

  async listen(endpoint: Address, server: PeerServer): Promise<Address> {
    const quic = this.#quic;
    if (quic === null) throw new HearthError("UNSUPPORTED", this.unsupported ?? "no region");
    assert(this.#listener === null, "a transport listens once");
    this.#listener = new Listener({
      ...this.#context,
      quic,
      server,
      address: endpoint,
      region: this.#region!,
      onSocket: (port) => this.#tune(port),
    });
    return { host: endpoint.host, port: await this.#listener.open() };
  }

  async dial(target: DialTarget, signal: AbortSignal): Promise<Dialled> {
    if (this.#closed !== null) return failed({ kind: "closed", why: "the transport is closed" });
    if (this.#quic === null) {
      return failed({ kind: "unsupported", why: this.unsupported ?? "no region is registered" });
    }
    const { promise: given, resolve } = Promise.withResolvers<ConnectionFault>();
    const giveUp = () => resolve({ kind: "aborted", why: "the dial was cancelled" });
    signal.addEventListener("abort", giveUp, { once: true });
    if (signal.aborted) giveUp();
    try {
      const address = await Promise.race([given, addressOf(target)]);
      if ("kind" in address) return failed(address);
      const connection = await this.#connect(this.#quic, target, address);
      if (connection.resumed) return { ok: true, connection };
      const fault = await Promise.race([given, connection.ready]);
      if (fault === null) return { ok: true, connection };
      await connection[Symbol.asyncDispose]();
      return failed(fault);
    } catch (thrown) {
      return failed({ kind: "unreachable", why: messageOf(thrown) });
    } finally {
      signal.removeEventListener("abort", giveUp);
    }
  }

  async #connect(
    quic: QuicModule,
    target: DialTarget,
    address: Numeric,
  ): Promise<ClientConnection> {
    const { trust } = this.#options;
    const { credentials } = trust;
    const name = `${target.worker}@${target.host}:${target.port}`;
    const ticket = this.#ticketFor(name, target);
    const endpoint = this.#endpointFor(quic, address.family);
    const session = await quic.connect(socketAddress(address.host, target.port), {
      ...clientOptions(credentials, this.#limits),
      ...(ticket === null ? {} : { sessionTicket: ticket.ticket }),
      ...(ticket === null || ticket.token === null ? {} : { token: ticket.token }),
      endpoint,
    });
    const { cluster, worker: client } = credentials;
    const connection = new ClientConnection({
      ...this.#context,
      session,
      ticket,
      region: this.#region!,
      worker: target.worker,
      proof: makeProof(credentials.key, { cluster, client, server: target.worker }),
    });
    const port = endpoint.address?.port;
    if (port !== undefined) this.#tune(port);
    this.#connections.add(connection);
    void connection.ended.then(() => {
      this.#connections.delete(connection);
      const next = connection.nextTicket;
      if (next === null || this.#closed !== null) this.#tickets.drop(name);
      // A ticket is bound to the certificate that this host presented, so it is kept only if that
      // is still in use.
      else if (trust.credentials === credentials) this.#tickets.keep(name, next.ticket, next.ms);
    });
    return connection;
  }

  /**
   * Returns the ticket for the peer, if the certificate in it is still accepted; otherwise null.
   */
  #ticketFor(name: string, { worker }: DialTarget): Ticket | null {
    const ticket = this.#tickets.find(name);
    if (ticket === null || this.#options.trust.authorize(ticket.certificate, worker).ok)
      return ticket;
    this.#tickets.drop(name);
    return null;
  }

  #endpointFor(quic: QuicModule, family: 4 | 6): Endpoint {
    const known = this.#endpoints.get(family);
    if (known !== undefined && !known.destroyed) return known;
    const endpoint = new quic.QuicEndpoint({ address: socketAddress(ANY_ADDRESS[family], 0) });
    endpoint.closed.catch(() => {});
    this.#endpoints.set(family, endpoint);
    return endpoint;
  }

  #tune(port: number): void {
    const { native, log } = this.#options;
    try {
      if (native.tuneUdp(port, this.#limits.socketBytes) > 0) return;
      log("warn", "UDP socket not found: a dead peer may stall others", { port });
    } catch (thrown) {
      if (!(thrown instanceof NativeError)) throw thrown;
      log("warn", "UDP socket cannot be tuned", { port, why: thrown.text });
    }
  }

  async reload(): Promise<void> {
    this.#tickets.clear();
    this.#context.trusted.authorize();
    await this.#listener?.reload();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async #close(): Promise<void> {
    const connections = [...this.#connections].map((connection) =>
      connection[Symbol.asyncDispose](),
    );
    await Promise.all([...connections, this.#listener?.close()]);
    this.#tickets.clear();
    for (const endpoint of this.#endpoints.values()) endpoint.destroy();
  }
}

interface Numeric {
  readonly host: string;
  readonly family: 4 | 6;
}

/** Resolves a host name with the operating system's resolver. */
async function addressOf({ host }: Address): Promise<Numeric> {
  const family = isIP(host);
  if (family !== 0) return { host, family: family as 4 | 6 };
  const found = await lookup(host);
  return { host: found.address, family: found.family as 4 | 6 };
}

function failed(fault: ConnectionFault): Dialled {
  return { ok: false, fault };
}
