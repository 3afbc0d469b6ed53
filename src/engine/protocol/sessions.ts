import { assert, DIGEST_BYTES } from "../../core/index.ts";
import {
  checkFixed,
  checkItems,
  copyIn,
  copyOut,
  type DigestItems,
  isZero,
  readSafeU64,
  reservedField,
  writeSafeU64,
} from "./fields.ts";
import {
  beginReply,
  beginRequest,
  type Decoded,
  decoded,
  type Frame,
  malformed,
  type Output,
  type Refusal,
  refused,
} from "./frame.ts";
import { ALIAS_BYTES, AliasKind, Op, Outcome } from "./layout.ts";

/** Requests about sessions and aliases of blocks. */

const SESSION_COMMIT_HEAD_BYTES = 16;
const SESSION_STATUS_BYTES = 32;
const ALIAS_ITEM_BYTES = DIGEST_BYTES + ALIAS_BYTES;
const ENGINE_HASH_BYTES = 8;

export interface SessionStatus {
  /** `ok`, or `miss` if the session is unknown; the other fields are 0 then. */
  readonly outcome: Outcome;
  /** The session's blocks in RAM. */
  readonly blocks: number;
  readonly tokens: number;
  readonly bytes: number;
}

/** `blocks` contains one digest: the session's new deepest block. */
export function encodeSessionCommitRequest(
  output: Output,
  requestId: number,
  session: bigint,
  blocks: Readonly<DigestItems>,
  noReply = false,
): void {
  assert(blocks.count === 1, "a session has one deepest block");
  const bodyBytes = SESSION_COMMIT_HEAD_BYTES + DIGEST_BYTES;
  const at = beginRequest(output, Op.sessionCommit, requestId, 1, bodyBytes, noReply);
  output.view.setBigUint64(at, session, true);
  output.view.setUint32(at + 8, blocks.layer, true);
  output.view.setUint32(at + 12, 0, true);
  copyIn(blocks.digests, DIGEST_BYTES, output.bytes, at + SESSION_COMMIT_HEAD_BYTES);
}

export function decodeSessionCommitRequest(
  frame: Frame,
  options: { session: bigint },
  into: DigestItems,
): Refusal | null {
  const bad = checkFixed(frame, 1, SESSION_COMMIT_HEAD_BYTES + DIGEST_BYTES);
  if (bad !== null) return bad;
  const { view, body } = frame;
  if (view.getUint32(body + 12, true) !== 0) return reservedField(frame);
  options.session = view.getBigUint64(body, true);
  into.layer = view.getUint32(body + 8, true);
  into.count = 1;
  copyOut(frame.bytes, body + SESSION_COMMIT_HEAD_BYTES, DIGEST_BYTES, into.digests);
  return null;
}

type SessionOp = typeof Op.sessionRelease | typeof Op.sessionStatus;

/** SESSION_RELEASE and SESSION_STATUS have the same layout. */
export function encodeSessionRequest(
  output: Output,
  op: SessionOp,
  requestId: number,
  session: bigint,
  noReply = false,
): void {
  assert(!noReply || op === Op.sessionRelease, "a status request expects a reply");
  const at = beginRequest(output, op, requestId, 0, 8, noReply);
  output.view.setBigUint64(at, session, true);
}

export function decodeSessionRequest(frame: Frame, options: { session: bigint }): Refusal | null {
  const bad = checkFixed(frame, 0, 8);
  if (bad !== null) return bad;
  options.session = frame.view.getBigUint64(frame.body, true);
  return null;
}

export function encodeSessionStatusReply(
  output: Output,
  requestId: number,
  status: SessionStatus,
): void {
  const at = beginReply(output, Op.sessionStatus, requestId, 1, SESSION_STATUS_BYTES);
  const { view } = output;
  view.setUint32(at, status.outcome, true);
  view.setUint32(at + 4, 0, true);
  writeSafeU64(view, at + 8, status.blocks);
  writeSafeU64(view, at + 16, status.tokens);
  writeSafeU64(view, at + 24, status.bytes);
}

export function decodeSessionStatusReply(frame: Frame): Decoded<SessionStatus> {
  const bad = checkFixed(frame, 1, SESSION_STATUS_BYTES);
  if (bad !== null) return refused(bad);
  const { view, body } = frame;
  const outcome = view.getUint32(body, true);
  if (!isOutcome(outcome)) return refused(malformed(`reply: outcome ${outcome} is not defined`));
  if (view.getUint32(body + 4, true) !== 0) return refused(reservedField(frame));
  const blocks = readSafeU64(view, body + 8);
  const tokens = readSafeU64(view, body + 16);
  const bytes = readSafeU64(view, body + 24);
  if (blocks === null || tokens === null || bytes === null)
    return refused(malformed("session status: counts are below 2^53"));
  return decoded({ outcome, blocks, tokens, bytes });
}

function isOutcome(value: number): value is Outcome {
  return value <= Outcome.rejected;
}

export interface AliasOptions {
  kind: AliasKind;
}

/**
 * `aliases` has 32 bytes per block. A u64 alias is stored little-endian in the first eight; the
 * rest is 0.
 */
export function encodeAliasRequest(
  output: Output,
  requestId: number,
  kind: AliasKind,
  blocks: Readonly<DigestItems>,
  aliases: Uint8Array,
  noReply = false,
): void {
  const { count } = blocks;
  const bodyBytes = 8 + count * ALIAS_ITEM_BYTES;
  let at = beginRequest(output, Op.alias, requestId, count, bodyBytes, noReply);
  output.view.setUint32(at, blocks.layer, true);
  output.view.setUint32(at + 4, kind, true);
  at += 8;
  for (let i = 0; i < count; i++, at += ALIAS_ITEM_BYTES) {
    for (let k = 0; k < DIGEST_BYTES; k++) {
      output.bytes[at + k] = blocks.digests[DIGEST_BYTES * i + k]!;
      output.bytes[at + DIGEST_BYTES + k] = aliases[ALIAS_BYTES * i + k]!;
    }
  }
}

export function decodeAliasRequest(
  frame: Frame,
  options: AliasOptions,
  into: DigestItems,
  aliases: Uint8Array,
): Refusal | null {
  const bad = checkItems(frame, 8, ALIAS_ITEM_BYTES, aliases.length / ALIAS_BYTES);
  if (bad !== null) return bad;
  const { bytes, view, body } = frame;
  const kind = view.getUint32(body + 4, true);
  if (kind !== AliasKind.engineHash && kind !== AliasKind.sha256)
    return malformed(`alias: kind ${kind} is undefined: use 0 or 1`);
  for (let i = 0, at = body + 8; i < frame.count; i++, at += ALIAS_ITEM_BYTES) {
    const aliasAt = at + DIGEST_BYTES;
    const short = kind === AliasKind.engineHash;
    if (short && !isZero(bytes, aliasAt + ENGINE_HASH_BYTES, aliasAt + ALIAS_BYTES))
      return reservedField(frame);
    for (let k = 0; k < DIGEST_BYTES; k++) {
      into.digests[DIGEST_BYTES * i + k] = bytes[at + k]!;
      aliases[ALIAS_BYTES * i + k] = bytes[aliasAt + k]!;
    }
  }
  options.kind = kind;
  into.layer = view.getUint32(body, true);
  into.count = frame.count;
  return null;
}

/** Maximum sessions in an answer. */
export const SESSION_LIST_MAX = 256;
const REQUEST_BYTES = 24;
const REPLY_HEAD_BYTES = 8;
const ITEM_BYTES = 48;

export interface SessionListRequest {
  /** 0: all sessions of the connection's namespace; otherwise only this one. */
  session: bigint;
  /** `next` of the previous answer; 0: from the start. */
  after: number;
  /** 0: the agent's maximum. */
  max: number;
}

export interface SessionItem {
  readonly session: bigint;
  /** Milliseconds since the session's last commit. */
  readonly idleMs: number;
  readonly ramBlocks: number;
  readonly ramBytes: number;
  readonly ssdBlocks: number;
  readonly ssdBytes: number;
}

export interface SessionListReply {
  /** 0: there are no more sessions. */
  readonly next: number;
  readonly sessions: readonly SessionItem[];
}

/** Maximum sessions in a frame of this size. */
export function sessionsInFrame(frameBytesMax: number, headerBytes: number): number {
  const fit = Math.floor((frameBytesMax - headerBytes - REPLY_HEAD_BYTES) / ITEM_BYTES);
  return Math.min(SESSION_LIST_MAX, fit);
}

export function encodeSessionListRequest(
  output: Output,
  requestId: number,
  { session, after, max }: Readonly<SessionListRequest>,
): void {
  const at = beginRequest(output, Op.sessionList, requestId, 0, REQUEST_BYTES);
  output.view.setBigUint64(at, session, true);
  writeSafeU64(output.view, at + 8, after);
  output.view.setUint32(at + 16, max, true);
  output.view.setUint32(at + 20, 0, true);
}

export function decodeSessionListRequest(frame: Frame, into: SessionListRequest): Refusal | null {
  const bad = checkFixed(frame, 0, REQUEST_BYTES);
  if (bad !== null) return bad;
  const { view, body } = frame;
  const after = readSafeU64(view, body + 8);
  if (after === null) return malformed("session list: after must be below 2^53");
  if (view.getUint32(body + 20, true) !== 0) return reservedField(frame);
  into.session = view.getBigUint64(body, true);
  into.after = after;
  into.max = view.getUint32(body + 16, true);
  return null;
}

export function encodeSessionListReply(
  output: Output,
  requestId: number,
  { next, sessions }: SessionListReply,
): void {
  assert(sessions.length <= SESSION_LIST_MAX, "a page of sessions is bounded");
  const bodyBytes = REPLY_HEAD_BYTES + sessions.length * ITEM_BYTES;
  let at = beginReply(output, Op.sessionList, requestId, sessions.length, bodyBytes);
  const { view } = output;
  writeSafeU64(view, at, next);
  at += REPLY_HEAD_BYTES;
  for (const item of sessions) {
    view.setBigUint64(at, item.session, true);
    writeSafeU64(view, at + 8, item.idleMs);
    writeSafeU64(view, at + 16, item.ramBlocks);
    writeSafeU64(view, at + 24, item.ramBytes);
    writeSafeU64(view, at + 32, item.ssdBlocks);
    writeSafeU64(view, at + 40, item.ssdBytes);
    at += ITEM_BYTES;
  }
}

export function decodeSessionListReply(frame: Frame): Decoded<SessionListReply> {
  const bad = checkItems(frame, REPLY_HEAD_BYTES, ITEM_BYTES, SESSION_LIST_MAX);
  if (bad !== null) return refused(bad);
  const { view, body } = frame;
  const next = readSafeU64(view, body);
  const sessions: SessionItem[] = [];
  for (let i = 0; i < frame.count; i++) {
    const item = readItem(view, body + REPLY_HEAD_BYTES + i * ITEM_BYTES);
    if (item !== null) sessions.push(item);
  }
  if (next === null || sessions.length < frame.count)
    return refused(malformed("session list: counts are below 2^53"));
  return decoded({ next, sessions });
}

function readItem(view: DataView, at: number): SessionItem | null {
  const counts = [8, 16, 24, 32, 40].map((offset) => readSafeU64(view, at + offset));
  if (counts.includes(null)) return null;
  const [idleMs, ramBlocks, ramBytes, ssdBlocks, ssdBytes] = counts as number[];
  return {
    session: view.getBigUint64(at, true),
    idleMs: idleMs!,
    ramBlocks: ramBlocks!,
    ramBytes: ramBytes!,
    ssdBlocks: ssdBlocks!,
    ssdBytes: ssdBytes!,
  };
}
