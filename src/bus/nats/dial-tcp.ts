import { AckPolicy, DeliverPolicy, jetstream, jetstreamManager } from "@nats-io/jetstream";
import { Kvm } from "@nats-io/kv";
import { Objm } from "@nats-io/obj";
import { headers, type MsgHdrs, type NatsConnection } from "@nats-io/transport-node";
import { type Clock, HearthError } from "../../core/index.ts";
import type { Link } from "../links/index.ts";
import { ClientDurable, type ClientJetStream } from "./client-durable.ts";
import { ClientLink } from "./client-link.ts";
import { type Credentials, proofOf, type TlsMaterial } from "./credentials.ts";
import { explainFault } from "./explain.ts";
import { natsVersionIn, reach } from "./greeting.ts";
import type { Server } from "./servers.ts";
import { connectSliced } from "./sliced-transport.ts";

export interface DialOptions {
  /** Shown in the broker's own lists of connections. */
  readonly name: string;
  /** The library's own requests, to JetStream, are answered below it. */
  readonly inboxPrefix: string;
  readonly server: Server;
  readonly credentials: Credentials;
  readonly tls: TlsMaterial;
  readonly timeoutMs: number;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  /** The server complained, later on, about something that ends nothing. */
  complain(why: string): void;
}

export interface Dialled {
  readonly link: Link;
  /** `host:port` of other servers, as this one knows them. */
  readonly others: readonly string[];
}

/** Connects over TCP, with TLS where the URL, a file of ours or the server asks for it. */
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
    // Signs of life are asked for by the bus, whose clock decides.
    pingInterval: 2 ** 30,
    authenticator: (nonce) => proofOf(options.credentials, nonce),
    ...(hasTls ? { tls: { ...options.tls } } : {}),
  }).catch((thrown) => {
    throw new HearthError("DEADLINE", explainFault(thrown, options), { cause: thrown });
  });
  const link = new ClientLink<MsgHdrs>({
    client,
    server: server.url,
    newHeaders: () => headers(),
    complain: options.complain,
    durable: new ClientDurable(durableOf(client)),
    explain: (thrown) => explainFault(thrown, options),
  });
  return { link, others: client.info?.connect_urls ?? [] };
}

/**
 * Throws unless somebody answers there. The client libraries leave a socket behind for each peer
 * that does not, and have less to say about why.
 */
export async function mustAnswer(options: DialOptions, greets: boolean): Promise<void> {
  const { server, clock, timeoutMs, signal } = options;
  const { host, port } = server;
  const reached = await reach({ host, port, greets }, clock, timeoutMs, signal);
  const refuse = (why: string) => new HearthError("DEADLINE", `${server.url}: ${why}`);
  switch (reached.kind) {
    case "connected":
      return;
    case "greeted":
      if (natsVersionIn(reached.greeting) !== null) return;
      throw refuse("it answers, but not as NATS does");
    case "silent":
      throw refuse("it accepts connections and says nothing");
    case "failed":
      throw refuse(reached.why);
    default:
      reached satisfies never;
  }
}

function durableOf(client: NatsConnection): ClientJetStream<MsgHdrs> {
  return {
    newHeaders: () => headers(),
    publish: (subject, data, options) => jetstream(client).publish(subject, data, options),
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
