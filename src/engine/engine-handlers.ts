import { BlockOutcome, DIGEST_BYTES } from "../core/index.ts";
import { Tier } from "../store/blocks/index.ts";
import type {
  AddressBatch,
  EngineSession,
  HandleBatch,
  LookupQuery,
  LookupState,
} from "../store/index.ts";
import { BlockNaming, type RememberedPrompts, requestedBlocks } from "./block-naming.ts";
import {
  answerLater,
  answerOutcomes,
  begun,
  type Connection,
  type EngineContext,
  greetedOf,
  type Handlers,
  type NamespaceRef,
} from "./connection.ts";
import * as protocol from "./protocol/index.ts";
import type { EngineLimits } from "./server-options.ts";

/** Default duration in ms of a reservation made by a LOOKUP. */
const HOLD_MS = 10_000;
/** Maximum LOOKUP requests of a connection that wait for blocks at the same time. */
const LOOKUPS_MAX = 4_096;
/** A client with more unread bytes than this gets no partial replies, only the final one. */
const PARTIAL_UNREAD_MAX = 256 * 1024;
const LOOKUP_HEAD_BYTES = 24;
/**
 * Maximum blocks in one request, counted once per rank. One turn of the event loop names and finds
 * them all.
 */
const NAMES_MAX = 65_536;
/** Blocks of an ANNOUNCE handled in one piece of work. */
const NAMES_A_PIECE = 512;
/**
 * Maximum blocks in the waiting LOOKUP requests of a connection, counted once per rank. Each needs
 * 64 bytes.
 */
const NAMES_WAITING_MAX = 2 ** 20;
/** Maximum duration of a LOOKUP in ms. */
const LOOKUP_MS_MAX = 600_000;
/** Bytes of a frame around a receipt: header and padding. */
const COMMAND_ROOM_BYTES = 32;

/** Scratch memory that handlers fill and read before they return. */
export interface EngineScratch {
  readonly batch: AddressBatch;
  readonly handles: HandleBatch;
  readonly named: { readonly digests: Uint8Array };
}

/** Handlers of the requests of connections that belong to an engine. */
export function engineHandlers(
  context: EngineContext,
  scratch: EngineScratch,
  prompts: RememberedPrompts,
): Handlers {
  const { store, hashing } = context;
  const naming = new BlockNaming({ ...scratch, store, hashing, prompts });
  return {
    [protocol.Op.namespace]: (connection, frame) => openNamespace(connection, frame),
    [protocol.Op.join]: (connection, frame, holder) => join(connection, frame, holder),
    [protocol.Op.lookup]: (connection, frame, holder) =>
      begun(lookUp(context, naming, connection, frame, holder)),
    [protocol.Op.unhold]: (connection, frame, holder) =>
      unhold(context, scratch, connection, frame, holder),
    [protocol.Op.announce]: (connection, frame, holder) =>
      begun(announce(context, naming, scratch, connection, frame, holder)),
    [protocol.Op.command]: (connection, frame) => command(context, connection, frame),
  };
}

const malformed = (text: string) => protocol.refusal(protocol.FrameStatus.malformed, text);

/** Returns the namespace of a handle, or why the frame is refused. */
export function namespaceOf(
  connection: Connection,
  handle: number,
): NamespaceRef | protocol.Refusal {
  return (
    greetedOf(connection).namespaces.of(handle) ??
    malformed(`unknown namespace handle ${handle}: request one with NAMESPACE`)
  );
}

function openNamespace(connection: Connection, frame: protocol.Frame): protocol.Refusal | null {
  const decoded = protocol.decodeNamespaceRequest(frame);
  if (!decoded.ok) return decoded.refusal;
  const { namespaces } = greetedOf(connection);
  const namespace = namespaces.open(decoded.value);
  if (typeof namespace === "string") return protocol.refusal(protocol.FrameStatus.limit, namespace);
  const namespaceId = namespaces.of(namespace)!.key;
  protocol.encodeNamespaceReply(connection.output, frame.requestId, { namespace, namespaceId });
  return null;
}

function join(
  connection: Connection,
  frame: protocol.Frame,
  holder: EngineSession,
): protocol.Refusal | null {
  const decoded = protocol.decodeJoinRequest(frame);
  if (!decoded.ok) return decoded.refusal;
  const engine = decoded.value.engine.toHex();
  const members = holder.engine.join(engine, connection.uid);
  if (members === "joined") return malformed("join: this connection already belongs to an engine");
  if (members === "foreign") {
    return malformed("join: this engine belongs to another user: use another id");
  }
  connection.share?.joined(engine);
  protocol.encodeJoinReply(connection.output, frame.requestId, { members });
  return null;
}

/**
 * Returns the namespaces of the ranks that a request concerns: all ranks of the model, or only the
 * connection's own.
 */
function ranksOf(
  connection: Connection,
  handle: number,
  isFamily: boolean,
): readonly NamespaceRef[] | protocol.Refusal {
  const own = namespaceOf(connection, handle);
  if ("fatal" in own) return own;
  if (!isFamily) return [own];
  const family = greetedOf(connection).namespaces.familyOf(handle);
  return typeof family === "string" ? protocol.refusal(protocol.FrameStatus.limit, family) : family;
}

/** Returns the maximum blocks of one LOOKUP whose reply still fits in a frame. */
function blocksMax({ itemsMax, frameBytesMax }: EngineLimits): number {
  const fitting =
    (frameBytesMax - protocol.HEADER_BYTES - LOOKUP_HEAD_BYTES - 8) / (DIGEST_BYTES + 1);
  return Math.min(itemsMax, Math.floor(fitting));
}

const UNKNOWN_PARENT = {
  leading: 0,
  ready: 0,
  hold: 0,
  announced: 0,
  flags: protocol.LookupReplyFlag.unknownParent,
};

function* lookUp(
  context: EngineContext,
  naming: BlockNaming,
  connection: Connection,
  frame: protocol.Frame,
  holder: EngineSession,
): Generator<void, protocol.Refusal | null> {
  const { limits } = context;
  const { requestId } = frame;
  const { blockTokens } = greetedOf(connection);
  const decoded = protocol.decodeLookupRequest(frame, blockTokens, blocksMax(limits));
  if (!decoded.ok) return decoded.refusal;
  const request = decoded.value;
  const has = (flag: number) => (request.flags & flag) !== 0;
  const refused = whyNot(context, connection, request, holder);
  if (refused !== null) return refused;
  const refs = ranksOf(connection, request.namespace, has(protocol.LookupFlag.family));
  if ("fatal" in refs) return refs;
  const tooMany = tooManyNames(
    protocol.identifyDigests(request.kind, request.count, blockTokens),
    refs,
  );
  if (tooMany !== null) return tooMany;
  const ranks = yield* requestedBlocks(naming, request, refs, blockTokens);
  if (ranks === "unknown") {
    const none = new Uint8Array(0);
    protocol.encodeLookupReply(connection.output, requestId, UNKNOWN_PARENT, 0, none, null);
    return null;
  }
  if ("fatal" in ranks) return ranks;
  const { length } = ranks[0].digests;
  const count = length / DIGEST_BYTES;
  const digests = has(protocol.LookupFlag.digests) ? ranks[0].digests : null;
  const answer = (state: LookupState, more: number) => {
    const reply = replyOf(state, more);
    protocol.encodeLookupReply(connection.output, requestId, reply, count, state.best, digests);
  };
  const partial = (state: LookupState) => {
    const isRead = protocol.pendingBytes(connection.output) < PARTIAL_UNREAD_MAX;
    if (!has(protocol.LookupFlag.progress) || connection.closed || !isRead) return;
    answer(state, protocol.LookupReplyFlag.more);
    connection.flush();
  };
  const lookup = holder.lookup(wishOf(request, ranks, count, limits), partial);
  if (lookup.isOver) {
    answer(lookup.state, 0);
    return null;
  }
  const names = count * ranks.length;
  connection.lookups++;
  connection.lookupNames += names;
  const answered = lookup.done
    .then(() => answer(lookup.state, 0))
    .finally(() => {
      connection.lookups--;
      connection.lookupNames -= names;
    });
  answerLater(context, connection, answered);
  return null;
}

/** Converts a LOOKUP request to the agent's form, with this agent's defaults and limits. */
function wishOf(
  request: protocol.LookupRequest,
  ranks: LookupQuery["ranks"],
  count: number,
  { acquireMs }: EngineLimits,
): LookupQuery {
  const has = (flag: number) => (request.flags & flag) !== 0;
  return {
    ranks,
    count,
    layer: request.layer,
    tiers: request.tiers || Tier.ram | Tier.ssd,
    hold: has(protocol.LookupFlag.hold),
    fetch: has(protocol.LookupFlag.fetch),
    wait: has(protocol.LookupFlag.wait),
    deadlineMs: Math.min(request.deadlineMs || acquireMs, LOOKUP_MS_MAX),
    holdMs: Math.min(request.holdMs || HOLD_MS, protocol.ENGINE_MS_MAX),
    readers: request.readers || 1,
    source: request.source,
  };
}

/** Returns why a LOOKUP cannot start, or null if it can. */
function whyNot(
  context: EngineContext,
  connection: Connection,
  { flags }: protocol.LookupRequest,
  holder: EngineSession,
): protocol.Refusal | null {
  const takes = protocol.LookupFlag.hold | protocol.LookupFlag.fetch | protocol.LookupFlag.wait;
  if ((flags & takes) !== 0 && context.draining()) {
    return protocol.refusal(
      protocol.FrameStatus.draining,
      "the agent is stopping: connect again later",
    );
  }
  if ((flags & protocol.LookupFlag.hold) !== 0 && holder.engine.group === null) {
    return malformed("lookup: only an engine can reserve blocks: send JOIN first");
  }
  const { lookups, lookupNames } = connection;
  if (lookups < LOOKUPS_MAX && lookupNames < NAMES_WAITING_MAX) return null;
  const text = `${lookups} lookups of ${lookupNames} blocks are waiting: read their answers`;
  return protocol.refusal(protocol.FrameStatus.limit, text);
}

/**
 * Refuses a request with too many blocks for one turn of the event loop, counted over all ranks.
 * Null if there are few enough.
 */
function tooManyNames(count: number, refs: readonly NamespaceRef[]): protocol.Refusal | null {
  if (count * refs.length <= NAMES_MAX) return null;
  const text = `${count} blocks of ${refs.length} ranks: at most ${NAMES_MAX} in one request`;
  return protocol.refusal(protocol.FrameStatus.limit, text);
}

function replyOf(state: LookupState, more: number) {
  const { leading, ready, hold, announced, isBudgetReached } = state;
  const flags = more | (isBudgetReached ? protocol.LookupReplyFlag.budget : 0);
  return { leading, ready, hold, flags, announced };
}

function unhold(
  { limits }: EngineContext,
  { handles }: EngineScratch,
  connection: Connection,
  frame: protocol.Frame,
  holder: EngineSession,
): protocol.Refusal | null {
  const decoded = protocol.decodeUnholdRequest(frame, limits.itemsMax);
  if (!decoded.ok) return decoded.refusal;
  const { group } = holder.engine;
  const { holds } = decoded.value;
  handles.count = holds.length;
  for (const [i, { id }] of holds.entries()) {
    const isEnded = group?.claims.endById(id) === true;
    handles.outcome[i] = isEnded ? BlockOutcome.ok : BlockOutcome.stale;
  }
  answerOutcomes(connection, frame, handles);
  return null;
}

function* announce(
  { limits, store }: EngineContext,
  naming: BlockNaming,
  { handles }: EngineScratch,
  connection: Connection,
  frame: protocol.Frame,
  holder: EngineSession,
): Generator<void, protocol.Refusal | null> {
  const head = { op: frame.op, flags: frame.flags, requestId: frame.requestId };
  const decoded = protocol.decodeAnnounceRequest(frame, limits.itemsMax);
  if (!decoded.ok) return decoded.refusal;
  const { group } = holder.engine;
  if (group === null)
    return malformed("announce: only an engine can announce blocks: send JOIN first");
  const { kind, flags, namespace, items, count, layer, ttlMs } = decoded.value;
  const isFamily = (flags & protocol.AnnounceFlag.family) !== 0;
  if (isFamily && kind === protocol.AnnounceKind.digests) {
    return malformed("announce: digests belong to one rank: clear flag bit 0, or send chain keys");
  }
  const refs = ranksOf(connection, namespace, isFamily);
  if ("fatal" in refs) return refs;
  const tooMany = tooManyNames(count, refs);
  if (tooMany !== null) return tooMany;
  const itemBytes =
    kind === protocol.AnnounceKind.digests ? null : protocol.ANNOUNCE_ITEM_BYTES[kind];
  const isWithdrawn = (flags & protocol.AnnounceFlag.withdraw) !== 0;
  if (count === 0 && !isWithdrawn) group.announced.beat(Math.min(ttlMs, protocol.ENGINE_MS_MAX));
  const copied = items.slice();
  const outcomes = new Uint32Array(count);
  outcomes.fill(isWithdrawn ? BlockOutcome.ok : BlockOutcome.present);
  for (const ref of refs) {
    const rank = naming.byKeys(ref, copied, count, itemBytes, layer);
    for (let i = 0; i < count; i++) {
      if (i > 0 && i % NAMES_A_PIECE === 0) yield;
      if (isWithdrawn) group.announced.withdraw(rank.keys, i);
      else if (!store.isStored(rank.namespace, rank.keys, i)) {
        const outcome = group.announced.add(rank.keys, i, Math.min(ttlMs, protocol.ENGINE_MS_MAX));
        outcomes[i] = Math.max(outcome, worstOf(outcomes[i]));
      }
    }
    if (ref !== refs.at(-1)) yield;
  }
  handles.count = count;
  handles.outcome.set(outcomes);
  answerOutcomes(connection, head, handles);
  return null;
}

/**
 * Returns `ok` instead of `present`: if one rank already has a block, the item's outcome is `ok` as
 * soon as another rank's block has been announced. Returns other outcomes unchanged.
 */
function worstOf(outcome: number): number {
  return outcome === BlockOutcome.present ? BlockOutcome.ok : outcome;
}

function command(
  context: EngineContext,
  connection: Connection,
  frame: protocol.Frame,
): protocol.Refusal | null {
  const decoded = protocol.decodeCommand(frame);
  if (!decoded.ok) return decoded.refusal;
  const { commands, limits } = context;
  if (commands === undefined || commands === null) {
    return protocol.refusal(protocol.FrameStatus.unknownOp, "this agent accepts no commands");
  }
  if (context.draining())
    return protocol.refusal(
      protocol.FrameStatus.draining,
      "the agent is stopping: send the command later",
    );
  const { requestId } = frame;
  const { name } = greetedOf(connection);
  const bytesMax = limits.frameBytesMax - COMMAND_ROOM_BYTES;
  const answered = commands
    .submit(decoded.value, { name, source: connection.source }, bytesMax)
    .then((receipt) => protocol.encodeCommandReply(connection.output, requestId, receipt));
  answerLater(context, connection, answered);
  return null;
}
