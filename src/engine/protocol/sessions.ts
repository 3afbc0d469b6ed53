import { assert, DIGEST_BYTES } from "../../core/index.ts";
import { type DigestItems, readDigests, writeDigests } from "./blocks.ts";
import {
  beginRequest,
  checkFixed,
  checkItems,
  type Frame,
  isZero,
  malformed,
  type Output,
  type Refusal,
  reservedField,
} from "./frame.ts";
import { ALIAS_BYTES, AliasKind, Op, Outcome } from "./layout.ts";
import {
  fixedMessage,
  listMessage,
  replyTo,
  requestOf,
  reserved,
  size,
  u32,
  u64,
  within,
} from "./message.ts";

/** Requests about sessions and aliases of blocks. */

const SESSION_COMMIT_HEAD_BYTES = 16;
const ALIAS_HEAD_BYTES = 8;
const ALIAS_ITEM_BYTES = DIGEST_BYTES + ALIAS_BYTES;
const ENGINE_HASH_BYTES = 8;

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
  writeDigests(output, at + SESSION_COMMIT_HEAD_BYTES, blocks);
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
  const layer = view.getUint32(body + 8, true);
  readDigests(frame, layer, body + SESSION_COMMIT_HEAD_BYTES, into);
  return null;
}

/** SESSION_RELEASE and SESSION_STATUS have the same layout. */
export const sessionRequests = {
  [Op.sessionRelease]: fixedMessage(requestOf(Op.sessionRelease), { session: u64 }),
  [Op.sessionStatus]: fixedMessage(requestOf(Op.sessionStatus), { session: u64 }),
} as const;

export interface SessionStatus {
  /** `ok`, or `miss` if the session is unknown; the other fields are 0 then. */
  readonly outcome: Outcome;
  /** The session's blocks in RAM. */
  readonly blocks: number;
  readonly tokens: number;
  readonly bytes: number;
}

export const { encode: encodeSessionStatusReply, decode: decodeSessionStatusReply } = fixedMessage(
  replyTo(Op.sessionStatus),
  {
    outcome: within<Outcome>(Outcome.ok, Outcome.rejected),
    reserved,
    blocks: size,
    tokens: size,
    bytes: size,
  },
  { count: 1 },
);

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
  const bodyBytes = ALIAS_HEAD_BYTES + count * ALIAS_ITEM_BYTES;
  const at = beginRequest(output, Op.alias, requestId, count, bodyBytes, noReply);
  output.view.setUint32(at, blocks.layer, true);
  output.view.setUint32(at + 4, kind, true);
  for (let i = 0; i < count; i++) {
    const to = at + ALIAS_HEAD_BYTES + i * ALIAS_ITEM_BYTES;
    for (let k = 0; k < DIGEST_BYTES; k++) {
      output.bytes[to + k] = blocks.digests[DIGEST_BYTES * i + k]!;
      output.bytes[to + DIGEST_BYTES + k] = aliases[ALIAS_BYTES * i + k]!;
    }
  }
}

export function decodeAliasRequest(
  frame: Frame,
  options: AliasOptions,
  into: DigestItems,
  aliases: Uint8Array,
): Refusal | null {
  const bad = checkItems(frame, ALIAS_HEAD_BYTES, ALIAS_ITEM_BYTES, aliases.length / ALIAS_BYTES);
  if (bad !== null) return bad;
  const { bytes, view, body } = frame;
  const kind = view.getUint32(body + 4, true);
  if (kind !== AliasKind.engineHash && kind !== AliasKind.sha256)
    return malformed(`alias: kind ${kind} is undefined: use 0 or 1`);
  const isShort = kind === AliasKind.engineHash;
  for (let i = 0, at = body + ALIAS_HEAD_BYTES; i < frame.count; i++, at += ALIAS_ITEM_BYTES) {
    const aliasAt = at + DIGEST_BYTES;
    if (isShort && !isZero(bytes, aliasAt + ENGINE_HASH_BYTES, aliasAt + ALIAS_BYTES))
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

export interface SessionListRequest {
  /** 0: all sessions of the connection's namespace; otherwise only this one. */
  session: bigint;
  /** `next` of the previous answer; 0: from the start. */
  after: number;
  /** 0: the agent's maximum. */
  max: number;
}

export const { encode: encodeSessionListRequest, fill: decodeSessionListRequest } = fixedMessage(
  requestOf(Op.sessionList),
  { session: u64, after: size, max: u32, reserved },
);

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

const sessionListReply = listMessage(
  replyTo(Op.sessionList),
  "sessions",
  {
    head: { next: size },
    item: {
      session: u64,
      idleMs: size,
      ramBlocks: size,
      ramBytes: size,
      ssdBlocks: size,
      ssdBytes: size,
    },
  },
  { max: SESSION_LIST_MAX },
);
export const { decode: decodeSessionListReply } = sessionListReply;

export function encodeSessionListReply(
  output: Output,
  requestId: number,
  reply: SessionListReply,
): void {
  assert(reply.sessions.length <= SESSION_LIST_MAX, "a page of sessions is bounded");
  sessionListReply.encode(output, requestId, reply);
}

/** Maximum sessions in a frame of this size. */
export function sessionsInFrame(frameBytesMax: number): number {
  return Math.min(SESSION_LIST_MAX, sessionListReply.itemsIn(frameBytesMax));
}
