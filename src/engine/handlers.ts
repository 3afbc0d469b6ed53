import { DIGEST_BYTES, type NamespaceIndex } from "../core/index.ts";
import { Tier } from "../store/blocks/index.ts";
import {
  type AddressBatch,
  type BlockStore,
  createAddressBatch,
  createHandleBatch,
  type EngineSession,
  type HandleBatch,
} from "../store/index.ts";
import type { SessionInfo } from "../store/pins/index.ts";
import { RememberedPrompts, wordsOf } from "./block-naming.ts";
import {
  answerOne,
  answerOutcomes,
  type Connection,
  type FrameWork,
  greetedOf,
} from "./connection.ts";
import { type EngineHandlerContext, engineHandlers, namespaceOf } from "./engine-handlers.ts";
import type { LookupOutcome } from "./frame-counts.ts";
import { type GpuHandlerContext, gpuMemoryHandlers } from "./gpu-handlers.ts";
import {
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
  Feature,
  type Frame,
  FrameStatus,
  HEADER_BYTES,
  IDENTIFY_ITEM_BYTES,
  IdentifyKind,
  identifyDigests,
  Op,
  Outcome,
  type Refusal,
  refusal,
  type SessionItem,
  sessionsInFrame,
  wantsReply,
} from "./protocol/index.ts";
import type { EngineLimits } from "./server-options.ts";

/** Computes digests of prompts and of engines' own chain keys. The native library implements it. */
export interface DigestMaker {
  prefixDigests(key: Uint8Array, tokens: Uint32Array, blockTokens: number, out: Uint8Array): number;
  chainDigests(key: Uint8Array, items: Uint8Array, itemBytes: number, out: Uint8Array): number;
}

export interface HandlerContext
  extends Omit<GpuHandlerContext, "itemsMax" | "answerLater">,
    Omit<EngineHandlerContext, "answerLater"> {
  readonly store: BlockStore;
  readonly digests: DigestMaker;
  readonly limits: EngineLimits;
  nowMs(): number;
  /** `tier`: the slowest tier that answered. */
  lookedUp(tier: "ram" | "ssd" | "peer", outcome: LookupOutcome, seconds: number): void;
  /** True while the agent drains: no new slots are granted. */
  draining(): boolean;
  /** Called for an unexpected failure of a commit. */
  onFault(connection: Connection, error: unknown): void;
}

type Handler = (
  connection: Connection,
  frame: Frame,
  holder: EngineSession,
) => Refusal | null | FrameWork;

const DRAINING = "the agent is stopping: release your slots and connect again later";

/**
 * Scratch memory that handlers fill and read before they return. Data that must live longer is
 * copied.
 */
interface Scratch {
  readonly batch: AddressBatch;
  readonly handles: HandleBatch;
  readonly best: Uint8Array;
  readonly named: DigestItems;
  readonly session: { session: bigint };
}

type Handlers = Partial<Record<number, Handler>>;

/** The handler of each operation after HELLO. All connections share the scratch memory. */
export function createHandlers(context: HandlerContext): Handler {
  const { itemsMax, frameBytesMax } = context.limits;
  const scratch: Scratch = {
    batch: createAddressBatch(itemsMax),
    handles: createHandleBatch(itemsMax),
    best: new Uint8Array(itemsMax),
    named: { count: 0, layer: 0, digests: new Uint8Array(new ArrayBuffer(frameBytesMax)) },
    session: { session: 0n },
  };
  const later = {
    ...context,
    itemsMax,
    answerLater: (connection: Connection, answered: Promise<void>) =>
      answerLater(context, connection, answered),
  };
  const prompts = new RememberedPrompts();
  const table: Handlers = {
    ...gpuMemoryHandlers(later),
    ...lookupHandlers(context, scratch, prompts),
    ...slotHandlers(context, scratch),
    ...gpuHandlers(context, scratch),
    ...sessionHandlers(context, scratch),
  };
  const ofEngines: Handlers = engineHandlers(later, scratch, prompts);
  return (connection, frame, holder) => {
    const handler = table[frame.op] ?? (isEngine(connection) ? ofEngines[frame.op] : undefined);
    if (handler !== undefined) return handler(connection, frame, holder);
    return refusal(FrameStatus.unknownOp, `unknown operation ${frame.op}`);
  };
}

/** Whether the connection requested the engine operations in its HELLO. */
function isEngine(connection: Connection): boolean {
  return (greetedOf(connection).features & Feature.engine) !== 0;
}

/** Whether blocks on this connection carry MACs. */
function hasMacs(connection: Connection): boolean {
  return (greetedOf(connection).features & Feature.mac) !== 0;
}

/** The namespace of a handle, or a refusal. Without the engine feature the field is reserved. */
function indexOf(connection: Connection, handle: number): NamespaceIndex | Refusal {
  if (handle !== 0 && !isEngine(connection)) {
    return refusal(
      FrameStatus.malformed,
      "reserved fields must be zero: HELLO did not request feature bit 2",
    );
  }
  const ref = namespaceOf(connection, handle);
  return "fatal" in ref ? ref : ref.index;
}

function lookupHandlers(
  { store, digests, limits }: HandlerContext,
  scratch: Scratch,
  prompts: RememberedPrompts,
): Handlers {
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
      const { namespace, namespaceKey, blockTokens } = greetedOf(connection);
      const bad = decodeIdentifyRequest(frame, blockTokens, limits.frameBytesMax, identify);
      if (bad !== null) return bad;
      const { kind, count, layer } = identify;
      if (kind === IdentifyKind.engineHashes) {
        holder.resolve(identify.items, count, layer, named.digests);
      } else if (kind !== IdentifyKind.tokens) {
        if (kind === IdentifyKind.shortKeys && !isEngine(connection)) {
          return refusal(FrameStatus.malformed, "identify: kind 3 requires feature bit 2 in HELLO");
        }
        digests.chainDigests(
          namespaceKey,
          identify.items,
          IDENTIFY_ITEM_BYTES[kind],
          named.digests,
        );
      } else {
        const tokens = wordsOf(identify.items);
        const blocks = digests.prefixDigests(namespaceKey, tokens, blockTokens, named.digests);
        // A LOOKUP may continue this prompt.
        if (isEngine(connection)) {
          const all = named.digests.subarray(0, blocks * DIGEST_BYTES);
          prompts.add(namespace, { tokens, media: [] }, all);
        }
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
  // The session of a reservation is recorded for attribution only.
  const { batch, handles } = scratch;
  const reserving = { session: 0n, namespace: 0 };
  const asked = { tiers: 0, deadlineMs: 0, stopAtMiss: false, namespace: 0 };
  return {
    [Op.reserve]: (connection, frame, holder) => {
      if (context.draining()) return refusal(FrameStatus.draining, DRAINING);
      const bad = decodeReserveRequest(frame, reserving, batch);
      if (bad !== null) return bad;
      const namespace = indexOf(connection, reserving.namespace);
      if (typeof namespace !== "number") return namespace;
      store.deriveKeys(batch, true);
      holder.reserve(batch, handles, namespace);
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
      const bad = decodeAcquireRequest(frame, asked, batch);
      if (bad !== null) return bad;
      const namespace = indexOf(connection, asked.namespace);
      if (typeof namespace !== "number") return namespace;
      const deadlineMs = asked.deadlineMs || limits.acquireMs;
      const startMs = context.nowMs();
      const { requestId } = frame;
      const macs = hasMacs(connection);
      const answer = (tier: "ram" | "ssd" | "peer", granted: HandleBatch) => {
        context.lookedUp(tier, lookupOutcome(granted), (context.nowMs() - startMs) / 1_000);
        encodeAcquireReply(connection.output, requestId, granted, macs ? granted.mac : null);
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
    [Op.release]: (connection, frame, holder) => {
      const bad = decodeHandlesRequest(frame, handles);
      if (bad !== null) return bad;
      holder.release(handles);
      answerOutcomes(connection, frame, handles);
      return null;
    },
    [Op.report]: (connection, frame, holder) => report(context, connection, frame, holder),
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

/** Whether all, some or none of the request's blocks were found. */
function lookupOutcome({ count, outcome }: HandleBatch): LookupOutcome {
  let found = 0;
  for (let i = 0; i < count; i++) if (outcome[i] === Outcome.ok) found++;
  if (found === 0) return "miss";
  return found === count ? "hit" : "partial";
}

function commit(
  context: HandlerContext,
  connection: Connection,
  frame: Frame,
  holder: EngineSession,
): Refusal | null {
  const written = batchFor(context, frame);
  const bad = decodeCommitRequest(frame, written, hasMacs(connection) ? written.mac : null);
  if (bad !== null) return bad;
  answerOnce(context, connection, frame, Op.commit, written, holder.commit(written));
  return null;
}

function report(
  context: HandlerContext,
  connection: Connection,
  frame: Frame,
  holder: EngineSession,
): Refusal | null {
  const read = batchFor(context, frame);
  const bad = decodeHandlesRequest(frame, read);
  if (bad !== null) return bad;
  answerOnce(context, connection, frame, Op.report, read, holder.report(read));
  return null;
}

/** Bytes are hashed on another thread, so the handles are kept in their own batch until then. */
function batchFor({ limits }: HandlerContext, { count }: Frame): HandleBatch {
  return createHandleBatch(Math.max(1, Math.min(count, limits.itemsMax)));
}

/**
 * Answers with the outcomes in `handles`. `later` resolves when they are known; null if they are
 * known now.
 */
function answerOnce(
  context: HandlerContext,
  connection: Connection,
  frame: Frame,
  op: typeof Op.commit | typeof Op.report,
  handles: HandleBatch,
  later: Promise<void> | null,
): void {
  const { requestId } = frame;
  const reply = wantsReply(frame);
  const answer = () => {
    if (reply) encodeOutcomesReply(connection.output, op, requestId, handles);
  };
  if (later === null) answer();
  else answerLater(context, connection, later.then(answer));
}

/** `answered` writes its answer; the connection's other requests continue meanwhile. */
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

/** Handlers of session requests. */
function sessionHandlers(
  { store, limits }: HandlerContext,
  { batch, handles, session }: Scratch,
): Handlers {
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
