import { Tier } from "../blocks/index.ts";
import { assert } from "../core/index.ts";
import type { SessionInfo } from "../leases/index.ts";
import type { LookupOutcome } from "../observability/index.ts";
import {
  type AddressBatch,
  type BlockStore,
  createAddressBatch,
  createHandleBatch,
  type HandleBatch,
  type Holder,
} from "../tiers/index.ts";
import type { Connection } from "./connection.ts";
import { type GpuHandlerContext, gpuMemoryHandlers } from "./gpu-handlers.ts";
import type { EngineLimits } from "./limits.ts";
import {
  type AcquireOptions,
  ALIAS_BYTES,
  AliasKind,
  checkPing,
  type DigestItems,
  decodeAcquireRequest,
  decodeAliasRequest,
  decodeCommitRequest,
  decodeGpuEvictedRequest,
  decodeGpuStoredRequest,
  decodeHandlesRequest,
  decodeIdentifyRequest,
  decodeMatchRequest,
  decodeReserveRequest,
  decodeSessionCommitRequest,
  decodeSessionListRequest,
  decodeSessionRequest,
  emptyIdentifyRequest,
  encodeAcquireReply,
  encodeIdentifyReply,
  encodeMatchReply,
  encodeOutcomesReply,
  encodePingReply,
  encodeReserveReply,
  encodeSessionListReply,
  encodeSessionStatusReply,
  type Frame,
  FrameStatus,
  HEADER_BYTES,
  IDENTIFY_ITEM_BYTES,
  IdentifyKind,
  identifyDigests,
  Op,
  Outcome,
  type OutcomeOp,
  type Refusal,
  refusal,
  type SessionItem,
  sessionsInFrame,
  wantsReply,
} from "./protocol/index.ts";

/** Digests of prompts and of engines' own chain keys; the native library does them. */
export interface DigestMaker {
  prefixDigests(key: Uint8Array, tokens: Uint32Array, blockTokens: number, out: Uint8Array): number;
  chainDigests(key: Uint8Array, items: Uint8Array, itemBytes: number, out: Uint8Array): number;
}

export interface HandlerContext extends Omit<GpuHandlerContext, "itemsMax" | "answerLater"> {
  readonly store: BlockStore;
  readonly digests: DigestMaker;
  readonly limits: EngineLimits;
  nowMs(): number;
  /** `tier`: the slowest that answered. */
  lookedUp(tier: "ram" | "ssd" | "peer", outcome: LookupOutcome, seconds: number): void;
  /** While true nothing new is handed out. */
  draining(): boolean;
  /** Called for a commit that failed in a way it never should. */
  onFault(connection: Connection, error: unknown): void;
}

type Handler = (connection: Connection, frame: Frame, holder: Holder) => Refusal | null;

const DRAINING = "the agent is stopping: release what you hold and connect again later";

/** What handlers fill and read before they return; what must live longer is copied. */
interface Scratch {
  readonly batch: AddressBatch;
  readonly handles: HandleBatch;
  readonly best: Uint8Array;
  readonly named: DigestItems;
  readonly session: { session: bigint };
}

type Handlers = Partial<Record<number, Handler>>;

/** What each operation does, after the hello. The scratch memory is shared by all connections. */
export function createHandlers(context: HandlerContext): Handler {
  const { itemsMax, frameBytesMax } = context.limits;
  const scratch: Scratch = {
    batch: createAddressBatch(itemsMax),
    handles: createHandleBatch(itemsMax),
    best: new Uint8Array(itemsMax),
    named: { count: 0, layer: 0, digests: new Uint8Array(new ArrayBuffer(frameBytesMax)) },
    session: { session: 0n },
  };
  const gpuContext = {
    ...context,
    itemsMax,
    answerLater: (connection: Connection, answered: Promise<void>) =>
      answerLater(context, connection, answered),
  };
  const table: Handlers = {
    ...gpuMemoryHandlers(gpuContext),
    ...lookupHandlers(context, scratch),
    ...slotHandlers(context, scratch),
    ...gpuHandlers(context, scratch),
    ...sessionHandlers(context, scratch),
  };
  return (connection, frame, holder) => {
    const handler = table[frame.op];
    if (handler !== undefined) return handler(connection, frame, holder);
    return refusal(FrameStatus.unknownOp, `operation ${frame.op} is not known to this agent`);
  };
}

function lookupHandlers({ store, digests, limits }: HandlerContext, scratch: Scratch): Handlers {
  const { batch, best, named } = scratch;
  const matching = { tiers: 0 };
  const identify = emptyIdentifyRequest();
  return {
    [Op.ping]: (connection, frame) => {
      const bad = checkPing(frame);
      if (bad === null && wantsReply(frame)) encodePingReply(connection.output, frame);
      return bad;
    },
    [Op.identify]: (connection, frame, holder) => {
      const { namespaceKey, blockTokens } = greetedOf(connection);
      const bad = decodeIdentifyRequest(frame, blockTokens, limits.frameBytesMax, identify);
      if (bad !== null) return bad;
      const { kind, count, layer } = identify;
      if (kind === IdentifyKind.engineHashes) {
        holder.resolve(identify.items, count, layer, named.digests);
      } else if (kind === IdentifyKind.chainKeys) {
        digests.chainDigests(
          namespaceKey,
          identify.items,
          IDENTIFY_ITEM_BYTES[kind],
          named.digests,
        );
      } else {
        digests.prefixDigests(namespaceKey, wordsOf(identify.items), blockTokens, named.digests);
      }
      named.count = identifyDigests(kind, count, blockTokens);
      encodeIdentifyReply(connection.output, frame.requestId, named);
      return null;
    },
    [Op.match]: (connection, frame, holder) => {
      const bad = decodeMatchRequest(frame, matching, batch);
      if (bad !== null) return bad;
      store.deriveKeys(batch, false);
      const leading = holder.match(batch, matching.tiers, best);
      encodeMatchReply(connection.output, frame.requestId, batch.count, leading, best);
      return null;
    },
  };
}

function slotHandlers(context: HandlerContext, scratch: Scratch): Handlers {
  const { store, limits } = context;
  // The session of a reservation is for attribution; nothing is decided by it.
  const { batch, handles, session } = scratch;
  const acquire: AcquireOptions = { tiers: 0, deadlineMs: 0, stopAtMiss: false };
  return {
    [Op.reserve]: (connection, frame, holder) => {
      if (context.draining()) return refusal(FrameStatus.draining, DRAINING);
      const bad = decodeReserveRequest(frame, session, batch);
      if (bad !== null) return bad;
      store.deriveKeys(batch, true);
      holder.reserve(batch, handles);
      encodeReserveReply(connection.output, frame.requestId, handles);
      return null;
    },
    [Op.commit]: (connection, frame, holder) => commit(context, connection, frame, holder),
    [Op.abort]: (connection, frame, holder) => {
      const bad = decodeHandlesRequest(frame, handles);
      if (bad !== null) return bad;
      holder.abort(handles);
      answerOutcomes(connection, frame, handles);
      return null;
    },
    [Op.acquire]: (connection, frame, holder) => {
      if (context.draining()) return refusal(FrameStatus.draining, DRAINING);
      const bad = decodeAcquireRequest(frame, acquire, batch);
      if (bad !== null) return bad;
      if (acquire.deadlineMs === 0) acquire.deadlineMs = limits.acquireMs;
      const startMs = context.nowMs();
      const { requestId } = frame;
      const answer = (tier: "ram" | "ssd" | "peer", granted: HandleBatch) => {
        context.lookedUp(tier, lookupOutcome(granted), (context.nowMs() - startMs) / 1_000);
        encodeAcquireReply(connection.output, requestId, granted);
      };
      store.deriveKeys(batch, false);
      const later = holder.acquire(batch, acquire, handles);
      if (later === null) answer("ram", handles);
      else
        answerLater(
          context,
          connection,
          later.then((out) => answer(out.waitedFor === Tier.peer ? "peer" : "ssd", out)),
        );
      return null;
    },
    [Op.release]: (connection, frame, holder) => {
      const bad = decodeHandlesRequest(frame, handles);
      if (bad !== null) return bad;
      holder.release(handles);
      answerOutcomes(connection, frame, handles);
      return null;
    },
  };
}

function gpuHandlers({ store, limits }: HandlerContext, { batch, handles }: Scratch): Handlers {
  const aliases = new Uint8Array(limits.itemsMax * ALIAS_BYTES);
  const aliasing = { kind: AliasKind.engineHash as AliasKind };
  return {
    [Op.gpuStored]: (connection, frame, holder) => {
      const bad = decodeGpuStoredRequest(frame, batch);
      if (bad !== null) return bad;
      store.deriveKeys(batch, true);
      holder.gpuStored(batch, handles);
      answerOutcomes(connection, frame, handles);
      return null;
    },
    [Op.gpuEvicted]: (connection, frame, holder) => {
      const bad = decodeGpuEvictedRequest(frame, batch);
      if (bad !== null) return bad;
      store.deriveKeys(batch, false);
      holder.gpuEvicted(batch, handles);
      answerOutcomes(connection, frame, handles);
      return null;
    },
    [Op.alias]: (connection, frame, holder) => {
      const bad = decodeAliasRequest(frame, aliasing, batch, aliases);
      if (bad !== null) return bad;
      store.deriveKeys(batch, false);
      holder.alias(batch, aliases, aliasing.kind === AliasKind.sha256, handles);
      answerOutcomes(connection, frame, handles);
      return null;
    },
  };
}

function sessionHandlers({ store, limits }: HandlerContext, scratch: Scratch): Handlers {
  const { batch, handles, session } = scratch;
  const listing = { session: 0n, after: 0, max: 0 };
  const listMax = sessionsInFrame(limits.frameBytesMax, HEADER_BYTES);
  return {
    [Op.sessionCommit]: (connection, frame, holder) => {
      const bad = decodeSessionCommitRequest(frame, session, batch);
      if (bad !== null) return bad;
      store.deriveKeys(batch, false);
      answerOne(connection, frame, handles, holder.sessionCommit(session.session, batch));
      return null;
    },
    [Op.sessionRelease]: (connection, frame, holder) => {
      const bad = decodeSessionRequest(frame, session);
      if (bad !== null) return bad;
      answerOne(connection, frame, handles, holder.sessionRelease(session.session));
      return null;
    },
    [Op.sessionStatus]: (connection, frame, holder) => {
      const bad = decodeSessionRequest(frame, session);
      if (bad !== null) return bad;
      const status = holder.sessionStatus(session.session);
      encodeSessionStatusReply(connection.output, frame.requestId, {
        outcome: status.known ? Outcome.ok : Outcome.miss,
        blocks: status.blocks,
        tokens: status.blocks * greetedOf(connection).blockTokens,
        bytes: status.bytes,
      });
      return null;
    },
    [Op.sessionList]: (connection, frame, holder) => {
      const bad = decodeSessionListRequest(frame, listing);
      if (bad !== null) return bad;
      const { session: only, after, max } = listing;
      const page = holder.sessionList(only, after, Math.min(max || listMax, listMax));
      encodeSessionListReply(connection.output, frame.requestId, {
        next: page.next ?? 0,
        sessions: page.sessions.map(sessionItemOf),
      });
      return null;
    },
  };
}

function sessionItemOf({ session, idleMs, state: { ram, ssd } }: SessionInfo): SessionItem {
  return {
    session,
    idleMs: Math.floor(idleMs),
    ramBlocks: ram.blocks,
    ramBytes: ram.bytes,
    ssdBlocks: ssd.blocks,
    ssdBytes: ssd.bytes,
  };
}

/** All of the request's blocks were there, some, or none. */
function lookupOutcome({ count, outcome }: HandleBatch): LookupOutcome {
  let found = 0;
  for (let i = 0; i < count; i++) if (outcome[i] === Outcome.ok) found++;
  if (found === 0) return "miss";
  return found === count ? "hit" : "partial";
}

function greetedOf(connection: Connection) {
  assert(connection.greeted !== null, "a handler runs after the hello");
  return connection.greeted;
}

function answerOutcomes(connection: Connection, frame: Frame, handles: HandleBatch): void {
  if (!wantsReply(frame)) return;
  encodeOutcomesReply(connection.output, frame.op as OutcomeOp, frame.requestId, handles);
}

function answerOne(
  connection: Connection,
  frame: Frame,
  handles: HandleBatch,
  outcome: number,
): void {
  handles.count = 1;
  handles.outcome[0] = outcome;
  answerOutcomes(connection, frame, handles);
}

/** The bytes are hashed on another thread: the handles live in a batch of their own until then. */
function commit(
  context: HandlerContext,
  connection: Connection,
  frame: Frame,
  holder: Holder,
): Refusal | null {
  const written = createHandleBatch(Math.max(1, Math.min(frame.count, context.limits.itemsMax)));
  const bad = decodeCommitRequest(frame, written);
  if (bad !== null) return bad;
  const { requestId } = frame;
  const reply = wantsReply(frame);
  const answer = () => {
    if (reply) encodeOutcomesReply(connection.output, Op.commit, requestId, written);
  };
  const later = holder.commit(written);
  if (later === null) {
    answer();
    return null;
  }
  answerLater(context, connection, later.then(answer));
  return null;
}

/** `answered` writes its answer; meanwhile the connection's other requests go on. */
function answerLater(
  context: HandlerContext,
  connection: Connection,
  answered: Promise<void>,
): void {
  connection.working++;
  const finish = () => {
    connection.working--;
    connection.drained();
  };
  answered.finally(finish).catch((error) => context.onFault(connection, error));
}

/** A frame's bytes lie at any alignment; tokens are words. */
function wordsOf(bytes: Uint8Array): Uint32Array {
  const words = new Uint32Array(bytes.length / 4);
  new Uint8Array(words.buffer).set(bytes);
  return words;
}
