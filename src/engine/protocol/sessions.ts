import { assert, DIGEST_BYTES } from "../../core/index.ts";
import { DIGEST_ITEM, type DigestItems, digestsFit } from "./blocks.ts";
import { isZero, malformed, type Output, reservedField } from "./frame.ts";
import { ALIAS_BYTES, AliasKind, Op, Outcome } from "./layout.ts";
import {
  bytes,
  columnsMessage,
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

/** Codecs of requests about sessions and about aliases of blocks. */

/** Bytes of an alias that is a u64. */
const ENGINE_HASH_BYTES = 8;

/** Request SESSION_COMMIT. Its one digest is the session's new deepest block. */
export const { encode: encodeSessionCommitRequest, decode: decodeSessionCommitRequest } =
  columnsMessage<{ session: bigint }, DigestItems>(
    requestOf(Op.sessionCommit),
    { head: { session: u64, layer: u32, reserved }, item: DIGEST_ITEM },
    {
      capacity: digestsFit,
      check: ({ count }) => (count === 1 ? null : malformed("sessionCommit: send one block")),
    },
  );

/** Requests SESSION_RELEASE and SESSION_STATUS, which have the same layout. */
export const sessionRequests = {
  [Op.sessionRelease]: fixedMessage(requestOf(Op.sessionRelease), { session: u64 }),
  [Op.sessionStatus]: fixedMessage(requestOf(Op.sessionStatus), { session: u64 }),
} as const;

export interface SessionStatus {
  /** `ok`, or `miss` if the session is unknown. With `miss`, the other fields are 0. */
  readonly outcome: Outcome;
  /** Number of the session's blocks in RAM. */
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

/** Blocks with an alias of 32 bytes each. */
export interface AliasItems extends DigestItems {
  readonly aliases: Uint8Array;
}

/**
 * Request ALIAS. A u64 alias is stored little-endian in the first eight of the 32 bytes; the rest
 * is 0.
 */
export const { encode: encodeAliasRequest, decode: decodeAliasRequest } = columnsMessage<
  AliasOptions,
  AliasItems
>(
  requestOf(Op.alias),
  {
    head: { layer: u32, kind: within<AliasKind>(AliasKind.engineHash, AliasKind.sha256) },
    item: { ...DIGEST_ITEM, aliases: bytes(ALIAS_BYTES) },
  },
  {
    capacity: ({ aliases }) => aliases.length / ALIAS_BYTES,
    check(frame, start, stride) {
      if (frame.view.getUint32(frame.body + 4, true) !== AliasKind.engineHash) return null;
      for (let at = start; at < frame.end; at += stride)
        if (!isZero(frame.bytes, at + DIGEST_BYTES + ENGINE_HASH_BYTES, at + stride))
          return reservedField(frame);
      return null;
    },
  },
);

/** Maximum sessions in one reply. */
export const SESSION_LIST_MAX = 256;

export interface SessionListRequest {
  /** Id of the only session to list; 0: all sessions of the connection's namespace. */
  session: bigint;
  /** Position to continue from: `next` of the previous reply; 0: the start of the list. */
  after: number;
  /** Maximum sessions to return; 0: the agent's maximum. */
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
  /** Value of `after` for the next request; 0: there are no more sessions. */
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

/** Returns the maximum sessions that fit in a frame of this size. */
export function sessionsInFrame(frameBytesMax: number): number {
  return Math.min(SESSION_LIST_MAX, sessionListReply.itemsIn(frameBytesMax));
}
