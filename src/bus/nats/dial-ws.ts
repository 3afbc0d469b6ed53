import {
  AckPolicy,
  type ConnectionOptions,
  connect,
  DeliverPolicy,
  headers,
  type MsgHdrs,
  type NatsConnection,
} from "nats.ws";
import { HearthError } from "../../core/index.ts";
import { ClientDurable, type ClientJetStream } from "./client-durable.ts";
import { ClientLink } from "./client-link.ts";
import { proofOf } from "./credentials.ts";
import { type Dialled, type DialOptions, mustAnswer } from "./dial-tcp.ts";
import { explainFault } from "./explain.ts";

/** What nats.ws takes beside its declared options: who opens the socket. */
interface WsOptions extends ConnectionOptions {
  wsFactory(url: string): Promise<{ socket: WebSocket; encrypted: boolean }>;
}

/**
 * Connects over WebSocket. The socket is opened here: only so a private authority, a certificate of
 * ours and the true reason of a failure can be had, and a socket that hangs be cut.
 */
export async function dialWs(options: DialOptions): Promise<Dialled> {
  const { server } = options;
  await mustAnswer(options, false);
  let socket: WebSocket | null = null;
  let reason = "";
  const cut = () => socket?.terminate();
  const connection: WsOptions = {
    servers: server.url,
    name: options.name,
    inboxPrefix: options.inboxPrefix,
    timeout: options.timeoutMs,
    reconnect: false,
    noAsyncTraces: true,
    // Signs of life are asked for by the bus, whose clock decides.
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
  const client = await connect(connection).catch((thrown) => {
    cut();
    throw new HearthError("DEADLINE", explain(thrown), { cause: thrown });
  });
  const link = new ClientLink<MsgHdrs>({
    client,
    server: server.url,
    newHeaders: () => headers(),
    complain: options.complain,
    durable: new ClientDurable(durableOf(client)),
    explain,
    cut,
  });
  return { link, others: client.info?.connect_urls ?? [] };
}

function durableOf(client: NatsConnection): ClientJetStream<MsgHdrs> {
  return {
    newHeaders: () => headers(),
    publish: (subject, data, options) => client.jetstream().publish(subject, data, options),
    async addConsumer(stream, settings) {
      const manager = await client.jetstreamManager({ checkAPI: false });
      const { Explicit } = AckPolicy;
      const policies = { ack_policy: Explicit, deliver_policy: DeliverPolicy.All };
      await manager.consumers.add(stream, { ...settings, ...policies });
    },
    async messages(stream, consumer, options) {
      return (await client.jetstream().consumers.get(stream, consumer)).consume(options);
    },
    bucket: (name) => client.jetstream().views.kv(name, { bindOnly: true }),
    async objects(bucket) {
      const manager = await client.jetstreamManager({ checkAPI: false });
      // The library would make one where there is none.
      await manager.streams.info(`OBJ_${bucket}`);
      return client.jetstream().views.os(bucket);
    },
    async purge(stream, options) {
      const manager = await client.jetstreamManager({ checkAPI: false });
      await manager.streams.purge(stream, options);
    },
  };
}
