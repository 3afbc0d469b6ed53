import {
  checkFixed,
  checkItems,
  copyIn,
  readSafeU64,
  reservedField,
  undefinedBits,
  writeSafeU64,
} from "./fields.ts";
import type { Frame } from "./frame.ts";
import { GPU_UUID_BYTES, GpuDeviceFlag, GpuDevicesFlag, Op } from "./layout.ts";
import { beginReply, beginRequest, type Output } from "./output.ts";
import { type Decoded, decoded, malformed, type Refusal, refused } from "./refusal.ts";

/** Which GPUs the agent can copy from and to. */

export interface GpuDevicesRequest {
  /** The client wants a socket for descriptors of its memory. */
  wantsChannel: boolean;
}

export interface GpuDeviceItem {
  /** 16 bytes, as the driver says it. */
  readonly uuid: Uint8Array;
  readonly memoryBytes: number;
  /** Null: not known. */
  readonly numaNode: number | null;
  readonly hasDmaBuf: boolean;
  readonly hasBatches: boolean;
  /** Nothing of it works until the agent is started again. */
  readonly isLost: boolean;
}

export interface GpuDevicesReply {
  /** A socket for descriptors came with this answer. */
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
