import { assert, DIGEST_BYTES } from "../../core/index.ts";
import {
  checkFixed,
  checkItems,
  copyIn,
  isZero,
  readUtf8,
  reservedField,
  undefinedBits,
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
import {
  ANNOUNCE_ITEM_BYTES,
  AnnounceFlag,
  type AnnounceKind,
  ENGINE_ID_BYTES,
  EngineRole,
  NamespaceFlag,
  Op,
  padded,
  SALT_BYTES_MAX,
} from "./layout.ts";

/** Requests of the connections that form an engine: namespace, join, unhold, announce, command. */

const NAMESPACE_HEAD_BYTES = 40;
const NAMESPACE_REPLY_BYTES = 40;
const JOIN_BYTES = 24;
const JOIN_REPLY_BYTES = 8;
const UNHOLD_ITEM_BYTES = 8;
const ANNOUNCE_HEAD_BYTES = 24;
const COMMAND_HEAD_BYTES = 8;

/** How a namespace differs from the connection's own. */
export interface NamespaceRequest {
  /** 32 bytes over the adapter's weights; null = no adapter. */
  readonly loraDigest: Uint8Array | null;
  readonly salt: string | null;
}

export interface NamespaceReply {
  /** Handle of the namespace in requests of this connection. */
  readonly namespace: number;
  /** 32 bytes. */
  readonly namespaceId: Uint8Array;
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
  const { bytes, view } = output;
  bytes.fill(0, at, at + bodyBytes);
  const flags =
    (loraDigest === null ? 0 : NamespaceFlag.lora) | (salt === null ? 0 : NamespaceFlag.salt);
  view.setUint32(at, flags, true);
  view.setUint32(at + 4, text.length, true);
  if (loraDigest !== null) copyIn(loraDigest, DIGEST_BYTES, bytes, at + 8);
  bytes.set(text, at + NAMESPACE_HEAD_BYTES);
}

export function decodeNamespaceRequest(frame: Frame): Decoded<NamespaceRequest> {
  const { bytes, view, body, end } = frame;
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
  if (!isZero(bytes, saltAt + saltBytes, end)) return refused(reservedField(frame));
  if (!hasLora && !isZero(bytes, loraAt, loraAt + DIGEST_BYTES))
    return refused(malformed("namespace: a digest without its flag: set bit 0, or send zeros"));
  // A manifest cannot contain an empty text, so an empty salt means none.
  if (hasSalt !== saltBytes > 0)
    return refused(
      malformed("namespace: set the salt's flag and send at least one byte, or neither"),
    );
  const salt = readUtf8(bytes, saltAt, saltAt + saltBytes);
  if (salt === null) return refused(malformed("namespace: the salt is not UTF-8"));
  return decoded({
    loraDigest: hasLora ? bytes.slice(loraAt, loraAt + DIGEST_BYTES) : null,
    salt: hasSalt ? salt : null,
  });
}

export function encodeNamespaceReply(
  output: Output,
  requestId: number,
  { namespace, namespaceId }: NamespaceReply,
): void {
  const at = beginReply(output, Op.namespace, requestId, 0, NAMESPACE_REPLY_BYTES);
  output.view.setUint32(at, namespace, true);
  output.view.setUint32(at + 4, 0, true);
  copyIn(namespaceId, DIGEST_BYTES, output.bytes, at + 8);
}

export function decodeNamespaceReply(frame: Frame): Decoded<NamespaceReply> {
  const fixed = checkFixed(frame, 0, NAMESPACE_REPLY_BYTES);
  if (fixed !== null) return refused(fixed);
  const { bytes, view, body } = frame;
  if (view.getUint32(body + 4, true) !== 0) return refused(reservedField(frame));
  const namespaceId = bytes.slice(body + 8, body + NAMESPACE_REPLY_BYTES);
  return decoded({ namespace: view.getUint32(body, true), namespaceId });
}

export interface JoinRequest {
  /** 16 bytes, the same on all connections of an engine. Not all zero. */
  readonly engine: Uint8Array;
  readonly role: EngineRole;
}

export function encodeJoinRequest(
  output: Output,
  requestId: number,
  { engine, role }: JoinRequest,
): void {
  const at = beginRequest(output, Op.join, requestId, 0, JOIN_BYTES);
  copyIn(engine, ENGINE_ID_BYTES, output.bytes, at);
  output.view.setUint32(at + 16, role, true);
  output.view.setUint32(at + 20, 0, true);
}

export function decodeJoinRequest(frame: Frame): Decoded<JoinRequest> {
  const fixed = checkFixed(frame, 0, JOIN_BYTES);
  if (fixed !== null) return refused(fixed);
  const { bytes, view, body } = frame;
  const role = view.getUint32(body + 16, true);
  if (!isRole(role)) return refused(malformed(`join: role ${role} is undefined: use 0, 1 or 2`));
  if (view.getUint32(body + 20, true) !== 0) return refused(reservedField(frame));
  if (isZero(bytes, body, body + ENGINE_ID_BYTES))
    return refused(malformed("join: the engine's id is all zeros: use 16 random bytes"));
  return decoded({ engine: bytes.slice(body, body + ENGINE_ID_BYTES), role });
}

function isRole(role: number): role is EngineRole {
  return role <= EngineRole.worker;
}

/** `members`: the engine's current number of connections. */
export function encodeJoinReply(output: Output, requestId: number, members: number): void {
  const at = beginReply(output, Op.join, requestId, 0, JOIN_REPLY_BYTES);
  output.view.setUint32(at, members, true);
  output.view.setUint32(at + 4, 0, true);
}

/** The engine's number of connections, or a refusal. */
export function decodeJoinReply(frame: Frame): number | Refusal {
  const fixed = checkFixed(frame, 0, JOIN_REPLY_BYTES);
  if (fixed !== null) return fixed;
  if (frame.view.getUint32(frame.body + 4, true) !== 0) return reservedField(frame);
  return frame.view.getUint32(frame.body, true);
}

export function encodeUnholdRequest(
  output: Output,
  requestId: number,
  holds: readonly number[],
  noReply = false,
): void {
  const { length } = holds;
  let at = beginRequest(output, Op.unhold, requestId, length, length * UNHOLD_ITEM_BYTES, noReply);
  for (const hold of holds) {
    output.view.setUint32(at, hold, true);
    output.view.setUint32(at + 4, 0, true);
    at += UNHOLD_ITEM_BYTES;
  }
}

export function decodeUnholdRequest(frame: Frame, itemsMax: number): Decoded<readonly number[]> {
  const bad = checkItems(frame, 0, UNHOLD_ITEM_BYTES, itemsMax);
  if (bad !== null) return refused(bad);
  const holds: number[] = [];
  for (let i = 0, at = frame.body; i < frame.count; i++, at += UNHOLD_ITEM_BYTES) {
    if (frame.view.getUint32(at + 4, true) !== 0) return refused(reservedField(frame));
    holds.push(frame.view.getUint32(at, true));
  }
  return decoded(holds);
}

export interface AnnounceRequest {
  readonly layer: number;
  /** How long the announcement is valid. */
  readonly ttlMs: number;
  readonly kind: AnnounceKind;
  /** Bits of `AnnounceFlag`. */
  readonly flags: number;
  /** Handle of the namespace; 0 = the connection's own. */
  readonly namespace: number;
  readonly count: number;
  /** Digests or chain keys, packed. Borrowed from the frame. */
  readonly items: Uint8Array;
}

export function encodeAnnounceRequest(
  output: Output,
  requestId: number,
  request: AnnounceRequest,
  noReply = false,
): void {
  const { layer, ttlMs, kind, flags, namespace, count } = request;
  const itemsBytes = count * ANNOUNCE_ITEM_BYTES[kind];
  const bodyBytes = ANNOUNCE_HEAD_BYTES + itemsBytes;
  const at = beginRequest(output, Op.announce, requestId, count, bodyBytes, noReply);
  const head = [layer, ttlMs, kind, flags, namespace, 0];
  for (const [i, word] of head.entries()) output.view.setUint32(at + 4 * i, word, true);
  copyIn(request.items, itemsBytes, output.bytes, at + ANNOUNCE_HEAD_BYTES);
}

export function decodeAnnounceRequest(frame: Frame, itemsMax: number): Decoded<AnnounceRequest> {
  const { bytes, view, body, end, count } = frame;
  if (end - body < ANNOUNCE_HEAD_BYTES)
    return refused(malformed("announce: the body is cut short"));
  const word = (i: number) => view.getUint32(body + 4 * i, true);
  const [kind, flags] = [word(2), word(3)];
  if (!isAnnounceKind(kind))
    return refused(malformed(`announce: kind ${kind} is undefined: use 0, 1 or 3`));
  const bad = checkItems(frame, ANNOUNCE_HEAD_BYTES, ANNOUNCE_ITEM_BYTES[kind], itemsMax);
  if (bad !== null) return refused(bad);
  if ((flags & ~(AnnounceFlag.family | AnnounceFlag.withdraw)) !== 0)
    return refused(undefinedBits(frame, "flags"));
  if (word(5) !== 0) return refused(reservedField(frame));
  return decoded({
    layer: word(0),
    ttlMs: word(1),
    kind,
    flags,
    namespace: word(4),
    count,
    items: bytes.subarray(body + ANNOUNCE_HEAD_BYTES, end),
  });
}

function isAnnounceKind(kind: number): kind is AnnounceKind {
  return kind in ANNOUNCE_ITEM_BYTES;
}

/** A command and its receipt have the same layout: JSON as UTF-8. */
export function encodeCommandRequest(output: Output, requestId: number, json: Uint8Array): void {
  const bodyBytes = COMMAND_HEAD_BYTES + padded(json.length);
  writeText(output, beginRequest(output, Op.command, requestId, 0, bodyBytes), bodyBytes, json);
}

export function encodeCommandReply(output: Output, requestId: number, json: Uint8Array): void {
  const bodyBytes = COMMAND_HEAD_BYTES + padded(json.length);
  writeText(output, beginReply(output, Op.command, requestId, 0, bodyBytes), bodyBytes, json);
}

/** Returns a copy of the JSON. */
export function decodeCommand(frame: Frame): Decoded<Uint8Array> {
  const { bytes, view, body, end } = frame;
  if (end - body < COMMAND_HEAD_BYTES) return refused(malformed("command: the body is cut short"));
  const length = view.getUint32(body, true);
  const fixed = checkFixed(frame, 0, COMMAND_HEAD_BYTES + padded(length));
  if (fixed !== null) return refused(fixed);
  const textAt = body + COMMAND_HEAD_BYTES;
  if (view.getUint32(body + 4, true) !== 0 || !isZero(bytes, textAt + length, end))
    return refused(reservedField(frame));
  return decoded(bytes.slice(textAt, textAt + length));
}

function writeText(output: Output, at: number, bodyBytes: number, json: Uint8Array): void {
  output.bytes.fill(0, at, at + bodyBytes);
  output.view.setUint32(at, json.length, true);
  output.bytes.set(json, at + COMMAND_HEAD_BYTES);
}
