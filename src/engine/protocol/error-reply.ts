import {
  beginFrame,
  type Decoded,
  decoded,
  type Frame,
  type FrameHead,
  isZero,
  malformed,
  type Output,
  type Refusal,
  readUtf8,
  refused,
  reservedField,
} from "./frame.ts";
import { ERROR_TEXT_BYTES_MAX, FrameFlag, type FrameStatus, padded } from "./layout.ts";

/** Content of a reply with a status other than 0. */
export interface ErrorReply {
  /** A `FrameStatus`. A newer agent may send one that this client does not know. */
  readonly status: number;
  readonly text: string;
}

const encoder = new TextEncoder();

/**
 * Encodes a reply with a status other than 0. Text beyond 512 bytes is cut at a character boundary.
 */
export function encodeErrorReply(
  output: Output,
  op: number,
  requestId: number,
  status: Exclude<FrameStatus, 0>,
  text: string,
): void {
  const room = new Uint8Array(ERROR_TEXT_BYTES_MAX);
  const { written } = encoder.encodeInto(text, room);
  const bodyBytes = 8 + padded(written);
  const at = beginFrame(output, op, FrameFlag.reply, status, requestId, 0, bodyBytes);
  output.view.setUint32(at, written, true);
  output.view.setUint32(at + 4, 0, true);
  output.bytes.set(room.subarray(0, padded(written)), at + 8);
}

/** Writes the reply to a refused frame. */
export function encodeRefusal(output: Output, { op, requestId }: FrameHead, reason: Refusal): void {
  encodeErrorReply(output, op, requestId, reason.status, reason.text);
}

/** Decodes a reply; its status must not be 0. */
export function decodeErrorReply(frame: Frame): Decoded<ErrorReply> {
  const { bytes, view, body, end } = frame;
  if (frame.count !== 0 || end - body < 8)
    return refused(malformed("error reply: the body is cut short"));
  const textBytes = view.getUint32(body, true);
  if (textBytes > ERROR_TEXT_BYTES_MAX)
    return refused(malformed(`error reply: the text is at most ${ERROR_TEXT_BYTES_MAX} bytes`));
  const textEnd = body + 8 + textBytes;
  if (end !== body + 8 + padded(textBytes))
    return refused(malformed("error reply: the text's length and the frame's do not agree"));
  if (view.getUint32(body + 4, true) !== 0 || !isZero(bytes, textEnd, end))
    return refused(reservedField(frame));
  const text = readUtf8(bytes, body + 8, textEnd);
  if (text === null) return refused(malformed("error reply: the text is not UTF-8"));
  return decoded({ status: frame.status, text });
}
