import { AckPolicy, DeliverPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { Objm } from "@nats-io/obj";
import {
  type ConnectionOptions,
  headers,
  type MsgHdrs,
  type NatsConnection,
  NatsConnectionImpl,
  setTransportFactory,
} from "@nats-io/transport-node";
import { NodeTransport, nodeResolveHost } from "@nats-io/transport-node/lib/node_transport.js";
import * as wsClient from "nats.ws";
import { type Clock, HearthError, loopTurns } from "../core/index.ts";
import type { DurablePublishOptions } from "./bus.ts";
import type { BrokerConnection, ClientHeaders, ClientJetStream } from "./connection.ts";
import { ClientConnection, withHeaders } from "./nats-connection.ts";
import { type Credentials, proofOf, type TlsMaterial } from "./nats-credentials.ts";
import { explainFault, natsVersionIn, reach } from "./nats-probe.ts";
import type { Server } from "./open-bus.ts";

/**
 * Bytes that the client library parses in one turn of the event loop: about 0.5 ms at 40 bytes per
 * message.
 */
const PIECE_BYTES = 4 * 1024;
/** Maximum bytes of received data that wait to be parsed. Above it, the socket is paused. */
const UNREAD_BYTES_MAX = 256 * 1024;

/**
 * The library's transport with one change: it parses received data in slices. The library itself
 * parses a whole read, up to thousands of messages, in one turn of the event loop.
 */
class SlicedTransport extends NodeTransport {
  readonly #source = loopTurns.source();
  #unreadBytes = 0;

  override setupHandlers(): void {
    super.setupHandlers();
    this.socket.on("data", (chunk: Uint8Array) => {
      this.#unreadBytes += chunk.length;
      if (this.#unreadBytes >= UNREAD_BYTES_MAX) this.socket.pause();
    });
  }

  override async *iterate(): AsyncIterableIterator<Uint8Array> {
    for await (const chunk of super.iterate()) {
      if (!this.#source.begin()) await this.#source.turn();
      for (let at = 0; at < chunk.length && !this.done; at += PIECE_BYTES) {
        yield chunk.subarray(at, at + PIECE_BYTES);
        if (!this.#source.goOn()) await this.#source.turn();
      }
      this.#unreadBytes = Math.max(0, this.#unreadBytes - chunk.length);
      // Contrary to its type, `socket` is undefined after the connection has ended.
      if (this.#unreadBytes < UNREAD_BYTES_MAX && !this.done) this.socket?.resume();
    }
  }
}

/**
 * Connects with the library's `connect`, over a transport that shares the event loop with other
 * work.
 */
function connectSliced(options: ConnectionOptions): Promise<NatsConnection> {
  setTransportFactory({ factory: () => new SlicedTransport(), dnsResolveFn: nodeResolveHost });
  return NatsConnectionImpl.connect(options);
}

export interface DialOptions {
  /** Name of this client in the broker's connection list. */
  readonly name: string;
  /** Prefix of the reply subjects of JetStream requests that the library itself sends. */
  readonly inboxPrefix: string;
  readonly server: Server;
  readonly credentials: Credentials;
  readonly tls: TlsMaterial;
  readonly timeoutMs: number;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /**
   * Reports a server error, after the connection was made, that ends neither the connection nor a
   * subscription.
   */
  complain(why: string): void;
}

export interface Dialled {
  readonly connection: BrokerConnection;
  /** Addresses (`host:port`) of the other servers of the cluster, as this server reports them. */
  readonly others: readonly string[];
}

/** Connects over TCP. Uses TLS if the URL, a certificate file or the server requires it. */
export async function dialTcp(options: DialOptions): Promise<Dialled> {
  const { server, timeoutMs } = options;
  await mustAnswer(options, true);
  const hasTls = server.tls || Object.keys(options.tls).length > 0;
  const client = await connectSliced({
    servers: server.url.replace(/^[a-z]+:\/\//, ""),
    name: options.name,
    inboxPrefix: options.inboxPrefix,
    timeout: timeoutMs,
    reconnect: false,
    noAsyncTraces: true,
    // Disables the library's own liveness check; the bus checks liveness on its own clock.
    pingInterval: 2 ** 30,
    authenticator: (nonce) => proofOf(options.credentials, nonce),
    ...(hasTls ? { tls: { ...options.tls } } : {}),
  }).catch((thrown) => {
    throw new HearthError("DEADLINE", explainFault(thrown, options), { cause: thrown });
  });
  const connection = new ClientConnection<MsgHdrs>({
    client,
    server: server.url,
    newHeaders: () => headers(),
    complain: options.complain,
    durable: tcpDurableOf(client),
    explain: (thrown) => explainFault(thrown, options),
  });
  return { connection, others: client.info?.connect_urls ?? [] };
}

/**
 * Connects to the address and throws unless a NATS server replies. Without this check, the client
 * libraries leak a socket for each failed attempt, and report less about the cause.
 */
async function mustAnswer(options: DialOptions, greets: boolean): Promise<void> {
  const { server, clock, timeoutMs, signal } = options;
  const { host, port } = server;
  const reached = await reach({ host, port, greets }, clock, timeoutMs, signal);
  const refuse = (why: string) => new HearthError("DEADLINE", `${server.url}: ${why}`);
  switch (reached.kind) {
    case "connected":
      return;
    case "greeted":
      if (natsVersionIn(reached.greeting) !== null) return;
      throw refuse("the server does not speak NATS");
    case "silent":
      throw refuse("the server accepts connections but sends no greeting");
    case "failed":
      throw refuse(reached.why);
    default:
      reached satisfies never;
  }
}

/** Returns the publish options, in the form that both libraries accept. */
function publishOptions<Headers extends ClientHeaders>(
  { id, timeoutMs, headers = {} }: DurablePublishOptions,
  empty: Headers,
) {
  const options = { msgID: id, timeout: timeoutMs };
  const hasHeaders = Object.keys(headers).length > 0;
  return hasHeaders ? { ...options, headers: withHeaders(empty, headers) } : options;
}

function tcpDurableOf(client: NatsConnection): ClientJetStream {
  return {
    publish: (subject, data, options) =>
      jetstream(client).publish(subject, data, publishOptions(options, headers())),
    async addConsumer(stream, settings) {
      const manager = await jetstreamManager(client, { checkAPI: false });
      const { Explicit } = AckPolicy;
      const policies = { ack_policy: Explicit, deliver_policy: DeliverPolicy.All };
      await manager.consumers.add(stream, { ...settings, ...policies });
    },
    async messages(stream, consumer, options) {
      return (await jetstream(client).consumers.get(stream, consumer)).consume(options);
    },
    bucket: (name) => new Kvm(client).open(name),
    objects: (bucket) => new Objm(client).open(bucket),
    async purge(stream, options) {
      const manager = await jetstreamManager(client, { checkAPI: false });
      await manager.streams.purge(stream, options);
    },
  };
}

/** Options with `wsFactory`, which opens the socket; nats.ws accepts it but does not declare it. */
interface WsOptions extends wsClient.ConnectionOptions {
  wsFactory(url: string): Promise<{ socket: WebSocket; encrypted: boolean }>;
}

/**
 * Connects over WebSocket. Opens the socket itself, because the library supports neither a private
 * certificate authority nor a client certificate, gives no reason for a failure, and cannot close a
 * hung socket.
 */
export async function dialWs(options: DialOptions): Promise<Dialled> {
  const { server } = options;
  await mustAnswer(options, false);
  let socket: WebSocket | null = null;
  let reason = "";
  const cut = () => socket?.terminate();
  const settings: WsOptions = {
    servers: server.url,
    name: options.name,
    inboxPrefix: options.inboxPrefix,
    timeout: options.timeoutMs,
    reconnect: false,
    noAsyncTraces: true,
    // Disables the library's own liveness check; the bus checks liveness on its own clock.
    pingInterval: 2 ** 30,
    authenticator: (nonce) => proofOf(options.credentials, nonce),
    async wsFactory() {
      socket = new WebSocket(server.url, server.tls ? { tls: { ...options.tls } } : {});
      socket.addEventListener("error", (event) => {
        reason = "message" in event ? String(event.message) : "";
      });
      socket.addEventListener("close", (event) => {
        reason = event.reason === "" ? reason : event.reason;
      });
      return { socket, encrypted: server.tls };
    },
  };
  const explain = (thrown: unknown) => explainFault(thrown, options, reason);
  const client = await wsClient.connect(settings).catch((thrown) => {
    cut();
    throw new HearthError("DEADLINE", explain(thrown), { cause: thrown });
  });
  const connection = new ClientConnection<wsClient.MsgHdrs>({
    client,
    server: server.url,
    newHeaders: () => wsClient.headers(),
    complain: options.complain,
    durable: wsDurableOf(client),
    explain,
    cut,
  });
  return { connection, others: client.info?.connect_urls ?? [] };
}

function wsDurableOf(client: wsClient.NatsConnection): ClientJetStream {
  return {
    publish: (subject, data, options) =>
      client.jetstream().publish(subject, data, publishOptions(options, wsClient.headers())),
    async addConsumer(stream, settings) {
      const manager = await client.jetstreamManager({ checkAPI: false });
      const { Explicit } = wsClient.AckPolicy;
      const policies = { ack_policy: Explicit, deliver_policy: wsClient.DeliverPolicy.All };
      await manager.consumers.add(stream, { ...settings, ...policies });
    },
    async messages(stream, consumer, options) {
      return (await client.jetstream().consumers.get(stream, consumer)).consume(options);
    },
    bucket: (name) => client.jetstream().views.kv(name, { bindOnly: true }),
    async objects(bucket) {
      const manager = await client.jetstreamManager({ checkAPI: false });
      // Fails if the bucket does not exist; the library would create it.
      await manager.streams.info(`OBJ_${bucket}`);
      return client.jetstream().views.os(bucket);
    },
    async purge(stream, options) {
      const manager = await client.jetstreamManager({ checkAPI: false });
      await manager.streams.purge(stream, options);
    },
  };
}
