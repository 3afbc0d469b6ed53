import { assert, DIGEST_BYTES } from "../../core/index.ts";
import {
  checkFixed,
  checkItems,
  copyIn,
  copyOut,
  isZero,
  reservedField,
  undefinedBits,
} from "./fields.ts";
import type { Frame } from "./frame.ts";
import type { DigestItems } from "./items.ts";
import {
  FrameStatus,
  HEADER_BYTES,
  IDENTIFY_ITEM_BYTES,
  IdentifyKind,
  Op,
  PING_BYTES_MAX,
  padded,
  TIER_MASK_ALL,
} from "./layout.ts";
import { beginReply, beginRequest, type Output } from "./output.ts";
import { malformed, type Refusal, refusal } from "./refusal.ts";

/** Requests that take nothing: ping, identify, match. */

export function encodePingRequest(
  output: Output,
  requestId: number,
  payload: Uint8Array,
  noReply = false,
): void {
  assert(payload.length <= PING_BYTES_MAX && payload.length % 8 === 0, "0 to 64 bytes, in eights");
  const at = beginRequest(output, Op.ping, requestId, 0, payload.length, noReply);
  output.bytes.set(payload, at);
}

/** Answers with the request's own bytes. */
export function encodePingReply(output: Output, request: Frame): void {
  const length = request.end - request.body;
  const at = beginReply(output, Op.ping, request.requestId, 0, length);
  for (let i = 0; i < length; i++) output.bytes[at + i] = request.bytes[request.body + i]!;
}

/** Judges a ping of either direction; its payload is `bytes[body, end)`. */
export function checkPing(frame: Frame): Refusal | null {
  if (frame.count !== 0) return malformed("ping: the count is 0");
  if (frame.end - frame.body > PING_BYTES_MAX)
    return malformed("ping: at most 64 bytes of payload");
  return null;
}

export interface IdentifyRequest {
  kind: IdentifyKind;
  layer: number;
  /** Tokens, chain keys or engine hashes. */
  count: number;
  /** The items as they came, packed little-endian: borrowed from the frame, at any alignment. */
  items: Uint8Array;
}

export function emptyIdentifyRequest(): IdentifyRequest {
  return { kind: IdentifyKind.tokens, layer: 0, count: 0, items: new Uint8Array(0) };
}

/** Digests that an IDENTIFY of `count` items asks for. */
export function identifyDigests(kind: IdentifyKind, count: number, blockTokens: number): number {
  return kind === IdentifyKind.tokens ? Math.floor(count / blockTokens) : count;
}

export function encodeIdentifyRequest(
  output: Output,
  requestId: number,
  request: Readonly<IdentifyRequest>,
): void {
  const itemsBytes = request.count * IDENTIFY_ITEM_BYTES[request.kind];
  assert(request.items.length >= itemsBytes, "as many items as counted");
  const bodyBytes = 8 + padded(itemsBytes);
  const at = beginRequest(output, Op.identify, requestId, request.count, bodyBytes);
  output.view.setUint32(at, request.kind, true);
  output.view.setUint32(at + 4, request.layer, true);
  copyIn(request.items, itemsBytes, output.bytes, at + 8);
  output.bytes.fill(0, at + 8 + itemsBytes, at + bodyBytes);
}

/** The bound on items is that their digests fit into one reply: `itemsMax` does not apply. */
export function decodeIdentifyRequest(
  frame: Frame,
  blockTokens: number,
  frameBytesMax: number,
  into: IdentifyRequest,
): Refusal | null {
  const { bytes, view, body, end, count } = frame;
  if (end - body < 8) return malformed("identify: the body is cut short");
  const kind = view.getUint32(body, true);
  if (!isIdentifyKind(kind)) return malformed(`identify: kind ${kind} is none of 0 to 3`);
  const itemsEnd = body + 8 + count * IDENTIFY_ITEM_BYTES[kind];
  if (end !== padded8(itemsEnd, body))
    return malformed("identify: the count and the frame's length do not agree");
  if (!isZero(bytes, itemsEnd, end)) return reservedField(frame);
  const most = Math.floor((frameBytesMax - HEADER_BYTES) / DIGEST_BYTES);
  if (identifyDigests(kind, count, blockTokens) > most)
    return refusal(FrameStatus.limit, `identify: ask for at most ${most} digests at once`);
  into.kind = kind;
  into.layer = view.getUint32(body + 4, true);
  into.count = count;
  into.items = bytes.subarray(body + 8, itemsEnd);
  return null;
}

function padded8(end: number, start: number): number {
  return start + padded(end - start);
}

function isIdentifyKind(kind: number): kind is IdentifyKind {
  return kind <= IdentifyKind.shortKeys;
}

/** An engine hash that nobody knows has a digest of 32 zero bytes. The layer is not sent. */
export function encodeIdentifyReply(
  output: Output,
  requestId: number,
  blocks: Readonly<DigestItems>,
): void {
  const { count } = blocks;
  const at = beginReply(output, Op.identify, requestId, count, count * DIGEST_BYTES);
  copyIn(blocks.digests, count * DIGEST_BYTES, output.bytes, at);
}

export function decodeIdentifyReply(frame: Frame, into: DigestItems): Refusal | null {
  const bad = checkItems(frame, 0, DIGEST_BYTES, into.digests.length / DIGEST_BYTES);
  if (bad !== null) return bad;
  into.count = frame.count;
  copyOut(frame.bytes, frame.body, frame.count * DIGEST_BYTES, into.digests);
  return null;
}

export interface MatchOptions {
  /** Tiers that count, as a mask of `TierBit`; 0 = all. */
  tiers: number;
}

export function encodeMatchRequest(
  output: Output,
  requestId: number,
  tiers: number,
  blocks: Readonly<DigestItems>,
): void {
  const digestsBytes = blocks.count * DIGEST_BYTES;
  const at = beginRequest(output, Op.match, requestId, blocks.count, 8 + digestsBytes);
  output.view.setUint32(at, blocks.layer, true);
  output.view.setUint32(at + 4, tiers, true);
  copyIn(blocks.digests, digestsBytes, output.bytes, at + 8);
}

export function decodeMatchRequest(
  frame: Frame,
  options: MatchOptions,
  into: DigestItems,
): Refusal | null {
  const bad = checkItems(frame, 8, DIGEST_BYTES, into.digests.length / DIGEST_BYTES);
  if (bad !== null) return bad;
  const tiers = frame.view.getUint32(frame.body + 4, true);
  if (tiers > TIER_MASK_ALL) return undefinedBits(frame, "tiers");
  options.tiers = tiers;
  into.layer = frame.view.getUint32(frame.body, true);
  into.count = frame.count;
  copyOut(frame.bytes, frame.body + 8, frame.count * DIGEST_BYTES, into.digests);
  return null;
}

/** `best[i]` is the `TierBit` of the best tier that has block `i`, 0 where none has. */
export function encodeMatchReply(
  output: Output,
  requestId: number,
  count: number,
  leading: number,
  best: Uint8Array,
): void {
  const bodyBytes = 8 + padded(count);
  const at = beginReply(output, Op.match, requestId, count, bodyBytes);
  output.view.setUint32(at, leading, true);
  output.view.setUint32(at + 4, 0, true);
  copyIn(best, count, output.bytes, at + 8);
  output.bytes.fill(0, at + 8 + count, at + bodyBytes);
}

/** Answers how many leading blocks are present and fills `best`, or a refusal. */
export function decodeMatchReply(frame: Frame, best: Uint8Array): number | Refusal {
  const { bytes, view, body, end, count } = frame;
  const fixed = checkFixed(frame, count, 8 + padded(count));
  if (fixed !== null) return fixed;
  if (count > best.length) return malformed("match: more answers than blocks were asked");
  const leading = view.getUint32(body, true);
  if (leading > count) return malformed("match: more leading blocks than were asked");
  if (view.getUint32(body + 4, true) !== 0 || !isZero(bytes, body + 8 + count, end))
    return reservedField(frame);
  copyOut(bytes, body + 8, count, best);
  return leading;
}
