import {
  consumeOutput,
  createFrameReader,
  createOutput,
  type Frame,
  type FrameDirection,
  type Output,
  pendingBytes,
  pendingOutput,
  type Refusal,
} from "../../../src/engine/protocol/index.ts";
import { must, type Saw, shapeOf } from "../target.ts";

export const FRAME_BYTES_MAX = 64 * 1024;

/** Writes again what was read from a frame. */
export type Encode = (output: Output) => void;

/** What a decoder made of a frame: how it would be written, or why it is refused. */
export type Read = (frame: Frame) => Encode | Refusal;

const output = createOutput();

/** What was accepted has one encoding: the bytes that came. */
function mustEncodeAlike(frame: Frame, encode: Encode): void {
  consumeOutput(output, pendingBytes(output));
  encode(output);
  const again = pendingOutput(output);
  const came = frame.bytes.subarray(frame.end - frame.length, frame.end);
  must(Buffer.compare(again, came) === 0, `a frame of op ${frame.op} encodes to what it was`);
}

/**
 * Reads the stream twice: as it is, decoding each frame, and in pieces with frames held back now
 * and then. Both must cut the same frames and end for the same reason.
 */
export function readStream(input: Uint8Array, direction: FrameDirection, read: Read, saw: Saw) {
  const lengths: number[] = [];
  const whole = createFrameReader({ direction, frameBytesMax: FRAME_BYTES_MAX });
  const fault = whole.push(input, (frame) => {
    lengths.push(frame.length);
    const made = read(frame);
    if (typeof made === "function") mustEncodeAlike(frame, made);
    const [op, status] = [Math.min(frame.op, 16), Math.min(frame.status, 11)];
    saw(`${op} ${status} ${typeof made === "function" ? "ok" : shapeOf(made.text)}`);
    return true;
  });
  if (fault !== null) saw(shapeOf(fault.text));
  readInPieces(input, direction, lengths, fault);
}

function readInPieces(
  input: Uint8Array,
  direction: FrameDirection,
  lengths: readonly number[],
  wanted: Refusal | null,
): void {
  const reader = createFrameReader({ direction, frameBytesMax: FRAME_BYTES_MAX });
  const stride = 1 + ((input[8] ?? 0) % 61) + (input.length >> 6);
  let seen = 0;
  let at = 0;
  const sink = (frame: Frame): boolean => {
    const came = frame.bytes.subarray(frame.end - frame.length, frame.end);
    must(frame.length === lengths[seen], "pieces are cut into the same frames");
    must(Buffer.compare(came, input.subarray(at, at + frame.length)) === 0, "and the same bytes");
    at += frame.length;
    seen++;
    return seen % 5 !== 3;
  };
  let fault: Refusal | null = null;
  for (let from = 0; from < input.length && fault === null; from += stride) {
    fault = reader.push(input.slice(from, from + stride), sink);
    while (fault === null && reader.holding) fault = reader.resume(sink);
    must(reader.heldBytes <= 2 * FRAME_BYTES_MAX, "a reader keeps no more than two frames");
  }
  must(seen === lengths.length, "pieces are cut into as many frames");
  must(fault?.text === wanted?.text, "and end for the same reason");
}
