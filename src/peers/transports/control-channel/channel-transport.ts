import type { Socket } from "node:net";
import type { Server, TLSSocket } from "node:tls";
import { assert, type Clock, HearthError, loopTurns, type WorkerId } from "../../../core/index.ts";
import { NativeError, type Region } from "../../../native/index.ts";
import type {
  Dialled,
  DialTarget,
  Endpoint,
  PeerServer,
  Transport,
  TransportCapabilities,
  TransportLog,
  TransportName,
} from "../../transport.ts";
import type { Trust } from "../../trust.ts";
import { REQUEST_BYTES_MAX } from "../../wire/index.ts";
import { RequestLimit, TrustedConnections } from "../connection-state.ts";
import { ClientConnection, type ClientPayload, type ClientPull } from "./client-connection.ts";
import type { Codec, OwnMessage } from "./codec.ts";
import { ControlChannel } from "./control-channel.ts";
import { type Dialling, dialChannel, type Step } from "./dial.ts";
import type { ChannelLimits } from "./limits.ts";
import {
  type ConnectionContext,
  type ConnectionHost,
  type ServedPull,
  ServerConnection,
  type ServerPayload,
} from "./server-connection.ts";
import {
  addressOf,
  createTlsServer,
  identify,
  listenAt,
  oldestOfMost,
  renewTlsServer,
} from "./tls.ts";

export interface ChannelTransportOptions {
  readonly trust: Trust;
  readonly clock: Clock;
  readonly log: TransportLog;
}

/** Properties in which transports with a control channel differ. */
interface ChannelProtocol<Own, Limits extends ChannelLimits> {
  readonly name: TransportName;
  readonly codec: Codec<Own>;
  /** ALPN protocol name in the TLS handshake. */
  readonly protocol: string;
  /** Configuration key, in `[peers]`, of the address to listen on. */
  readonly key: string;
  readonly limits: Limits;
  /** Reason to report if a peer's connection is not set up in time. */
  readonly late: string;
}

/** Payload connection to a peer, after its set-up. */
export interface Outbound<Own, Pull extends ClientPull> {
  readonly payload: ClientPayload<Own, Pull>;
  /** Maximum concurrent requests that the server permits on this connection. */
  readonly requests: number;
}

/** Maximum bytes that a control message adds to the request that it contains. */
const AROUND_BYTES = 64;

/**
 * Base class of transports that send requests over TLS 1.3, with certificates on both sides, and
 * carry payload in another way. Authorizes and limits connections in both directions, and ends
 * those whose peer is not authorized any more.
 */
export abstract class ChannelTransport<
  Own extends OwnMessage,
  Limits extends ChannelLimits,
  Asked extends ClientPull,
  Served extends ServedPull,
> implements Transport
{
  readonly name: TransportName;
  abstract readonly capabilities: TransportCapabilities;
  unsupported: string | null = null;
  protected readonly limits: Limits;
  protected readonly clock: Clock;
  readonly #options: ChannelTransportOptions;
  readonly #protocol: ChannelProtocol<Own, Limits>;
  readonly #inbound = new Map<ServerConnection<Own, Served>, Disposable>();
  readonly #outbound = new Set<ClientConnection<Own, Asked>>();
  /** Connections of peers whose certificate has not been verified yet. */
  readonly #handshaking = new Set<Socket>();
  readonly #trusted: TrustedConnections;
  #isRegistered = false;
  #tls: Server | null = null;
  readonly #requests: RequestLimit;
  /** Resolves when the transport has been closed. Null while it is open. */
  #closed: Promise<void> | null = null;

  constructor(options: ChannelTransportOptions, protocol: ChannelProtocol<Own, Limits>) {
    const { trust, clock, log } = options;
    this.name = protocol.name;
    this.limits = protocol.limits;
    this.clock = clock;
    this.#options = options;
    this.#protocol = protocol;
    this.#requests = new RequestLimit(this.limits.requestsMax);
    const checkMs = this.limits.expiryCheckMs;
    this.#trusted = new TrustedConnections({ trust, clock, log, checkMs });
  }

  /**
   * Opens the devices that carry payload. Returns the reason if they are unsupported, otherwise
   * null. May throw NativeError.
   */
  protected abstract openPayload(region: Region): string | null;
  /**
   * Prepares to carry payload for peers' connections. `address`: IP address on which the control
   * channel listens.
   */
  protected listenPayload(_address: string): void {}
  /** Creates the payload part of a connection that a peer has opened. */
  protected abstract serverPayload(
    context: ConnectionContext<Own, Served>,
  ): ServerPayload<Own, Served>;
  /** Returns why no peer can be reached now. Null if peers can be reached. */
  protected whyNoDial(): string | null {
    return null;
  }
  /**
   * Exchanges hellos with a peer that this host dialled, and sets up the payload part of the
   * connection.
   */
  protected abstract clientPayload(dialling: Dialling<Own>): Promise<Step<Outbound<Own, Asked>>>;
  protected abstract closePayload(): Promise<void>;

  get inboundConnections(): number {
    return this.#inbound.size;
  }

  async register(region: Region): Promise<void> {
    assert(!this.#isRegistered, "a region is registered once");
    this.#isRegistered = true;
    try {
      this.unsupported = this.openPayload(region);
    } catch (thrown) {
      if (!(thrown instanceof NativeError)) throw thrown;
      this.unsupported = thrown.text;
    }
  }

  get #whyUnusable(): string | null {
    return this.#isRegistered ? this.unsupported : "no region is registered";
  }

  async listen(endpoint: Endpoint, server: PeerServer): Promise<Endpoint> {
    const unusable = this.#whyUnusable;
    if (unusable !== null) throw new HearthError("UNSUPPORTED", unusable);
    assert(this.#tls === null, "a transport listens once");
    const { protocol, key } = this.#protocol;
    const tls = createTlsServer(this.#options.trust, protocol, this.limits.handshakeMs);
    this.#tls = tls;
    // The endpoint's host may be a name, but the native library needs an IP address.
    const { address, port } = await listenAt(tls, endpoint, key);
    this.listenPayload(address);
    const { clock, log } = this.#options;
    const host = { server, clock, log, limits: this.limits, requests: this.#requests };
    tls.on("connection", (socket) => this.#startHandshake(socket));
    tls.on("tlsClientError", (error, socket) => {
      log("warn", "peer refused", { from: addressOf(socket), why: error.message });
      socket.destroy();
    });
    tls.on("secureConnection", (socket) => {
      this.#handshaking.delete(socket);
      this.#accept(socket, host);
    });
    return { host: endpoint.host, port };
  }

  #startHandshake(socket: Socket): void {
    loopTurns.touch();
    if (this.#handshaking.size >= this.limits.handshakesMax) {
      const dropped = oldestOfMost(this.#handshaking);
      const from = addressOf(dropped);
      this.#options.log("warn", "handshake limit reached, dropping oldest connection", { from });
      this.#handshaking.delete(dropped);
      dropped.destroy();
    }
    this.#handshaking.add(socket);
    socket.once("close", () => this.#handshaking.delete(socket));
  }

  /**
   * Accepts a peer's connection after the TLS handshake. Authorizes the peer before any message is
   * read.
   */
  #accept(socket: TLSSocket, host: ConnectionHost): void {
    const { trust, clock, log } = this.#options;
    const { codec, protocol, late } = this.#protocol;
    socket.setNoDelay(true);
    const authorized = identify(socket, trust, protocol, null);
    const channel = new ControlChannel(socket, {
      clock,
      codec,
      unreadBytesMax: this.limits.unreadBytesMax,
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
    const connection = new ServerConnection<Own, Served>({
      peer: identity,
      channel,
      host,
      late,
      payload: (context) => this.serverPayload(context),
      onOver: () => {
        this.#inbound.get(connection)?.[Symbol.dispose]();
        this.#inbound.delete(connection);
      },
    });
    const refuse = (why: string) => connection.end("refused", why);
    this.#inbound.set(connection, this.#trusted.watch({ identity, der, dialled: null, refuse }));
    channel.handTo(connection);
  }

  #whyNoMore(worker: WorkerId): string | null {
    if (this.#closed !== null) return "the agent is shutting down";
    const { linksMax, workerLinksMax } = this.limits;
    if (this.#inbound.size >= linksMax) return `connection limit reached: ${linksMax} connections`;
    const own = [...this.#inbound.keys()].filter((connection) => connection.peer.worker === worker);
    return own.length < workerLinksMax
      ? null
      : `connection limit reached: ${worker} has ${workerLinksMax} connections`;
  }

  async dial(target: DialTarget, signal: AbortSignal): Promise<Dialled> {
    if (this.#closed !== null)
      return { ok: false, fault: { kind: "closed", why: "the transport is closed" } };
    const unusable = this.#whyUnusable;
    if (unusable !== null) return { ok: false, fault: { kind: "unsupported", why: unusable } };
    const unreachable = this.whyNoDial();
    if (unreachable !== null)
      return { ok: false, fault: { kind: "unreachable", why: unreachable } };
    const { trust, clock } = this.#options;
    const { limits, name: transport } = this;
    const dialled = await dialChannel(target, { trust, clock, ...this.#protocol }, signal);
    if (!dialled.ok) return dialled;
    const { dialling, identity, der } = dialled.value;
    const ready = await this.clientPayload(dialling);
    if (!ready.ok) return dialling.giveUp(ready.fault);
    const { channel, rttMs } = dialling;
    const options = { transport, identity, channel, clock, limits, rttMs, ...ready.value };
    const connection = new ClientConnection<Own, Asked>(options);
    dialling.handTo(connection);
    return await this.#adopt(connection, der, target.worker);
  }

  /** Adds a connection to a peer to those that are watched for changes of trust, until it ends. */
  async #adopt(
    connection: ClientConnection<Own, Asked>,
    der: Uint8Array,
    dialled: WorkerId,
  ): Promise<Dialled> {
    const { identity } = connection;
    const refuse = (why: string) => connection.end("refused", why);
    const trusted = this.#trusted.watch({ identity, der, dialled, refuse });
    this.#outbound.add(connection);
    void connection.ended.then(() => {
      this.#outbound.delete(connection);
      trusted[Symbol.dispose]();
    });
    // This host's credentials may have changed while the connection was set up.
    const authorized = this.#options.trust.authorize(der, dialled);
    if (!authorized.ok) refuse(authorized.why);
    if (this.#closed !== null) await connection[Symbol.asyncDispose]();
    return connection.fault === null
      ? { ok: true, connection }
      : { ok: false, fault: connection.fault };
  }

  async reload(): Promise<void> {
    this.#trusted.authorize();
    if (this.#tls !== null) renewTlsServer(this.#tls, this.#options.trust);
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  /**
   * Closes the transport. Resolves when no connection writes to memory or holds slot references.
   */
  async #close(): Promise<void> {
    this.#tls?.close();
    const outbound = [...this.#outbound];
    const inbound = [...this.#inbound.keys()];
    for (const connection of inbound) connection.end("closed", "the agent is shutting down");
    await Promise.all(outbound.map((connection) => connection[Symbol.asyncDispose]()));
    await Promise.all(inbound.map((connection) => connection.torn));
    await this.closePayload();
  }
}
