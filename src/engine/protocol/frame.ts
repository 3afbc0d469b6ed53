import {
  ALIGNMENT,
  FrameFlag,
  FrameStatus,
  HEADER_BYTES,
  mayGoUnanswered,
  opName,
} from "./layout.ts";
import { malformed, type Refusal, refusal } from "./refusal.ts";

/**
 * One received frame. The object and the memory behind it are reused: both hold only until the sink
 * that was given the frame returns.
 */
export interface Frame {
  /** Whole frame, header included, in bytes. */
  length: number;
  op: number;
  flags: number;
  status: number;
  requestId: number;
  /** Items in the frame. */
  count: number;
  bytes: Uint8Array;
  /** Over the same memory as `bytes`, with the same offsets. */
  view: DataView;
  /** Offset of the body's first byte. */
  body: number;
  /** Offset behind the body's last byte. */
  end: number;
}

/** What an answer needs of the frame that it answers. */
export type FrameHead = Pick<Frame, "op" | "flags" | "requestId">;

export type FrameDirection = "requests" | "replies";

export function emptyFrame(): Frame {
  const bytes = new Uint8Array(HEADER_BYTES);
  const view = new DataView(bytes.buffer);
  const numbers = { length: 0, op: 0, flags: 0, status: 0, requestId: 0, count: 0 };
  return { ...numbers, bytes, view, body: HEADER_BYTES, end: HEADER_BYTES };
}

/** Reads the sixteen bytes at `at` into the frame; the body is not looked at. */
export function readHeader(bytes: Uint8Array, view: DataView, at: number, into: Frame): void {
  into.length = view.getUint32(at, true);
  into.op = view.getUint8(at + 4);
  into.flags = view.getUint8(at + 5);
  into.status = view.getUint16(at + 6, true);
  into.requestId = view.getUint32(at + 8, true);
  into.count = view.getUint32(at + 12, true);
  into.bytes = bytes;
  into.view = view;
  into.body = at + HEADER_BYTES;
  into.end = at + into.length;
}

/** Judges a header by itself, before a byte of its body is kept. */
export function checkHeader(
  frame: Frame,
  direction: FrameDirection,
  frameBytesMax: number,
): Refusal | null {
  if (frame.length < HEADER_BYTES || frame.length % ALIGNMENT !== 0)
    return malformed(`frame length ${frame.length}: send a multiple of 8, at least 16`);
  if (frame.length > frameBytesMax)
    return refusal(
      FrameStatus.frameTooLarge,
      `frame of ${frame.length} bytes: split it, at most ${frameBytesMax} are taken`,
    );
  if ((frame.flags & ~(FrameFlag.reply | FrameFlag.noReply)) !== 0)
    return malformed(`frame flags ${frame.flags}: only bits 0 and 1 are defined`);
  return direction === "requests" ? checkRequestHeader(frame) : checkReplyHeader(frame);
}

function checkRequestHeader(frame: Frame): Refusal | null {
  if ((frame.flags & FrameFlag.reply) !== 0)
    return malformed("a reply came where requests are due: clear flag bit 0");
  if (frame.status !== 0) return malformed("a request has status 0");
  if ((frame.flags & FrameFlag.noReply) !== 0 && !mayGoUnanswered(frame.op))
    return malformed(
      `${opName(frame.op)} hands something out: clear flag bit 1 and read the reply`,
    );
  return null;
}

function checkReplyHeader(frame: Frame): Refusal | null {
  if (frame.flags !== FrameFlag.reply) return malformed("a reply has exactly flag bit 0 set");
  return null;
}

/** Whether the sender of this request waits for an answer. */
export function wantsReply(frame: FrameHead): boolean {
  return (frame.flags & FrameFlag.noReply) === 0;
}
