import { DIGEST_BYTES, type NamespaceIndex } from "../core/index.ts";
import { Tier } from "../store/blocks/index.ts";
import {
  type AddressBatch,
  createAddressBatch,
  createHandleBatch,
  type EngineSession,
  type HandleBatch,
} from "../store/index.ts";
import type { SessionInfo } from "../store/pins/index.ts";
import { RememberedPrompts, wordsOf } from "./block-naming.ts";
import {
  answerLater,
  answerOne,
  answerOutcomes,
  type Connection,
  type EngineContext,
  type FrameHandler,
  type FrameWork,
  greetedOf,
  type Handler,
  type Handlers,
  isWork,
} from "./connection.ts";
import { engineHandlers, namespaceOf } from "./engine-handlers.ts";
import type { FrameCounts, LookupOutcome } from "./frame-counts.ts";
import { gpuMemoryHandlers } from "./gpu-handlers.ts";
import { createGreeting } from "./hello-handler.ts";
import * as protocol from "./protocol/index.ts";

const DRAINING = "the agent is stopping: release your slots and connect again later";

/**
 * Scratch memory that handlers fill and read before they return. Data that must live longer is
 * copied.
 */
interface Scratch {
  readonly batch: AddressBatch;
  readonly handles: HandleBatch;
  readonly best: Uint8Array;
  readonly named: protocol.DigestItems;
  readonly session: { session: bigint };
}

/** Creates the handler of all frames of a connection, HELLO included. */
export function createFrameHandler(context: EngineContext): FrameHandler {
  const greet = createGreeting(context);
  const handle = createHandlers(context);
  return (connection, frame) => {
    const { greeted } = connection;
    const answered =
      greeted === null || frame.op === protocol.Op.hello
        ? greet(connection, frame)
        : handle(connection, frame, greeted.holder);
    if (isWork(answered)) return counted(context.frames, frame.op, answered);
    context.frames.add(frame.op, answered?.status ?? protocol.FrameStatus.ok);
    return answered;
  };
}

function* counted(
  frames: FrameCounts,
  op: number,
  work: FrameWork,
): Generator<void, protocol.Refusal | null> {
  for (let piece = work.next(); ; piece = work.next()) {
    if (piece.done !== true) {
      yield;
      continue;
    }
    frames.add(op, piece.value?.status ?? protocol.FrameStatus.ok);
    return piece.value;
  }
}

/**
 * Creates the handlers of the operations after HELLO. All connections share their scratch memory.
 */
function createHandlers(context: EngineContext): Handler {
  const { itemsMax, frameBytesMax } = context.limits;
  const scratch: Scratch = {
    batch: createAddressBatch(itemsMax),
    handles: createHandleBatch(itemsMax),
    best: new Uint8Array(itemsMax),
    named: { count: 0, layer: 0, digests: new Uint8Array(new ArrayBuffer(frameBytesMax)) },
    session: { session: 0n },
  };
  const prompts = new RememberedPrompts();
  const table: Handlers = {
    ...gpuMemoryHandlers(context),
    ...lookupHandlers(context, scratch, prompts),
    ...slotHandlers(context, scratch),
    ...gpuHandlers(context, scratch),
    ...sessionHandlers(context, scratch),
  };
  const ofEngines: Handlers = engineHandlers(context, scratch, prompts);
  return (connection, frame, holder) => {
    const handler = table[frame.op] ?? (isEngine(connection) ? ofEngines[frame.op] : undefined);
    if (handler !== undefined) return handler(connection, frame, holder);
    return protocol.refusal(protocol.FrameStatus.unknownOp, `unknown operation ${frame.op}`);
  };
}

/** Returns true if the connection requested the engine operations in its HELLO. */
function isEngine(connection: Connection): boolean {
  return (greetedOf(connection).features & protocol.Feature.engine) !== 0;
}

/** Returns true if blocks on this connection carry MACs. */
function hasMacs(connection: Connection): boolean {
  return (greetedOf(connection).features & protocol.Feature.mac) !== 0;
}

/**
 * Returns the namespace of a handle, or why the frame is refused. Without `Feature.engine` the
 * handle field is reserved and must be 0.
 */
function indexOf(connection: Connection, handle: number): NamespaceIndex | protocol.Refusal {
  if (handle !== 0 && !isEngine(connection)) {
    return protocol.refusal(
      protocol.FrameStatus.malformed,
      "reserved fields must be zero: HELLO did not request feature bit 2",
    );
  }
  const ref = namespaceOf(connection, handle);
  return "fatal" in ref ? ref : ref.index;
}

function lookupHandlers(
  { store, digests, limits }: EngineContext,
  scratch: Scratch,
  prompts: RememberedPrompts,
): Handlers {
  const { batch, best, named } = scratch;
  const matching = { tiers: 0 };
  const identify = protocol.emptyIdentifyRequest();
  return {
    [protocol.Op.ping]: (connection, frame) => {
      const bad = protocol.checkPing(frame);
      if (bad === null && protocol.wantsReply(frame))
        protocol.encodePingReply(connection.output, frame);
      return bad;
    },
    [protocol.Op.identify]: (connection, frame, holder) => {
      const { namespace, namespaceKey, blockTokens } = greetedOf(connection);
      const bad = protocol.decodeIdentifyRequest(
        frame,
        blockTokens,
        limits.frameBytesMax,
        identify,
      );
      if (bad !== null) return bad;
      const { kind, count, layer } = identify;
      if (kind === protocol.IdentifyKind.engineHashes) {
        holder.resolve(identify.items, count, layer, named.digests);
      } else if (kind !== protocol.IdentifyKind.tokens) {
        if (kind === protocol.IdentifyKind.shortKeys && !isEngine(connection)) {
          return protocol.refusal(
            protocol.FrameStatus.malformed,
            "identify: kind 3 requires feature bit 2 in HELLO",
          );
        }
        digests.chainDigests(
          namespaceKey,
          identify.items,
          protocol.IDENTIFY_ITEM_BYTES[kind],
          named.digests,
        );
      } else {
        const tokens = wordsOf(identify.items);
        const blocks = digests.prefixDigests(namespaceKey, tokens, blockTokens, named.digests);
        // Remembers the prompt, because a later LOOKUP may continue it.
        if (isEngine(connection)) {
          const all = named.digests.subarray(0, blocks * DIGEST_BYTES);
          prompts.add(namespace, { tokens, media: [] }, all);
        }
      }
      named.count = protocol.identifyDigests(kind, count, blockTokens);
      protocol.encodeIdentifyReply(connection.output, frame.requestId, named);
      return null;
    },
    [protocol.Op.match]: (connection, frame, holder) => {
      const bad = protocol.decodeMatchRequest(frame, matching, batch);
      if (bad !== null) return bad;
      store.deriveKeys(batch, false);
      const leading = holder.match(batch, matching.tiers, best);
      protocol.encodeMatchReply(connection.output, frame.requestId, batch.count, leading, best);
      return null;
    },
  };
}

function slotHandlers(context: EngineContext, scratch: Scratch): Handlers {
  const { store, limits } = context;
  // A reservation's session id only attributes the slots to a session in reports.
  const { batch, handles } = scratch;
  const reserving = { session: 0n, namespace: 0 };
  const asked = { tiers: 0, deadlineMs: 0, stopAtMiss: false, namespace: 0 };
  return {
    [protocol.Op.reserve]: (connection, frame, holder) => {
      if (context.draining()) return protocol.refusal(protocol.FrameStatus.draining, DRAINING);
      const bad = protocol.decodeReserveRequest(frame, reserving, batch);
      if (bad !== null) return bad;
      const namespace = indexOf(connection, reserving.namespace);
      if (typeof namespace !== "number") return namespace;
      store.deriveKeys(batch, true);
      holder.reserve(batch, handles, namespace);
      protocol.encodeReserveReply(connection.output, frame.requestId, handles);
      return null;
    },
    [protocol.Op.commit]: (connection, frame, holder) => commit(context, connection, frame, holder),
    [protocol.Op.abort]: (connection, frame, holder) => {
      const bad = protocol.decodeHandlesRequest(frame, handles);
      if (bad !== null) return bad;
      holder.abort(handles);
      answerOutcomes(connection, frame, handles);
      return null;
    },
    [protocol.Op.acquire]: (connection, frame, holder) => {
      if (context.draining()) return protocol.refusal(protocol.FrameStatus.draining, DRAINING);
      const bad = protocol.decodeAcquireRequest(frame, asked, batch);
      if (bad !== null) return bad;
      const namespace = indexOf(connection, asked.namespace);
      if (typeof namespace !== "number") return namespace;
      const deadlineMs = asked.deadlineMs || limits.acquireMs;
      const startMs = context.nowMs();
      const { requestId } = frame;
      const { encode } = hasMacs(connection)
        ? protocol.acquireReplyWithMacs
        : protocol.acquireReply;
      const answer = (tier: "ram" | "ssd" | "peer", granted: HandleBatch) => {
        context.lookedUp(tier, lookupOutcome(granted), (context.nowMs() - startMs) / 1_000);
        encode(connection.output, requestId, granted);
      };
      store.deriveKeys(batch, false);
      const later = holder.acquire(batch, { ...asked, deadlineMs, namespace }, handles);
      if (later === null) answer("ram", handles);
      else
        answerLater(
          context,
          connection,
          later.then((out) => answer(out.waitedFor === Tier.peer ? "peer" : "ssd", out)),
        );
      return null;
    },
    [protocol.Op.release]: (connection, frame, holder) => {
      const bad = protocol.decodeHandlesRequest(frame, handles);
      if (bad !== null) return bad;
      holder.release(handles);
      answerOutcomes(connection, frame, handles);
      return null;
    },
    [protocol.Op.report]: (connection, frame, holder) => report(context, connection, frame, holder),
  };
}

function gpuHandlers({ store, limits }: EngineContext, { batch, handles }: Scratch): Handlers {
  const aliases = new Uint8Array(limits.itemsMax * protocol.ALIAS_BYTES);
  const aliased = { ...batch, aliases };
  const aliasing = { kind: protocol.AliasKind.engineHash as protocol.AliasKind };
  return {
    [protocol.Op.gpuStored]: (connection, frame, holder) => {
      const bad = protocol.decodeGpuStoredRequest(frame, batch);
      if (bad !== null) return bad;
      store.deriveKeys(batch, true);
      holder.gpuStored(batch, handles);
      answerOutcomes(connection, frame, handles);
      return null;
    },
    [protocol.Op.gpuEvicted]: (connection, frame, holder) => {
      const bad = protocol.decodeGpuEvictedRequest(frame, batch);
      if (bad !== null) return bad;
      store.deriveKeys(batch, false);
      holder.gpuEvicted(batch, handles);
      answerOutcomes(connection, frame, handles);
      return null;
    },
    [protocol.Op.alias]: (connection, frame, holder) => {
      const bad = protocol.decodeAliasRequest(frame, aliasing, aliased);
      if (bad !== null) return bad;
      [batch.count, batch.layer] = [aliased.count, aliased.layer];
      store.deriveKeys(batch, false);
      holder.alias(batch, aliases, aliasing.kind === protocol.AliasKind.sha256, handles);
      answerOutcomes(connection, frame, handles);
      return null;
    },
  };
}

/** Returns whether all, some or none of the request's blocks were found. */
function lookupOutcome({ count, outcome }: HandleBatch): LookupOutcome {
  let found = 0;
  for (let i = 0; i < count; i++) if (outcome[i] === protocol.Outcome.ok) found++;
  if (found === 0) return "miss";
  return found === count ? "hit" : "partial";
}

function commit(
  context: EngineContext,
  connection: Connection,
  frame: protocol.Frame,
  holder: EngineSession,
): protocol.Refusal | null {
  const written = batchFor(context, frame);
  const { decode } = hasMacs(connection) ? protocol.commitRequestWithMacs : protocol.commitRequest;
  const bad = decode(frame, written);
  if (bad !== null) return bad;
  answerOnce(context, connection, frame, protocol.Op.commit, written, holder.commit(written));
  return null;
}

function report(
  context: EngineContext,
  connection: Connection,
  frame: protocol.Frame,
  holder: EngineSession,
): protocol.Refusal | null {
  const read = batchFor(context, frame);
  const bad = protocol.decodeHandlesRequest(frame, read);
  if (bad !== null) return bad;
  answerOnce(context, connection, frame, protocol.Op.report, read, holder.report(read));
  return null;
}

/**
 * Returns a batch for the frame's handles. Another thread hashes the blocks, so the batch must
 * outlive the frame and cannot be scratch memory.
 */
function batchFor({ limits }: EngineContext, { count }: protocol.Frame): HandleBatch {
  return createHandleBatch(Math.max(1, Math.min(count, limits.itemsMax)));
}

/** Replies with the outcomes in `handles`: once `later` resolves, or now if `later` is null. */
function answerOnce(
  context: EngineContext,
  connection: Connection,
  frame: protocol.Frame,
  op: typeof protocol.Op.commit | typeof protocol.Op.report,
  handles: HandleBatch,
  later: Promise<void> | null,
): void {
  const { requestId } = frame;
  const reply = protocol.wantsReply(frame);
  const answer = () => {
    if (reply) protocol.encodeOutcomesReply(connection.output, op, requestId, handles);
  };
  if (later === null) answer();
  else answerLater(context, connection, later.then(answer));
}

/** Creates the handlers of session requests. */
function sessionHandlers(
  { store, limits }: EngineContext,
  { batch, handles, session }: Scratch,
): Handlers {
  const listing = { session: 0n, after: 0, max: 0 };
  const listMax = protocol.sessionsInFrame(limits.frameBytesMax);
  return {
    [protocol.Op.sessionCommit]: (connection, frame, holder) => {
      const bad = protocol.decodeSessionCommitRequest(frame, session, batch);
      if (bad !== null) return bad;
      store.deriveKeys(batch, false);
      answerOne(connection, frame, handles, holder.sessionCommit(session.session, batch));
      return null;
    },
    [protocol.Op.sessionRelease]: (connection, frame, holder) => {
      const bad = protocol.sessionRequests[protocol.Op.sessionRelease].fill(frame, session);
      if (bad !== null) return bad;
      answerOne(connection, frame, handles, holder.sessionRelease(session.session));
      return null;
    },
    [protocol.Op.sessionStatus]: (connection, frame, holder) => {
      const bad = protocol.sessionRequests[protocol.Op.sessionStatus].fill(frame, session);
      if (bad !== null) return bad;
      const status = holder.sessionStatus(session.session);
      protocol.encodeSessionStatusReply(connection.output, frame.requestId, {
        outcome: status.known ? protocol.Outcome.ok : protocol.Outcome.miss,
        blocks: status.blocks,
        tokens: status.blocks * greetedOf(connection).blockTokens,
        bytes: status.bytes,
      });
      return null;
    },
    [protocol.Op.sessionList]: (connection, frame, holder) => {
      const bad = protocol.decodeSessionListRequest(frame, listing);
      if (bad !== null) return bad;
      const { session: only, after, max } = listing;
      const page = holder.sessionList(only, after, Math.min(max || listMax, listMax));
      protocol.encodeSessionListReply(connection.output, frame.requestId, {
        next: page.next ?? 0,
        sessions: page.sessions.map(sessionItemOf),
      });
      return null;
    },
  };
}

function sessionItemOf({
  session,
  idleMs,
  state: { ram, ssd },
}: SessionInfo): protocol.SessionItem {
  return {
    session,
    idleMs: Math.floor(idleMs),
    ramBlocks: ram.blocks,
    ramBytes: ram.bytes,
    ssdBlocks: ssd.blocks,
    ssdBytes: ssd.bytes,
  };
}
