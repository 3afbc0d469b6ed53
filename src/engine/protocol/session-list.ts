import { assert } from "../../core/index.ts";
import { checkFixed, checkItems, readSafeU64, reservedField, writeSafeU64 } from "./fields.ts";
import type { Frame } from "./frame.ts";
import { Op } from "./layout.ts";
import { beginReply, beginRequest, type Output } from "./output.ts";
import { type Decoded, decoded, malformed, type Refusal, refused } from "./refusal.ts";

/** Sessions in one answer, at most. */
export const SESSION_LIST_MAX = 256;
const REQUEST_BYTES = 24;
const REPLY_HEAD_BYTES = 8;
const ITEM_BYTES = 48;

export interface SessionListRequest {
  /** 0: all of the connection's namespace; else this one alone. */
  session: bigint;
  /** `next` of the answer before; 0: from the first. */
  after: number;
  /** 0: as many as the agent gives. */
  max: number;
}

export interface SessionItem {
  readonly session: bigint;
  /** Milliseconds since its last commit. */
  readonly idleMs: number;
  readonly ramBlocks: number;
  readonly ramBytes: number;
  readonly ssdBlocks: number;
  readonly ssdBytes: number;
}

export interface SessionListReply {
  /** 0: that was all. */
  readonly next: number;
  readonly sessions: readonly SessionItem[];
}

/** The most sessions that a frame of so many bytes holds. */
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
  if (after === null) return malformed("session list: after is below 2^53");
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
