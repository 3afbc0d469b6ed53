import { toHex } from "../core/index.ts";
import {
  blockChainOf,
  decodeManifest,
  isMacKeyId,
  macKeyIdOf,
  namespaceKey,
} from "../identity/index.ts";
import {
  type Connection,
  ConnectionNamespaces,
  type EngineContext,
  type FrameHandler,
} from "./connection.ts";
import * as protocol from "./protocol/index.ts";

/**
 * Creates the handler of HELLO, the first frame of a connection. HELLO names the client and its
 * namespace; the reply carries the file descriptor of the arena.
 */
export function createGreeting(context: EngineContext): FrameHandler {
  return (connection, frame) => {
    if (frame.op !== protocol.Op.hello) {
      return protocol.refusal(
        protocol.FrameStatus.notGreeted,
        "the first frame of a connection must be HELLO",
      );
    }
    if (connection.greeted !== null) {
      return protocol.refusal(
        protocol.FrameStatus.malformed,
        "HELLO was already sent: open another connection",
      );
    }
    const hello = protocol.decodeHelloRequest(frame);
    if (!hello.ok) return hello.refusal;
    if (context.draining()) {
      return protocol.refusal(
        protocol.FrameStatus.draining,
        "the agent is stopping: connect again later",
        true,
      );
    }
    const refused = admit(context, connection, hello.value);
    if (refused !== null) return refused;
    return answer(context, connection, frame.requestId);
  };
}

const NOT_KEYED =
  "the manifest names a MAC key: set its identifier and request feature bit 4 in HELLO";

function admit(
  context: EngineContext,
  connection: Connection,
  hello: protocol.HelloRequest,
): protocol.Refusal | null {
  const decoded = decodeManifest(hello.manifest);
  if (!decoded.ok) return protocol.refusal(protocol.FrameStatus.manifestRefused, decoded.why);
  const key = namespaceKey(context.hashing, decoded.manifest);
  const namespace = context.namespaces.indexOf(key);
  if (namespace === null) {
    return protocol.refusal(
      protocol.FrameStatus.manifestRefused,
      "namespace limit of this agent reached: restart it",
    );
  }
  const { manifest } = decoded;
  const { model, blockTokens } = manifest;
  const macKeyId = macKeyIdOf(manifest);
  if (macKeyId !== null) {
    if ((hello.features & protocol.Feature.mac) === 0 || !isMacKeyId(macKeyId)) {
      return protocol.refusal(protocol.FrameStatus.manifestRefused, NOT_KEYED);
    }
    context.namespaces.setMacKeyId(namespace, macKeyId);
  }
  const chain = blockChainOf(manifest);
  context.namespaces.describe(namespace, { model, blockTokens, chain });
  const { handlesMax } = context.limits;
  const share = connection.share === null ? {} : { share: connection.share };
  connection.greeted = {
    name: hello.name,
    namespace,
    namespaceKey: key,
    features:
      hello.features &
      (context.gpu.features |
        protocol.Feature.engine |
        protocol.Feature.mac |
        protocol.Feature.report),
    namespaces: new ConnectionNamespaces(context, manifest, { index: namespace, key }),
    blockTokens,
    holder: context.store.openEngineSession({ namespace, handlesMax, ...share }),
    gpu: context.gpu.open(),
    warm: context.warm.open(namespace),
  };
  const fields = { connection: connection.id, name: hello.name, namespace: toHex(key.slice(0, 8)) };
  context.log("info", "engine connected", fields);
  return null;
}

function answer(
  context: EngineContext,
  connection: Connection,
  requestId: number,
): protocol.Refusal | null {
  const { limits, store } = context;
  const greeted = connection.greeted!;
  protocol.encodeHelloReply(connection.output, requestId, {
    version: protocol.PROTOCOL_VERSION,
    checksumAlgorithm: protocol.CHECKSUM_XXH3_64,
    features: greeted.features,
    namespaceId: greeted.namespaceKey,
    incarnation: context.incarnation,
    arenaBytes: store.arena.bytes,
    arenaReadyBytes: store.arena.readyBytes(),
    blockBytesMax: store.blockBytesMax,
    frameBytesMax: limits.frameBytesMax,
    itemsMax: limits.itemsMax,
    handlesMax: limits.handlesMax,
    leaseMs: limits.leaseMs,
    blockTokens: greeted.blockTokens,
  });
  // The socket is new, so its buffer has room for the reply of 112 bytes. If it was not sent whole,
  // the client has disconnected.
  const sent = context.sendFd(connection, store.arena.fd);
  if (sent === null) connection.close();
  else connection.sent(sent);
  return null;
}
