import { assert, DIGEST_BYTES } from "../../core/index.ts";
import { DIGEST_ITEM, type DigestItems, digestsFit } from "./blocks.ts";
import {
  beginReply,
  beginRequest,
  checkFixed,
  checkItems,
  copyIn,
  type Decoded,
  decoded,
  type Frame,
  isZero,
  malformed,
  type Output,
  type Refusal,
  readPaddedText,
  refusal,
  refused,
  reservedField,
  undefinedBits,
} from "./frame.ts";
import {
  FrameStatus,
  HEADER_BYTES,
  IDENTIFY_ITEM_BYTES,
  IdentifyKind,
  LookupFlag,
  LookupReplyFlag,
  MEDIA_NAME_BYTES_MAX,
  Op,
  PING_BYTES_MAX,
  padded,
  SOURCE_BYTES,
  TIER_MASK_ALL,
} from "./layout.ts";
import {
  bits,
  Fields,
  itemsMessage,
  type Kind,
  replyTo,
  reserved,
  u32,
  within,
} from "./message.ts";

/** Codecs of requests that grant no slots: ping, identify, match. */

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

/** Writes the reply to a PING: the request's payload. */
export function encodePingReply(output: Output, request: Frame): void {
  const length = request.end - request.body;
  const at = beginReply(output, Op.ping, request.requestId, 0, length);
  for (let i = 0; i < length; i++) output.bytes[at + i] = request.bytes[request.body + i];
}

/** Checks a PING request or reply. Its payload is `bytes[body, end)`. */
export function checkPing(frame: Frame): Refusal | null {
  if (frame.count !== 0) return malformed("ping: the count must be 0");
  if (frame.end - frame.body > PING_BYTES_MAX)
    return malformed("ping: at most 64 bytes of payload");
  return null;
}

export interface IdentifyRequest {
  kind: IdentifyKind;
  layer: number;
  /** Number of tokens, chain keys or engine hashes. */
  count: number;
  /**
   * The received items, packed little-endian. A view of the frame at any alignment, valid only
   * while the frame is.
   */
  items: Uint8Array;
}

export function emptyIdentifyRequest(): IdentifyRequest {
  return { kind: IdentifyKind.tokens, layer: 0, count: 0, items: new Uint8Array(0) };
}

/** Returns the number of digests that an IDENTIFY of `count` items requests. */
export function identifyDigests(kind: IdentifyKind, count: number, blockTokens: number): number {
  return kind === IdentifyKind.tokens ? Math.floor(count / blockTokens) : count;
}

export function encodeIdentifyRequest(
  output: Output,
  requestId: number,
  request: Readonly<IdentifyRequest>,
): void {
  const itemsBytes = request.count * IDENTIFY_ITEM_BYTES[request.kind];
  assert(request.items.length >= itemsBytes, "the items have the counted length");
  const bodyBytes = 8 + padded(itemsBytes);
  const at = beginRequest(output, Op.identify, requestId, request.count, bodyBytes);
  output.view.setUint32(at, request.kind, true);
  output.view.setUint32(at + 4, request.layer, true);
  copyIn(request.items, itemsBytes, output.bytes, at + 8);
  output.bytes.fill(0, at + 8 + itemsBytes, at + bodyBytes);
}

/** Decodes IDENTIFY. Its digests must fit in one reply; the limit `itemsMax` does not apply. */
export function decodeIdentifyRequest(
  frame: Frame,
  blockTokens: number,
  frameBytesMax: number,
  into: IdentifyRequest,
): Refusal | null {
  const { bytes, view, body, end, count } = frame;
  if (end - body < 8) return malformed("identify: the body is cut short");
  const kind = view.getUint32(body, true);
  if (!isIdentifyKind(kind)) return malformed(`identify: kind ${kind} is undefined: use 0 to 3`);
  const itemsEnd = body + 8 + count * IDENTIFY_ITEM_BYTES[kind];
  if (end !== padded8(itemsEnd, body))
    return malformed("identify: the count and the frame's length do not agree");
  if (!isZero(bytes, itemsEnd, end)) return reservedField(frame);
  const most = Math.floor((frameBytesMax - HEADER_BYTES) / DIGEST_BYTES);
  if (identifyDigests(kind, count, blockTokens) > most)
    return refusal(FrameStatus.limit, `identify: request at most ${most} digests at once`);
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

/** Reply to IDENTIFY. An unknown engine hash has a digest of 32 zero bytes. `layer` is not sent. */
export const { encode: encodeIdentifyReply, decode: decodeIdentifyReply } =
  itemsMessage<DigestItems>(
    replyTo(Op.identify),
    { head: {}, item: DIGEST_ITEM },
    { capacity: digestsFit },
  );

export interface MatchOptions {
  /** Tiers to search, as a mask of `TierBit`; 0 = all. */
  tiers: number;
}

// MATCH is on the hot path and has a handwritten codec: a loop over its two declared fields costs
// more than reading them.

export function encodeMatchRequest(
  output: Output,
  requestId: number,
  { tiers }: Readonly<MatchOptions>,
  { count, layer, digests }: Readonly<DigestItems>,
): void {
  const digestsBytes = count * DIGEST_BYTES;
  const at = beginRequest(output, Op.match, requestId, count, 8 + digestsBytes);
  output.view.setUint32(at, layer, true);
  output.view.setUint32(at + 4, tiers, true);
  copyIn(digests, digestsBytes, output.bytes, at + 8);
}

export function decodeMatchRequest(
  frame: Frame,
  options: MatchOptions,
  into: DigestItems,
): Refusal | null {
  const { bytes, view, body, count } = frame;
  const bad = checkItems(frame, 8, DIGEST_BYTES, digestsFit(into));
  if (bad !== null) return bad;
  const tiers = view.getUint32(body + 4, true);
  if (tiers > TIER_MASK_ALL) return undefinedBits(frame, "tiers");
  options.tiers = tiers;
  into.layer = view.getUint32(body, true);
  into.count = count;
  into.digests.set(bytes.subarray(body + 8, body + 8 + count * DIGEST_BYTES), 0);
  return null;
}

/** Encodes MATCH's reply. `best[i]` is the `TierBit` of the best tier that has block `i`, or 0. */
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

/**
 * Decodes MATCH's reply: fills `best` and returns how many blocks from the first on are present
 * without a gap, or why the reply is invalid.
 */
export function decodeMatchReply(frame: Frame, best: Uint8Array): number | Refusal {
  const { bytes, view, body, end, count } = frame;
  const fixed = checkFixed(frame, count, 8 + padded(count));
  if (fixed !== null) return fixed;
  if (count > best.length) return malformed("match: more answers than requested blocks");
  const leading = view.getUint32(body, true);
  if (leading > count) return malformed("match: more leading blocks than requested");
  if (view.getUint32(body + 4, true) !== 0 || !isZero(bytes, body + 8 + count, end))
    return reservedField(frame);
  best.set(bytes.subarray(body + 8, body + 8 + count), 0);
  return leading;
}

/** Codec of LOOKUP, which identifies, matches, promotes and reserves blocks in one request. */

const MEDIA_HEAD_BYTES = 8;

/** Item kinds of IDENTIFY by which a LOOKUP may name blocks. */
export type LookupKind = Exclude<IdentifyKind, typeof IdentifyKind.engineHashes>;

/** One multimodal item of a prompt. */
export interface MediaItem {
  /** Index of the item's first token, counted from the start of the prompt. */
  readonly position: number;
  /** Name of the item, 1 to 256 bytes. */
  readonly name: Uint8Array;
}

export interface LookupRequest {
  readonly layer: number;
  /** Tiers to search, as a mask of `TierBit`; 0 = RAM and SSD. */
  readonly tiers: number;
  readonly kind: LookupKind;
  /** Bits of `LookupFlag`. */
  readonly flags: number;
  /** Deadline of the reply in ms; 0 = the agent's default. */
  readonly deadlineMs: number;
  /** Duration in ms of the reservation; 0 = the agent's default. */
  readonly holdMs: number;
  /** Number of times a block is acquired before its reservation ends; 0 = 1. */
  readonly readers: number;
  /** Handle of the namespace; 0 = the connection's own. */
  readonly namespace: number;
  /**
   * Digest of the block before the request's first token; null = the request starts at the prompt's
   * start.
   */
  readonly parent: Uint8Array | null;
  /** Name of the peer that computed the blocks; empty = none given. */
  readonly source: string;
  /** Multimodal items, in ascending order of position. */
  readonly media: readonly MediaItem[];
  /** Number of tokens or chain keys. */
  readonly count: number;
  /**
   * The received items, packed. A view of the frame at any alignment, valid only while the frame
   * is.
   */
  readonly items: Uint8Array;
}

function mediaBytes(media: readonly MediaItem[]): number {
  return media.reduce((sum, { name }) => sum + MEDIA_HEAD_BYTES + padded(name.length), 0);
}

/** Encodes a list of multimodal items; frames and hashes use the same bytes. */
export function encodeMedia(media: readonly MediaItem[]): Uint8Array {
  const bytes = new Uint8Array(mediaBytes(media));
  const view = new DataView(bytes.buffer);
  let at = 0;
  for (const { position, name } of media) {
    const inRange = name.length > 0 && name.length <= MEDIA_NAME_BYTES_MAX;
    assert(inRange, "the name of a multimodal item is 1 to 256 bytes");
    view.setUint32(at, position, true);
    view.setUint32(at + 4, name.length, true);
    bytes.set(name, at + MEDIA_HEAD_BYTES);
    at += MEDIA_HEAD_BYTES + padded(name.length);
  }
  return bytes;
}

const lookupKind: Kind<LookupKind> = {
  ...within<LookupKind>(IdentifyKind.tokens, IdentifyKind.shortKeys),
  problem: "undefined: use 0, 1 or 3",
  read({ view }, at) {
    const kind = view.getUint32(at, true);
    const isKnown = kind in IDENTIFY_ITEM_BYTES && kind !== IdentifyKind.engineHashes;
    return isKnown ? (kind as LookupKind) : undefined;
  },
};

/** A digest; 32 zero bytes for null. */
const optionalDigest: Kind<Uint8Array | null> = {
  bytes: DIGEST_BYTES,
  problem: "",
  write({ bytes }, at, value) {
    if (value === null) bytes.fill(0, at, at + DIGEST_BYTES);
    else bytes.set(value, at);
  },
  read: ({ bytes }, at) =>
    isZero(bytes, at, at + DIGEST_BYTES) ? null : bytes.slice(at, at + DIGEST_BYTES),
};

/** Name of a peer; empty if there is none. */
const peerName: Kind<string> = {
  bytes: SOURCE_BYTES,
  problem: "must be zero-padded UTF-8 without control characters",
  write({ bytes }, at, value) {
    const text = new TextEncoder().encode(value);
    assert(text.length <= SOURCE_BYTES, "the name of a peer is at most 64 bytes");
    bytes.fill(0, at, at + SOURCE_BYTES);
    bytes.set(text, at);
  },
  read: ({ bytes }, at) => readPaddedText(bytes, at, SOURCE_BYTES) ?? undefined,
};

const maskOf = (flags: Readonly<Record<string, number>>) =>
  Object.values(flags).reduce((mask, bit) => mask | bit, 0);

const LOOKUP_HEAD = new Fields({
  layer: u32,
  tiers: bits(TIER_MASK_ALL),
  kind: lookupKind,
  flags: bits(maskOf(LookupFlag)),
  deadlineMs: u32,
  holdMs: u32,
  readers: u32,
  namespace: u32,
  parent: optionalDigest,
  source: peerName,
  mediaCount: u32,
  mediaBytes: u32,
});

export function encodeLookupRequest(
  output: Output,
  requestId: number,
  request: Readonly<LookupRequest>,
): void {
  const { count, kind, media } = request;
  const list = encodeMedia(media);
  const itemsBytes = count * IDENTIFY_ITEM_BYTES[kind];
  assert(request.items.length >= itemsBytes, "the items have the counted length");
  const bodyBytes = LOOKUP_HEAD.bytes + list.length + padded(itemsBytes);
  const at = beginRequest(output, Op.lookup, requestId, count, bodyBytes);
  const { bytes } = output;
  LOOKUP_HEAD.write(output, at, {
    ...request,
    mediaCount: media.length,
    mediaBytes: list.length,
  });
  bytes.set(list, at + LOOKUP_HEAD.bytes);
  const itemsAt = at + LOOKUP_HEAD.bytes + list.length;
  copyIn(request.items, itemsBytes, bytes, itemsAt);
  bytes.fill(0, itemsAt + itemsBytes, at + bodyBytes);
}

/** Decodes LOOKUP. `digestsMax` is the maximum blocks in one request. */
export function decodeLookupRequest(
  frame: Frame,
  blockTokens: number,
  digestsMax: number,
): Decoded<LookupRequest> {
  const { bytes, body, end, count } = frame;
  if (end - body < LOOKUP_HEAD.bytes) return refused(malformed("lookup: the body is cut short"));
  const head = LOOKUP_HEAD.empty();
  const bad = LOOKUP_HEAD.read(frame, body, head);
  if (bad !== null) return refused(bad);
  const { mediaCount, mediaBytes, ...request } = head;
  const { kind } = request;
  const mediaEnd = body + LOOKUP_HEAD.bytes + mediaBytes;
  const itemsEnd = mediaEnd + count * IDENTIFY_ITEM_BYTES[kind];
  if (mediaEnd > end || end !== body + padded(itemsEnd - body))
    return refused(malformed("lookup: the count and the frame's length do not agree"));
  if (!isZero(bytes, itemsEnd, end)) return refused(reservedField(frame));
  if (identifyDigests(kind, count, blockTokens) > digestsMax) {
    const text = `lookup: request at most ${digestsMax} blocks at once`;
    return refused(refusal(FrameStatus.limit, text));
  }
  const media = readMedia(frame, body + LOOKUP_HEAD.bytes, mediaEnd, mediaCount);
  if (!media.ok) return media;
  if (kind !== IdentifyKind.tokens && (request.parent !== null || media.value.length > 0))
    return refused(
      malformed("lookup: with chain keys, send neither a parent nor multimodal items"),
    );
  const items = bytes.subarray(mediaEnd, itemsEnd);
  return decoded({ ...request, count, media: media.value, items });
}

function readMedia(
  frame: Frame,
  start: number,
  end: number,
  count: number,
): Decoded<readonly MediaItem[]> {
  const { bytes, view } = frame;
  const broken = (why: string) => refused<readonly MediaItem[]>(malformed(`lookup: ${why}`));
  const media: MediaItem[] = [];
  let at = start;
  for (let i = 0, last = 0; i < count; i++) {
    if (end - at < MEDIA_HEAD_BYTES) return broken("the list of multimodal items is cut short");
    const position = view.getUint32(at, true);
    const length = view.getUint32(at + 4, true);
    const nameAt = at + MEDIA_HEAD_BYTES;
    if (length === 0 || length > MEDIA_NAME_BYTES_MAX)
      return broken(`the name of a multimodal item has ${length} bytes: send 1 to 256`);
    if (position < last) return broken("multimodal items must be in ascending order of position");
    at = nameAt + padded(length);
    if (at > end) return broken("the list of multimodal items is cut short");
    if (!isZero(bytes, nameAt + length, at)) return refused(reservedField(frame));
    media.push({ position, name: bytes.slice(nameAt, nameAt + length) });
    last = position;
  }
  return at === end ? decoded(media) : broken("extra bytes follow the multimodal items");
}

export interface LookupReply {
  /**
   * Number of blocks from the first on that are present without a gap on the requested tiers, for
   * all requested ranks.
   */
  leading: number;
  /**
   * Number of blocks from the first on that are in RAM, and reserved if the client asked for it.
   */
  ready: number;
  /** Id of the reservation that this LOOKUP made; 0 = none. */
  hold: number;
  /** Bits of `LookupReplyFlag`. */
  flags: number;
  /** Number of blocks, from position `leading` on, that a client is writing or has announced. */
  announced: number;
}

const LOOKUP_REPLY_HEAD = new Fields({
  leading: u32,
  ready: u32,
  hold: u32,
  flags: bits(maskOf(LookupReplyFlag)),
  announced: u32,
  reserved,
});

/** Returns true if the reply has neither tiers nor digests. */
function isBare(flags: number): boolean {
  return (flags & (LookupReplyFlag.more | LookupReplyFlag.unknownParent)) !== 0;
}

/**
 * Encodes LOOKUP's reply. `digests` is null if the client did not request them. A partial reply
 * never contains digests.
 */
export function encodeLookupReply(
  output: Output,
  requestId: number,
  reply: Readonly<LookupReply>,
  count: number,
  best: Uint8Array,
  digests: Uint8Array | null,
): void {
  const blocks = isBare(reply.flags) ? 0 : count;
  const digestsBytes = digests === null ? 0 : blocks * DIGEST_BYTES;
  const bodyBytes = LOOKUP_REPLY_HEAD.bytes + padded(blocks) + digestsBytes;
  const at = beginReply(output, Op.lookup, requestId, blocks, bodyBytes);
  const { bytes } = output;
  LOOKUP_REPLY_HEAD.write(output, at, reply);
  const bestAt = at + LOOKUP_REPLY_HEAD.bytes;
  copyIn(best, blocks, bytes, bestAt);
  bytes.fill(0, bestAt + blocks, bestAt + padded(blocks));
  if (digestsBytes > 0) copyIn(digests!, digestsBytes, bytes, bestAt + padded(blocks));
}

/** Decodes LOOKUP's reply: fills `best`, and `digests` if the client requested them. */
export function decodeLookupReply(
  frame: Frame,
  best: Uint8Array,
  digests: Uint8Array | null,
): LookupReply | Refusal {
  const { bytes, body, count } = frame;
  const digestsBytes = digests === null ? 0 : count * DIGEST_BYTES;
  const bestAt = body + LOOKUP_REPLY_HEAD.bytes;
  const digestsAt = bestAt + padded(count);
  const reply = LOOKUP_REPLY_HEAD.empty();
  const bad =
    checkFixed(frame, count, digestsAt + digestsBytes - body) ??
    LOOKUP_REPLY_HEAD.read(frame, body, reply);
  if (bad !== null) return bad;
  const most = Math.min(best.length, digests === null ? count : digests.length / DIGEST_BYTES);
  if (count > most) return malformed("lookup: more answers than requested blocks");
  if (isBare(reply.flags) ? count !== 0 : reply.leading > count)
    return malformed("lookup: more leading blocks than requested, or answers in a partial reply");
  if (reply.ready > reply.leading) return malformed("lookup: more ready blocks than present ones");
  if (!isZero(bytes, bestAt + count, digestsAt)) return reservedField(frame);
  best.set(bytes.subarray(bestAt, bestAt + count));
  digests?.set(bytes.subarray(digestsAt, digestsAt + digestsBytes));
  return reply;
}
