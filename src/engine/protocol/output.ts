import { assert } from "../../core/index.ts";
import { FrameFlag, HEADER_BYTES } from "./layout.ts";

/**
 * Bytes on their way out: frames are appended at `end`, what the socket took is dropped from
 * `start`. The caller bounds it by looking at `pendingBytes` before it answers more.
 */
export interface Output {
  bytes: Uint8Array<ArrayBuffer>;
  view: DataView;
  start: number;
  end: number;
}

const OUTPUT_BYTES_MIN = 4 * 1024;
/** A buffer larger than this is given back as soon as it is empty. */
const OUTPUT_BYTES_KEPT = 256 * 1024;

export function createOutput(): Output {
  const bytes = new Uint8Array(OUTPUT_BYTES_MIN);
  return { bytes, view: new DataView(bytes.buffer), start: 0, end: 0 };
}

export function pendingBytes(output: Output): number {
  return output.end - output.start;
}

/** What is to be written next: a view that holds until the next frame is appended. */
export function pendingOutput(output: Output): Uint8Array {
  return output.bytes.subarray(output.start, output.end);
}

/** Drops the first `bytes` bytes, which the socket has taken. */
export function consumeOutput(output: Output, bytes: number): void {
  assert(bytes >= 0 && bytes <= pendingBytes(output), "no more is taken than was pending");
  output.start += bytes;
  if (output.start < output.end) return;
  output.start = 0;
  output.end = 0;
  if (output.bytes.length > OUTPUT_BYTES_KEPT) replace(output, OUTPUT_BYTES_MIN);
}

function replace(output: Output, bytes: number): void {
  output.bytes = new Uint8Array(bytes);
  output.view = new DataView(output.bytes.buffer);
}

function makeRoom(output: Output, bytes: number): void {
  const old = output.bytes;
  const needed = pendingBytes(output) + bytes;
  if (2 * needed > old.length) replace(output, 2 * needed);
  output.bytes.set(old.subarray(output.start, output.end), 0);
  output.end -= output.start;
  output.start = 0;
}

/**
 * Appends a header and makes room for the body; answers the body's offset. The room holds old
 * bytes: the encoder writes each byte of the body, padding and reserved fields included.
 */
export function beginFrame(
  output: Output,
  op: number,
  flags: number,
  status: number,
  requestId: number,
  count: number,
  bodyBytes: number,
): number {
  const length = HEADER_BYTES + bodyBytes;
  assert(length % 8 === 0, "a frame is a multiple of eight bytes");
  if (output.end + length > output.bytes.length) makeRoom(output, length);
  const { view, end } = output;
  view.setUint32(end, length, true);
  view.setUint8(end + 4, op);
  view.setUint8(end + 5, flags);
  view.setUint16(end + 6, status, true);
  view.setUint32(end + 8, requestId, true);
  view.setUint32(end + 12, count, true);
  output.end = end + length;
  return end + HEADER_BYTES;
}

export function beginRequest(
  output: Output,
  op: number,
  requestId: number,
  count: number,
  bodyBytes: number,
  noReply = false,
): number {
  const flags = noReply ? FrameFlag.noReply : 0;
  return beginFrame(output, op, flags, 0, requestId, count, bodyBytes);
}

export function beginReply(
  output: Output,
  op: number,
  requestId: number,
  count: number,
  bodyBytes: number,
): number {
  return beginFrame(output, op, FrameFlag.reply, 0, requestId, count, bodyBytes);
}
