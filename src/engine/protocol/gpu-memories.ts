import { assert } from "../../core/index.ts";
import { checkItems, copyIn, isZero, readSafeU64, reservedField, writeSafeU64 } from "./fields.ts";
import type { Frame } from "./frame.ts";
import {
  GPU_HANDLE_BYTES,
  GPU_REGISTER_MAX,
  GPU_UUID_BYTES,
  GpuMemoryKind,
  Op,
  Outcome,
} from "./layout.ts";
import { beginReply, beginRequest, type Output } from "./output.ts";
import { type Decoded, decoded, malformed, type Refusal, refused } from "./refusal.ts";

/** Requests that hand GPU memory to the agent, and take it back. */

export interface GpuMemoryItem {
  /** Of the device it lies on. */
  readonly uuid: Uint8Array;
  readonly kind: GpuMemoryKind;
  /** Where the engine's part begins in its allocation. */
  readonly offset: number;
  /** Length of that part. */
  readonly bytes: number;
  /** What the handle or descriptor stands for: the whole allocation. */
  readonly allocationBytes: number;
  /** 64 bytes of an `ipc` memory; zeros of one whose descriptor comes over the channel. */
  readonly handle: Uint8Array;
}

export interface GpuRegistered {
  readonly outcome: Outcome;
  /** What pieces name it by, on this connection; 0 unless it is `ok`. */
  readonly memory: number;
  /** The driver's CUresult, with `device`; 0: the driver was not asked. */
  readonly code: number;
}

/** Memories by number, as a column. */
export interface MemoryItems {
  count: number;
  readonly memory: Uint32Array;
}

const MEMORY_BYTES = 112;
const REGISTERED_BYTES = 16;
const UNREGISTER_BYTES = 8;

export function encodeGpuRegisterRequest(
  output: Output,
  requestId: number,
  memories: readonly GpuMemoryItem[],
): void {
  const bodyBytes = memories.length * MEMORY_BYTES;
  let at = beginRequest(output, Op.gpuRegister, requestId, memories.length, bodyBytes);
  const { bytes, view } = output;
  for (const one of memories) {
    assert(one.handle.length === GPU_HANDLE_BYTES, "a handle is 64 bytes");
    copyIn(one.uuid, GPU_UUID_BYTES, bytes, at);
    view.setUint32(at + 16, one.kind, true);
    view.setUint32(at + 20, 0, true);
    writeSafeU64(view, at + 24, one.offset);
    writeSafeU64(view, at + 32, one.bytes);
    writeSafeU64(view, at + 40, one.allocationBytes);
    copyIn(one.handle, GPU_HANDLE_BYTES, bytes, at + 48);
    at += MEMORY_BYTES;
  }
}

export function decodeGpuRegisterRequest(frame: Frame): Decoded<GpuMemoryItem[]> {
  const bad = checkItems(frame, 0, MEMORY_BYTES, GPU_REGISTER_MAX);
  if (bad !== null) return refused(bad);
  const memories: GpuMemoryItem[] = [];
  for (let at = frame.body; at < frame.end; at += MEMORY_BYTES) {
    const memory = readMemory(frame, at);
    if (!memory.ok) return memory;
    memories.push(memory.value);
  }
  return decoded(memories);
}

function readMemory(frame: Frame, at: number): Decoded<GpuMemoryItem> {
  const { bytes, view } = frame;
  const kind = view.getUint32(at + 16, true);
  const offset = readSafeU64(view, at + 24);
  const length = readSafeU64(view, at + 32);
  const allocationBytes = readSafeU64(view, at + 40);
  if (view.getUint32(at + 20, true) !== 0) return refused(reservedField(frame));
  if (offset === null || length === null || allocationBytes === null) {
    return refused(malformed("gpuRegister: sizes are below 2^53"));
  }
  if (kind !== GpuMemoryKind.ipc && kind !== GpuMemoryKind.descriptor) {
    return refused(malformed(`gpuRegister: kind ${kind} is neither 1 nor 2`));
  }
  const handleAt = at + 48;
  const handleEnd = handleAt + GPU_HANDLE_BYTES;
  if (kind === GpuMemoryKind.descriptor && !isZero(bytes, handleAt, handleEnd)) {
    return refused(malformed("gpuRegister: a memory with a descriptor has a handle of zeros"));
  }
  const uuid = bytes.slice(at, at + GPU_UUID_BYTES);
  const handle = bytes.slice(handleAt, handleEnd);
  return decoded({ uuid, kind, offset, bytes: length, allocationBytes, handle });
}

export function encodeGpuRegisterReply(
  output: Output,
  requestId: number,
  answers: readonly GpuRegistered[],
): void {
  const bodyBytes = answers.length * REGISTERED_BYTES;
  let at = beginReply(output, Op.gpuRegister, requestId, answers.length, bodyBytes);
  const { view } = output;
  for (const { outcome, memory, code } of answers) {
    view.setUint32(at, outcome, true);
    view.setUint32(at + 4, memory, true);
    view.setUint32(at + 8, code, true);
    view.setUint32(at + 12, 0, true);
    at += REGISTERED_BYTES;
  }
}

export function decodeGpuRegisterReply(frame: Frame): Decoded<GpuRegistered[]> {
  const bad = checkItems(frame, 0, REGISTERED_BYTES, GPU_REGISTER_MAX);
  if (bad !== null) return refused(bad);
  const { view } = frame;
  const answers: GpuRegistered[] = [];
  for (let at = frame.body; at < frame.end; at += REGISTERED_BYTES) {
    const outcome = view.getUint32(at, true);
    const memory = view.getUint32(at + 4, true);
    const code = view.getUint32(at + 8, true);
    if (view.getUint32(at + 12, true) !== 0) return refused(reservedField(frame));
    const isSaid = (outcome === Outcome.ok) === (memory !== 0);
    const mayHaveCode = outcome === Outcome.device || code === 0;
    if (outcome > Outcome.device || !isSaid || !mayHaveCode) {
      return refused(malformed("gpuRegister: an outcome, a memory or a code is out of range"));
    }
    answers.push({ outcome: outcome as Outcome, memory, code });
  }
  return decoded(answers);
}

export function encodeGpuUnregisterRequest(
  output: Output,
  requestId: number,
  memories: Readonly<MemoryItems>,
): void {
  const { count, memory } = memories;
  let at = beginRequest(output, Op.gpuUnregister, requestId, count, count * UNREGISTER_BYTES);
  for (let i = 0; i < count; i++, at += UNREGISTER_BYTES) {
    output.view.setUint32(at, memory[i]!, true);
    output.view.setUint32(at + 4, 0, true);
  }
}

export function decodeGpuUnregisterRequest(frame: Frame, into: MemoryItems): Refusal | null {
  const bad = checkItems(frame, 0, UNREGISTER_BYTES, into.memory.length);
  if (bad !== null) return bad;
  for (let i = 0, at = frame.body; i < frame.count; i++, at += UNREGISTER_BYTES) {
    if (frame.view.getUint32(at + 4, true) !== 0) return reservedField(frame);
    into.memory[i] = frame.view.getUint32(at, true);
  }
  into.count = frame.count;
  return null;
}
