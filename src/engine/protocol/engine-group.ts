import { assert, DIGEST_BYTES } from "../../core/index.ts";
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
  readUtf8,
  refused,
  reservedField,
  undefinedBits,
} from "./frame.ts";
import {
  ANNOUNCE_ITEM_BYTES,
  AnnounceFlag,
  AnnounceKind,
  ENGINE_ID_BYTES,
  EngineRole,
  NamespaceFlag,
  Op,
  padded,
  SALT_BYTES_MAX,
} from "./layout.ts";
import {
  bits,
  bytes,
  Fields,
  fixedMessage,
  type Kind,
  listMessage,
  replyTo,
  requestOf,
  reserved,
  u32,
  within,
} from "./message.ts";

/**
 * Codecs of requests by connections that form an engine: namespace, join, unhold, announce,
 * command.
 */

const NAMESPACE_HEAD_BYTES = 40;
const COMMAND_HEAD_BYTES = 8;

/** The difference between a namespace and the connection's own: an adapter, a salt, or both. */
export interface NamespaceRequest {
  /** Digest of the LoRA adapter's weights, 32 bytes; null = no adapter. */
  readonly loraDigest: Uint8Array | null;
  readonly salt: string | null;
}

export function encodeNamespaceRequest(
  output: Output,
  requestId: number,
  { loraDigest, salt }: NamespaceRequest,
): void {
  const text = new TextEncoder().encode(salt ?? "");
  assert(text.length <= SALT_BYTES_MAX, "a salt is at most 4096 bytes");
  const bodyBytes = NAMESPACE_HEAD_BYTES + padded(text.length);
  const at = beginRequest(output, Op.namespace, requestId, 0, bodyBytes);
  output.bytes.fill(0, at, at + bodyBytes);
  const flags =
    (loraDigest === null ? 0 : NamespaceFlag.lora) | (salt === null ? 0 : NamespaceFlag.salt);
  output.view.setUint32(at, flags, true);
  output.view.setUint32(at + 4, text.length, true);
  if (loraDigest !== null) copyIn(loraDigest, DIGEST_BYTES, output.bytes, at + 8);
  output.bytes.set(text, at + NAMESPACE_HEAD_BYTES);
}

export function decodeNamespaceRequest(frame: Frame): Decoded<NamespaceRequest> {
  const { view, body, end } = frame;
  if (end - body < NAMESPACE_HEAD_BYTES)
    return refused(malformed("namespace: the body is cut short"));
  const flags = view.getUint32(body, true);
  const saltBytes = view.getUint32(body + 4, true);
  if ((flags & ~(NamespaceFlag.lora | NamespaceFlag.salt)) !== 0)
    return refused(undefinedBits(frame, "flags"));
  if (saltBytes > SALT_BYTES_MAX)
    return refused(malformed(`namespace: a salt is at most ${SALT_BYTES_MAX} bytes`));
  const fixed = checkFixed(frame, 0, NAMESPACE_HEAD_BYTES + padded(saltBytes));
  if (fixed !== null) return refused(fixed);
  const loraAt = body + 8;
  const saltAt = body + NAMESPACE_HEAD_BYTES;
  const hasLora = (flags & NamespaceFlag.lora) !== 0;
  const hasSalt = (flags & NamespaceFlag.salt) !== 0;
  if (!isZero(frame.bytes, saltAt + saltBytes, end)) return refused(reservedField(frame));
  if (!hasLora && !isZero(frame.bytes, loraAt, loraAt + DIGEST_BYTES))
    return refused(malformed("namespace: a digest without its flag: set bit 0, or send zeros"));
  // A manifest cannot contain an empty text, so an empty salt means none.
  if (hasSalt !== saltBytes > 0)
    return refused(
      malformed("namespace: set the salt's flag and send at least one byte, or neither"),
    );
  const salt = readUtf8(frame.bytes, saltAt, saltAt + saltBytes);
  if (salt === null) return refused(malformed("namespace: the salt is not UTF-8"));
  return decoded({
    loraDigest: hasLora ? frame.bytes.slice(loraAt, loraAt + DIGEST_BYTES) : null,
    salt: hasSalt ? salt : null,
  });
}

export interface NamespaceReply {
  /** Handle by which later requests of this connection name the namespace. */
  readonly namespace: number;
  /** Id of the namespace, 32 bytes. */
  readonly namespaceId: Uint8Array;
}

export const { encode: encodeNamespaceReply, decode: decodeNamespaceReply } = fixedMessage(
  replyTo(Op.namespace),
  { namespace: u32, reserved, namespaceId: bytes(DIGEST_BYTES) },
);

export interface JoinRequest {
  /** Id of the engine: 16 bytes, not all zero, the same on all its connections. */
  readonly engine: Uint8Array;
  readonly role: EngineRole;
}

export const { encode: encodeJoinRequest, decode: decodeJoinRequest } = fixedMessage(
  requestOf(Op.join),
  {
    engine: bytes(ENGINE_ID_BYTES),
    role: within<EngineRole>(EngineRole.other, EngineRole.worker),
    reserved,
  },
  {
    check: ({ engine }) =>
      isZero(engine, 0, ENGINE_ID_BYTES)
        ? "the engine's id is all zeros: use 16 random bytes"
        : null,
  },
);

/** `members`: the engine's current number of connections. */
export const { encode: encodeJoinReply, decode: decodeJoinReply } = fixedMessage(replyTo(Op.join), {
  members: u32,
  reserved,
});

/** `holds`: ids of the reservations to end, as returned by LOOKUP. */
export const { encode: encodeUnholdRequest, decode: decodeUnholdRequest } = listMessage(
  requestOf(Op.unhold),
  "holds",
  { head: {}, item: { id: u32, reserved } },
  { max: 2 ** 32 },
);

export interface AnnounceRequest {
  readonly layer: number;
  /** Duration in ms for which the announcement is valid. */
  readonly ttlMs: number;
  readonly kind: AnnounceKind;
  /** Bits of `AnnounceFlag`. */
  readonly flags: number;
  /** Handle of the namespace; 0 = the connection's own. */
  readonly namespace: number;
  readonly count: number;
  /** Digests or chain keys, packed. A view of the frame, valid only while the frame is. */
  readonly items: Uint8Array;
}

const announceKind: Kind<AnnounceKind> = {
  ...within<AnnounceKind>(AnnounceKind.digests, AnnounceKind.shortKeys),
  problem: "undefined: use 0, 1 or 3",
  read({ view }, at) {
    const kind = view.getUint32(at, true);
    return kind in ANNOUNCE_ITEM_BYTES ? (kind as AnnounceKind) : undefined;
  },
};

const ANNOUNCE_HEAD = new Fields({
  layer: u32,
  ttlMs: u32,
  kind: announceKind,
  flags: bits(AnnounceFlag.family | AnnounceFlag.withdraw),
  namespace: u32,
  reserved,
});

export function encodeAnnounceRequest(
  output: Output,
  requestId: number,
  request: AnnounceRequest,
  noReply = false,
): void {
  const { count, items, kind } = request;
  const itemsBytes = count * ANNOUNCE_ITEM_BYTES[kind];
  const bodyBytes = ANNOUNCE_HEAD.bytes + itemsBytes;
  const at = beginRequest(output, Op.announce, requestId, count, bodyBytes, noReply);
  ANNOUNCE_HEAD.write(output, at, request);
  copyIn(items, itemsBytes, output.bytes, at + ANNOUNCE_HEAD.bytes);
}

export function decodeAnnounceRequest(frame: Frame, itemsMax: number): Decoded<AnnounceRequest> {
  const { body, end, count } = frame;
  if (end - body < ANNOUNCE_HEAD.bytes)
    return refused(malformed("announce: the body is cut short"));
  const items = frame.bytes.subarray(body + ANNOUNCE_HEAD.bytes, end);
  const request = { count, items, ...ANNOUNCE_HEAD.empty() };
  const bad =
    ANNOUNCE_HEAD.read(frame, body, request) ??
    checkItems(frame, ANNOUNCE_HEAD.bytes, ANNOUNCE_ITEM_BYTES[request.kind], itemsMax);
  return bad === null ? decoded(request) : refused(bad);
}

/** Encodes a COMMAND request or its reply; both contain JSON as UTF-8. */
export function encodeCommandRequest(output: Output, requestId: number, json: Uint8Array): void {
  const bodyBytes = COMMAND_HEAD_BYTES + padded(json.length);
  writeText(output, beginRequest(output, Op.command, requestId, 0, bodyBytes), bodyBytes, json);
}

export function encodeCommandReply(output: Output, requestId: number, json: Uint8Array): void {
  const bodyBytes = COMMAND_HEAD_BYTES + padded(json.length);
  writeText(output, beginReply(output, Op.command, requestId, 0, bodyBytes), bodyBytes, json);
}

/** Decodes a COMMAND request or its reply. Returns a copy of the JSON. */
export function decodeCommand(frame: Frame): Decoded<Uint8Array> {
  const { view, body, end } = frame;
  if (end - body < COMMAND_HEAD_BYTES) return refused(malformed("command: the body is cut short"));
  const length = view.getUint32(body, true);
  const fixed = checkFixed(frame, 0, COMMAND_HEAD_BYTES + padded(length));
  if (fixed !== null) return refused(fixed);
  const textAt = body + COMMAND_HEAD_BYTES;
  if (view.getUint32(body + 4, true) !== 0 || !isZero(frame.bytes, textAt + length, end))
    return refused(reservedField(frame));
  return decoded(frame.bytes.slice(textAt, textAt + length));
}

function writeText(output: Output, at: number, bodyBytes: number, json: Uint8Array): void {
  output.bytes.fill(0, at, at + bodyBytes);
  output.view.setUint32(at, json.length, true);
  output.bytes.set(json, at + COMMAND_HEAD_BYTES);
}
