import { checkItems, readSafeU64, reservedField, undefinedBits, writeSafeU64 } from "./fields.ts";
import type { Frame } from "./frame.ts";
import type { HandleItems } from "./items.ts";
import { GpuLoadFlag, Op } from "./layout.ts";
import { beginRequest, type Output } from "./output.ts";
import { malformed, type Refusal } from "./refusal.ts";

/** Copies between slots and registered memory: store and load have one shape. */

/** Bytes to copy, as columns: those of slot `i` from `slotOffset` on and of its memory. */
export interface PieceItems extends HandleItems {
  readonly memory: Uint32Array;
  readonly slotOffset: Float64Array;
  readonly memoryOffset: Float64Array;
  readonly bytes: Float64Array;
}

export interface CopyOptions {
  /** What lies in the slots is hashed before a load is answered. */
  verify: boolean;
}

export type CopyOp = typeof Op.gpuStore | typeof Op.gpuLoad;

const HEAD_BYTES = 8;
const PIECE_BYTES = 40;

export function createPieceItems(capacity: number): PieceItems {
  return {
    count: 0,
    slot: new Uint32Array(capacity),
    generation: new Uint32Array(capacity),
    memory: new Uint32Array(capacity),
    slotOffset: new Float64Array(capacity),
    memoryOffset: new Float64Array(capacity),
    bytes: new Float64Array(capacity),
  };
}

export function encodeGpuCopyRequest(
  output: Output,
  op: CopyOp,
  requestId: number,
  options: Readonly<CopyOptions>,
  pieces: Readonly<PieceItems>,
): void {
  const { count } = pieces;
  let at = beginRequest(output, op, requestId, count, HEAD_BYTES + count * PIECE_BYTES);
  const { view } = output;
  view.setUint32(at, options.verify && op === Op.gpuLoad ? GpuLoadFlag.verify : 0, true);
  view.setUint32(at + 4, 0, true);
  at += HEAD_BYTES;
  for (let i = 0; i < count; i++, at += PIECE_BYTES) {
    view.setUint32(at, pieces.slot[i]!, true);
    view.setUint32(at + 4, pieces.generation[i]!, true);
    view.setUint32(at + 8, pieces.memory[i]!, true);
    view.setUint32(at + 12, 0, true);
    writeSafeU64(view, at + 16, pieces.slotOffset[i]!);
    writeSafeU64(view, at + 24, pieces.memoryOffset[i]!);
    writeSafeU64(view, at + 32, pieces.bytes[i]!);
  }
}

export function decodeGpuCopyRequest(
  frame: Frame,
  options: CopyOptions,
  into: PieceItems,
): Refusal | null {
  const bad = checkItems(frame, HEAD_BYTES, PIECE_BYTES, into.slot.length);
  if (bad !== null) return bad;
  const { view, body } = frame;
  const flags = view.getUint32(body, true);
  const known = frame.op === Op.gpuLoad ? GpuLoadFlag.verify : 0;
  if ((flags & ~known) !== 0) return undefinedBits(frame, "flags");
  if (view.getUint32(body + 4, true) !== 0) return reservedField(frame);
  options.verify = flags !== 0;
  for (let i = 0, at = body + HEAD_BYTES; i < frame.count; i++, at += PIECE_BYTES) {
    const slotOffset = readSafeU64(view, at + 16);
    const memoryOffset = readSafeU64(view, at + 24);
    const bytes = readSafeU64(view, at + 32);
    if (view.getUint32(at + 12, true) !== 0) return reservedField(frame);
    if (slotOffset === null || memoryOffset === null || bytes === null) {
      return malformed("a piece's offsets and its length are below 2^53");
    }
    into.slot[i] = view.getUint32(at, true);
    into.generation[i] = view.getUint32(at + 4, true);
    into.memory[i] = view.getUint32(at + 8, true);
    into.slotOffset[i] = slotOffset;
    into.memoryOffset[i] = memoryOffset;
    into.bytes[i] = bytes;
  }
  into.count = frame.count;
  return null;
}
