import { assert, DIGEST_BYTES } from "../../core/index.ts";
import {
  beginRequest,
  type Decoded,
  decoded,
  type Frame,
  isZero,
  malformed,
  type Output,
  readPaddedText,
  refusal,
  refused,
  reservedField,
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
import { bytes, fixedMessage, replyTo, reserved, size, u16, u32, u64 } from "./message.ts";

export interface HelloRequest {
  readonly versionMin: number;
  readonly versionMax: number;
  /** `Feature` bits that the client requests. The reply has those that both sides support. */
  readonly features: number;
  /** Name of the client in logs: at most 32 bytes of UTF-8 without control characters. */
  readonly name: string;
  /** Canonical encoding of the namespace manifest. */
  readonly manifest: Uint8Array;
}

export interface HelloReply {
  readonly version: number;
  /** Checksum algorithm of blocks: 1 = XXH3-64 with seed 0. */
  readonly checksumAlgorithm: number;
  readonly features: number;
  readonly namespaceId: Uint8Array;
  /** Random id of this run of the agent; differs after each start. */
  readonly incarnation: bigint;
  /** Size in bytes of the arena's memfd, which the client maps. */
  readonly arenaBytes: number;
  /** Bytes of the arena in use when the reply was written. The number only grows. */
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
 * Length in bytes of the part of HELLO (magic, versions and features) that has the same layout in
 * every protocol version, so that a version mismatch can be answered with a message.
 */
const HELLO_FROZEN_BYTES = 16;
const HELLO_HEAD_BYTES = HELLO_FROZEN_BYTES + NAME_BYTES + 8;

export function encodeHelloRequest(output: Output, requestId: number, hello: HelloRequest): void {
  const name = new TextEncoder().encode(hello.name);
  const { manifest } = hello;
  assert(name.length <= NAME_BYTES, "a client's name is at most 32 bytes");
  assert(manifest.length <= MANIFEST_BYTES_MAX, "a manifest is at most 64 KiB");
  const bodyBytes = HELLO_HEAD_BYTES + padded(manifest.length);
  const at = beginRequest(output, Op.hello, requestId, 0, bodyBytes);
  const { view } = output;
  output.bytes.fill(0, at, at + bodyBytes);
  view.setUint32(at, HELLO_MAGIC, true);
  view.setUint16(at + 4, hello.versionMin, true);
  view.setUint16(at + 6, hello.versionMax, true);
  view.setUint32(at + 8, hello.features, true);
  output.bytes.set(name, at + HELLO_FROZEN_BYTES);
  view.setUint32(at + 48, manifest.length, true);
  output.bytes.set(manifest, at + HELLO_HEAD_BYTES);
}

/**
 * Decodes HELLO and copies its manifest. Checks the versions before any field that a later version
 * may move.
 */
export function decodeHelloRequest(frame: Frame): Decoded<HelloRequest> {
  const { view, body, end } = frame;
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
    isZero(frame.bytes, manifestAt + manifestBytes, end);
  if (!zero) return refused(reservedField(frame));
  const name = readPaddedText(frame.bytes, body + HELLO_FROZEN_BYTES, NAME_BYTES);
  if (name === null)
    return refused(
      malformed("hello: the name must be zero-padded UTF-8 without control characters"),
    );
  const manifest = frame.bytes.slice(manifestAt, manifestAt + manifestBytes);
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

export const { encode: encodeHelloReply, decode: decodeHelloReply } = fixedMessage(
  replyTo(Op.hello),
  {
    version: u16,
    checksumAlgorithm: u16,
    features: u32,
    namespaceId: bytes(DIGEST_BYTES),
    incarnation: u64,
    arenaBytes: size,
    arenaReadyBytes: size,
    blockBytesMax: size,
    frameBytesMax: u32,
    itemsMax: u32,
    handlesMax: u32,
    leaseMs: u32,
    blockTokens: u32,
    reserved,
  },
);
