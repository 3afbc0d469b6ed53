import { assert } from "../../core/index.ts";
import {
  checkFixed,
  copyIn,
  isZero,
  readSafeU64,
  readUtf8,
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
  refusal,
  refused,
} from "./frame.ts";
import {
  FrameStatus,
  HELLO_MAGIC,
  MANIFEST_BYTES_MAX,
  NAME_BYTES,
  Op,
  PROTOCOL_VERSION,
  padded,
} from "./layout.ts";

export interface HelloRequest {
  readonly versionMin: number;
  readonly versionMax: number;
  /** Feature bits that the client requests. The reply has those that both sides support. */
  readonly features: number;
  /** Name of the client in logs: at most 32 bytes of UTF-8 without control characters. */
  readonly name: string;
  /** Canonical encoding of the namespace manifest. */
  readonly manifest: Uint8Array;
}

export interface HelloReply {
  readonly version: number;
  /** 1 = XXH3-64, seed 0. */
  readonly checksumAlgorithm: number;
  readonly features: number;
  readonly namespaceId: Uint8Array;
  /** Differs after each start of the agent. */
  readonly incarnation: bigint;
  /** Size of the arena's memfd, which the client maps. */
  readonly arenaBytes: number;
  /** Bytes of the arena in use when the reply was written. It grows. */
  readonly arenaReadyBytes: number;
  readonly blockBytesMax: number;
  readonly frameBytesMax: number;
  readonly itemsMax: number;
  readonly handlesMax: number;
  readonly leaseMs: number;
  /** Tokens per block of this namespace. */
  readonly blockTokens: number;
}

/**
 * Magic, versions and features have the same layout in every version, so that a version mismatch
 * can be answered with a message.
 */
const HELLO_FROZEN_BYTES = 16;
const HELLO_HEAD_BYTES = HELLO_FROZEN_BYTES + NAME_BYTES + 8;
const HELLO_REPLY_BYTES = 96;
const CONTROL_CHARACTERS = /\p{Cc}/u;

export function encodeHelloRequest(output: Output, requestId: number, hello: HelloRequest): void {
  const name = new TextEncoder().encode(hello.name);
  const { manifest } = hello;
  assert(name.length <= NAME_BYTES, "a client's name is at most 32 bytes");
  assert(manifest.length <= MANIFEST_BYTES_MAX, "a manifest is at most 64 KiB");
  const bodyBytes = HELLO_HEAD_BYTES + padded(manifest.length);
  const at = beginRequest(output, Op.hello, requestId, 0, bodyBytes);
  const { bytes, view } = output;
  bytes.fill(0, at, at + bodyBytes);
  view.setUint32(at, HELLO_MAGIC, true);
  view.setUint16(at + 4, hello.versionMin, true);
  view.setUint16(at + 6, hello.versionMax, true);
  view.setUint32(at + 8, hello.features, true);
  bytes.set(name, at + 16);
  view.setUint32(at + 48, manifest.length, true);
  bytes.set(manifest, at + HELLO_HEAD_BYTES);
}

/** Copies the manifest. Versions are checked before any field that a later version may move. */
export function decodeHelloRequest(frame: Frame): Decoded<HelloRequest> {
  const { bytes, view, body, end } = frame;
  if (end - body < HELLO_FROZEN_BYTES || view.getUint32(body, true) !== HELLO_MAGIC)
    return refused(malformed('hello: the body begins with "HRTH"; is this an engine client?'));
  const versionMin = view.getUint16(body + 4, true);
  const versionMax = view.getUint16(body + 6, true);
  if (versionMin > PROTOCOL_VERSION || versionMax < PROTOCOL_VERSION)
    return refused(refusal(FrameStatus.version, versionText(versionMin, versionMax)));
  if (frame.count !== 0) return refused(malformed("hello: the count must be 0"));
  if (end - body < HELLO_HEAD_BYTES) return refused(malformed("hello: the body is cut short"));
  const manifestBytes = view.getUint32(body + 48, true);
  if (manifestBytes > MANIFEST_BYTES_MAX)
    return refused(malformed(`hello: the manifest is at most ${MANIFEST_BYTES_MAX} bytes`));
  const manifestAt = body + HELLO_HEAD_BYTES;
  if (end - manifestAt !== padded(manifestBytes))
    return refused(malformed("hello: the manifest's length and the frame's do not agree"));
  const zero =
    view.getUint32(body + 12, true) === 0 &&
    view.getUint32(body + 52, true) === 0 &&
    isZero(bytes, manifestAt + manifestBytes, end);
  if (!zero) return refused(reservedField(frame));
  const name = readName(bytes, body + HELLO_FROZEN_BYTES);
  if (name === null)
    return refused(
      malformed("hello: the name must be zero-padded UTF-8 without control characters"),
    );
  const manifest = bytes.slice(manifestAt, manifestAt + manifestBytes);
  return decoded({
    versionMin,
    versionMax,
    features: view.getUint32(body + 8, true),
    name,
    manifest,
  });
}

function versionText(min: number, max: number): string {
  return (
    `this agent supports engine protocol version ${PROTOCOL_VERSION}, ` +
    `the client ${min === max ? min : `${min} to ${max}`}: upgrade the older of the two`
  );
}

function readName(bytes: Uint8Array, at: number): string | null {
  let length = 0;
  while (length < NAME_BYTES && bytes[at + length] !== 0) length++;
  if (!isZero(bytes, at + length, at + NAME_BYTES)) return null;
  const name = readUtf8(bytes, at, at + length);
  return name === null || CONTROL_CHARACTERS.test(name) ? null : name;
}

export function encodeHelloReply(output: Output, requestId: number, reply: HelloReply): void {
  assert(reply.namespaceId.length === 32, "a namespace id is 32 bytes");
  const at = beginReply(output, Op.hello, requestId, 0, HELLO_REPLY_BYTES);
  const { bytes, view } = output;
  view.setUint16(at, reply.version, true);
  view.setUint16(at + 2, reply.checksumAlgorithm, true);
  view.setUint32(at + 4, reply.features, true);
  copyIn(reply.namespaceId, 32, bytes, at + 8);
  view.setBigUint64(at + 40, reply.incarnation, true);
  writeSafeU64(view, at + 48, reply.arenaBytes);
  writeSafeU64(view, at + 56, reply.arenaReadyBytes);
  writeSafeU64(view, at + 64, reply.blockBytesMax);
  view.setUint32(at + 72, reply.frameBytesMax, true);
  view.setUint32(at + 76, reply.itemsMax, true);
  view.setUint32(at + 80, reply.handlesMax, true);
  view.setUint32(at + 84, reply.leaseMs, true);
  view.setUint32(at + 88, reply.blockTokens, true);
  view.setUint32(at + 92, 0, true);
}

export function decodeHelloReply(frame: Frame): Decoded<HelloReply> {
  const bad = checkFixed(frame, 0, HELLO_REPLY_BYTES);
  if (bad !== null) return refused(bad);
  const { bytes, view, body } = frame;
  if (view.getUint32(body + 92, true) !== 0) return refused(reservedField(frame));
  const arenaBytes = readSafeU64(view, body + 48);
  const arenaReadyBytes = readSafeU64(view, body + 56);
  const blockBytesMax = readSafeU64(view, body + 64);
  if (arenaBytes === null || arenaReadyBytes === null || blockBytesMax === null)
    return refused(malformed("hello: sizes must be below 2^53"));
  return decoded({
    version: view.getUint16(body, true),
    checksumAlgorithm: view.getUint16(body + 2, true),
    features: view.getUint32(body + 4, true),
    namespaceId: bytes.slice(body + 8, body + 40),
    incarnation: view.getBigUint64(body + 40, true),
    arenaBytes,
    arenaReadyBytes,
    blockBytesMax,
    frameBytesMax: view.getUint32(body + 72, true),
    itemsMax: view.getUint32(body + 76, true),
    handlesMax: view.getUint32(body + 80, true),
    leaseMs: view.getUint32(body + 84, true),
    blockTokens: view.getUint32(body + 88, true),
  });
}
