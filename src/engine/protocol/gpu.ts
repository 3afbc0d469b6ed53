import { assert, DIGEST_BYTES } from "../../core/index.ts";
import {
  checkFixed,
  checkItems,
  copyIn,
  copyOut,
  type DigestItems,
  type HandleItems,
  isZero,
  type OutcomeItems,
  readSafeU64,
  reservedField,
  undefinedBits,
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
  type Refusal,
  refused,
} from "./frame.ts";
import {
  GPU_HANDLE_BYTES,
  GPU_REGISTER_MAX,
  GPU_UUID_BYTES,
  GpuDeviceFlag,
  GpuDevicesFlag,
  GpuLoadFlag,
  GpuMemoryKind,
  Op,
  Outcome,
} from "./layout.ts";

/** GPU_DEVICES: the GPUs that the agent can copy from and to. */

export interface GpuDevicesRequest {
  /** Whether the client requests a socket for descriptors of its memory. */
  wantsChannel: boolean;
}

export interface GpuDeviceItem {
  /** 16 bytes, as reported by the driver. */
  readonly uuid: Uint8Array;
  readonly memoryBytes: number;
  /** Null if unknown. */
  readonly numaNode: number | null;
  readonly hasDmaBuf: boolean;
  readonly hasBatches: boolean;
  /** A lost device is unusable until the agent restarts. */
  readonly isLost: boolean;
}

export interface GpuDevicesReply {
  /** Whether a socket for descriptors came with this answer. */
  readonly hasChannel: boolean;
  readonly devices: readonly GpuDeviceItem[];
}

const HEAD_BYTES = 8;
const DEVICE_BYTES = 40;
const DEVICES_MAX = 256;
const DEVICE_FLAGS = GpuDeviceFlag.dmaBuf | GpuDeviceFlag.batches;
const NO_NODE = -1;
const STATE = { ok: 0, lost: 1 } as const;

export function encodeGpuDevicesRequest(
  output: Output,
  requestId: number,
  request: Readonly<GpuDevicesRequest>,
): void {
  const at = beginRequest(output, Op.gpuDevices, requestId, 0, HEAD_BYTES);
  output.view.setUint32(at, request.wantsChannel ? GpuDevicesFlag.channel : 0, true);
  output.view.setUint32(at + 4, 0, true);
}

export function decodeGpuDevicesRequest(frame: Frame, into: GpuDevicesRequest): Refusal | null {
  const bad = checkFixed(frame, 0, HEAD_BYTES);
  if (bad !== null) return bad;
  const flags = frame.view.getUint32(frame.body, true);
  if ((flags & ~GpuDevicesFlag.channel) !== 0) return undefinedBits(frame, "flags");
  if (frame.view.getUint32(frame.body + 4, true) !== 0) return reservedField(frame);
  into.wantsChannel = flags !== 0;
  return null;
}

export function encodeGpuDevicesReply(
  output: Output,
  requestId: number,
  reply: GpuDevicesReply,
): void {
  const { devices } = reply;
  const bodyBytes = HEAD_BYTES + devices.length * DEVICE_BYTES;
  let at = beginReply(output, Op.gpuDevices, requestId, devices.length, bodyBytes);
  const { bytes, view } = output;
  view.setUint32(at, reply.hasChannel ? GpuDevicesFlag.channel : 0, true);
  view.setUint32(at + 4, 0, true);
  at += HEAD_BYTES;
  for (const device of devices) {
    const dmaBuf = device.hasDmaBuf ? GpuDeviceFlag.dmaBuf : 0;
    const batches = device.hasBatches ? GpuDeviceFlag.batches : 0;
    copyIn(device.uuid, GPU_UUID_BYTES, bytes, at);
    writeSafeU64(view, at + 16, device.memoryBytes);
    view.setInt32(at + 24, device.numaNode ?? NO_NODE, true);
    view.setUint32(at + 28, dmaBuf | batches, true);
    view.setUint32(at + 32, device.isLost ? STATE.lost : STATE.ok, true);
    view.setUint32(at + 36, 0, true);
    at += DEVICE_BYTES;
  }
}

export function decodeGpuDevicesReply(frame: Frame): Decoded<GpuDevicesReply> {
  const bad = checkItems(frame, HEAD_BYTES, DEVICE_BYTES, DEVICES_MAX);
  if (bad !== null) return refused(bad);
  const { view, body } = frame;
  const flags = view.getUint32(body, true);
  if ((flags & ~GpuDevicesFlag.channel) !== 0) return refused(undefinedBits(frame, "flags"));
  if (view.getUint32(body + 4, true) !== 0) return refused(reservedField(frame));
  const devices: GpuDeviceItem[] = [];
  for (let i = 0; i < frame.count; i++) {
    const device = readDevice(frame, body + HEAD_BYTES + i * DEVICE_BYTES);
    if (!device.ok) return device;
    devices.push(device.value);
  }
  return decoded({ hasChannel: flags !== 0, devices });
}

function readDevice(frame: Frame, at: number): Decoded<GpuDeviceItem> {
  const { bytes, view } = frame;
  const memoryBytes = readSafeU64(view, at + 16);
  const node = view.getInt32(at + 24, true);
  const flags = view.getUint32(at + 28, true);
  const state = view.getUint32(at + 32, true);
  if (memoryBytes === null || node < NO_NODE || state > STATE.lost) {
    return refused(malformed("gpuDevices: a size, a node or a state is out of range"));
  }
  if ((flags & ~DEVICE_FLAGS) !== 0) return refused(undefinedBits(frame, "an item's flags"));
  if (view.getUint32(at + 36, true) !== 0) return refused(reservedField(frame));
  return decoded({
    uuid: bytes.slice(at, at + GPU_UUID_BYTES),
    memoryBytes,
    numaNode: node === NO_NODE ? null : node,
    hasDmaBuf: (flags & GpuDeviceFlag.dmaBuf) !== 0,
    hasBatches: (flags & GpuDeviceFlag.batches) !== 0,
    isLost: state === STATE.lost,
  });
}

/** Requests that register GPU memory with the agent, and unregister it. */

export interface GpuMemoryItem {
  /** UUID of the device that the memory is on. */
  readonly uuid: Uint8Array;
  readonly kind: GpuMemoryKind;
  /** Offset of the registered part in its allocation. */
  readonly offset: number;
  /** Length of the registered part. */
  readonly bytes: number;
  /** Length of the whole allocation that the handle or descriptor refers to. */
  readonly allocationBytes: number;
  /** 64 bytes for an `ipc` memory. Zeros if its descriptor is sent over the channel. */
  readonly handle: Uint8Array;
}

export interface GpuRegistered {
  readonly outcome: Outcome;
  /** Number of the memory on this connection; 0 unless the outcome is `ok`. */
  readonly memory: number;
  /** CUresult of the driver, with outcome `device`; 0 if the driver was not called. */
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
    return refused(malformed("gpuRegister: sizes must be below 2^53"));
  }
  if (kind !== GpuMemoryKind.ipc && kind !== GpuMemoryKind.descriptor) {
    return refused(malformed(`gpuRegister: kind ${kind} is undefined: use 1 or 2`));
  }
  const handleAt = at + 48;
  const handleEnd = handleAt + GPU_HANDLE_BYTES;
  if (kind === GpuMemoryKind.descriptor && !isZero(bytes, handleAt, handleEnd)) {
    return refused(
      malformed("gpuRegister: the handle of a memory with a descriptor must be zeros"),
    );
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

/** GPU_STORE and GPU_LOAD, copies between slots and registered memory, have the same layout. */

/**
 * Ranges to copy, as columns: `bytes` bytes at `slotOffset` in a slot and at `memoryOffset` in a
 * memory.
 */
export interface PieceItems extends HandleItems {
  readonly memory: Uint32Array;
  readonly slotOffset: Float64Array;
  readonly memoryOffset: Float64Array;
  readonly bytes: Float64Array;
}

export interface CopyOptions {
  /** Whether the slots' content is hashed before a load is answered. */
  verify: boolean;
}

export type CopyOp = typeof Op.gpuStore | typeof Op.gpuLoad;

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
      return malformed("a piece's offsets and length must be below 2^53");
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

/**
 * GPU_WARM: an engine waits for blocks requested on its GPU, and reports the outcomes of the
 * previous offer.
 */

export interface WarmWait {
  /** The offer that the outcomes belong to; 0: no previous offer. */
  offer: number;
  /** How long to wait for the next offer; 0: the agent's default. */
  deadlineMs: number;
}

const OUTCOME_BYTES = 8;

export function encodeGpuWarmRequest(
  output: Output,
  requestId: number,
  wait: Readonly<WarmWait>,
  outcomes: Readonly<OutcomeItems>,
): void {
  const { count } = outcomes;
  let at = beginRequest(output, Op.gpuWarm, requestId, count, HEAD_BYTES + count * OUTCOME_BYTES);
  output.view.setUint32(at, wait.offer, true);
  output.view.setUint32(at + 4, wait.deadlineMs, true);
  at += HEAD_BYTES;
  for (let i = 0; i < count; i++, at += OUTCOME_BYTES) {
    output.view.setUint32(at, outcomes.outcome[i]!, true);
    output.view.setUint32(at + 4, 0, true);
  }
}

export function decodeGpuWarmRequest(
  frame: Frame,
  wait: WarmWait,
  into: OutcomeItems,
): Refusal | null {
  const bad = checkItems(frame, HEAD_BYTES, OUTCOME_BYTES, into.outcome.length);
  if (bad !== null) return bad;
  const { view, body } = frame;
  wait.offer = view.getUint32(body, true);
  wait.deadlineMs = view.getUint32(body + 4, true);
  if (wait.offer === 0 && frame.count !== 0) return malformed("gpuWarm: outcomes without an offer");
  for (let i = 0, at = body + HEAD_BYTES; i < frame.count; i++, at += OUTCOME_BYTES) {
    const outcome = view.getUint32(at, true);
    if (outcome > Outcome.device) return malformed(`gpuWarm: outcome ${outcome} is not defined`);
    if (view.getUint32(at + 4, true) !== 0) return reservedField(frame);
    into.outcome[i] = outcome;
  }
  into.count = frame.count;
  return null;
}

/** Offer 0 without blocks: none was available before the deadline. */
export function encodeGpuWarmReply(
  output: Output,
  requestId: number,
  offer: number,
  blocks: Readonly<DigestItems>,
): void {
  const digestsBytes = blocks.count * DIGEST_BYTES;
  const at = beginReply(output, Op.gpuWarm, requestId, blocks.count, HEAD_BYTES + digestsBytes);
  output.view.setUint32(at, offer, true);
  output.view.setUint32(at + 4, blocks.layer, true);
  copyIn(blocks.digests, digestsBytes, output.bytes, at + HEAD_BYTES);
}

/** Returns the offer's number, or a refusal. */
export function decodeGpuWarmReply(frame: Frame, into: DigestItems): number | Refusal {
  const bad = checkItems(frame, HEAD_BYTES, DIGEST_BYTES, into.digests.length / DIGEST_BYTES);
  if (bad !== null) return bad;
  const offer = frame.view.getUint32(frame.body, true);
  const layer = frame.view.getUint32(frame.body + 4, true);
  if ((offer === 0) !== (frame.count === 0) || (offer === 0 && layer !== 0)) {
    return malformed("gpuWarm: an offer must have a number and blocks, or neither");
  }
  into.layer = layer;
  into.count = frame.count;
  copyOut(frame.bytes, frame.body + HEAD_BYTES, frame.count * DIGEST_BYTES, into.digests);
  return offer;
}
