import { toHex } from "../core/index.ts";
import {
  blockChainOf,
  decodeManifest,
  type Hashing,
  isMacKeyId,
  macKeyIdOf,
  namespaceKey,
} from "../identity/index.ts";
import type { BlockStore, Namespaces } from "../store/index.ts";
import {
  type Connection,
  ConnectionNamespaces,
  type FrameHandler,
  type FrameWork,
  isWork,
} from "./connection.ts";
import type { FrameCounts } from "./frame-counts.ts";
import type { GpuPlane } from "./gpu-copies.ts";
import type { GpuWarming } from "./gpu-warming.ts";
import { createHandlers, type HandlerContext } from "./handlers.ts";
import {
  CHECKSUM_XXH3_64,
  decodeHelloRequest,
  encodeHelloReply,
  Feature,
  FrameStatus,
  type HelloRequest,
  Op,
  PROTOCOL_VERSION,
  type Refusal,
  refusal,
} from "./protocol/index.ts";
import type { EngineLimits } from "./server-options.ts";

export interface GreetingContext {
  readonly store: BlockStore;
  readonly namespaces: Namespaces;
  readonly hashing: Hashing;
  readonly limits: EngineLimits;
  readonly incarnation: bigint;
  readonly gpu: GpuPlane;
  readonly warm: GpuWarming;
  draining(): boolean;
  /**
   * Sends the connection's pending output together with a descriptor. Returns the bytes sent, or
   * null.
   */
  sendFd(connection: Connection, fd: number): number | null;
  log(level: "info" | "warn" | "error", text: string, fields?: Record<string, unknown>): void;
}

/** Handles the first frame of a connection: client, namespace, and the descriptor of the arena. */
function createGreeting(context: GreetingContext): FrameHandler {
  return (connection, frame) => {
    if (frame.op !== Op.hello) {
      return refusal(FrameStatus.notGreeted, "the first frame of a connection must be HELLO");
    }
    if (connection.greeted !== null) {
      return refusal(FrameStatus.malformed, "HELLO was already sent: open another connection");
    }
    const hello = decodeHelloRequest(frame);
    if (!hello.ok) return hello.refusal;
    if (context.draining()) {
      return refusal(FrameStatus.draining, "the agent is stopping: connect again later", true);
    }
    const refused = admit(context, connection, hello.value);
    if (refused !== null) return refused;
    return answer(context, connection, frame.requestId);
  };
}

const NOT_KEYED =
  "the manifest names a MAC key: set its identifier and request feature bit 4 in HELLO";

function admit(
  context: GreetingContext,
  connection: Connection,
  hello: HelloRequest,
): Refusal | null {
  const decoded = decodeManifest(hello.manifest);
  if (!decoded.ok) return refusal(FrameStatus.manifestRefused, decoded.why);
  const key = namespaceKey(context.hashing, decoded.manifest);
  const namespace = context.namespaces.indexOf(key);
  if (namespace === null) {
    return refusal(
      FrameStatus.manifestRefused,
      "namespace limit of this agent reached: restart it",
    );
  }
  const { manifest } = decoded;
  const { model, blockTokens } = manifest;
  const macKeyId = macKeyIdOf(manifest);
  if (macKeyId !== null) {
    if ((hello.features & Feature.mac) === 0 || !isMacKeyId(macKeyId)) {
      return refusal(FrameStatus.manifestRefused, NOT_KEYED);
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
      hello.features & (context.gpu.features | Feature.engine | Feature.mac | Feature.report),
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
  context: GreetingContext,
  connection: Connection,
  requestId: number,
): Refusal | null {
  const { limits, store } = context;
  const greeted = connection.greeted!;
  encodeHelloReply(connection.output, requestId, {
    version: PROTOCOL_VERSION,
    checksumAlgorithm: CHECKSUM_XXH3_64,
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
  // The socket is new, so its buffer has room. A client that cannot receive 112 bytes has
  // disconnected.
  const sent = context.sendFd(connection, store.arena.fd);
  if (sent === null) connection.close();
  else connection.sent(sent);
  return null;
}

export interface FrameHandlerContext extends GreetingContext, HandlerContext {
  readonly frames: FrameCounts;
}

/** Handles every frame of a connection, starting with HELLO. */
export function createFrameHandler(context: FrameHandlerContext): FrameHandler {
  const greet = createGreeting(context);
  const handle = createHandlers(context);
  return (connection, frame) => {
    const { greeted } = connection;
    const answered =
      greeted === null || frame.op === Op.hello
        ? greet(connection, frame)
        : handle(connection, frame, greeted.holder);
    if (isWork(answered)) return counted(context.frames, frame.op, answered);
    context.frames.add(frame.op, answered?.status ?? FrameStatus.ok);
    return answered;
  };
}

function* counted(
  frames: FrameCounts,
  op: number,
  work: FrameWork,
): Generator<void, Refusal | null> {
  for (let piece = work.next(); ; piece = work.next()) {
    if (piece.done !== true) {
      yield;
      continue;
    }
    frames.add(op, piece.value?.status ?? FrameStatus.ok);
    return piece.value;
  }
}
