import {
  DIGEST_ITEM,
  type DigestItems,
  digestsFit,
  type HandleItems,
  type OutcomeItems,
} from "./blocks.ts";
import { isZero, malformed } from "./frame.ts";
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
import {
  bits,
  bytes,
  columnsMessage,
  fixedMessage,
  flag,
  itemsMessage,
  type Kind,
  listMessage,
  replyTo,
  requestOf,
  reserved,
  size,
  u32,
  within,
} from "./message.ts";

const DEVICES_MAX = 256;
const NO_NODE = -1;

/** A NUMA node: an i32 from 0, or -1 for null. */
const numaNode: Kind<number | null> = {
  bytes: 4,
  problem: "must be a node, or -1",
  write: ({ view }, at, value) => view.setInt32(at, value ?? NO_NODE, true),
  read({ view }, at) {
    const value = view.getInt32(at, true);
    if (value < NO_NODE) return undefined;
    return value === NO_NODE ? null : value;
  },
};

/**
 * Request GPU_DEVICES. `wantsChannel`: the client also requests a socket on which it can send file
 * descriptors of its memory.
 */
export const { encode: encodeGpuDevicesRequest, fill: decodeGpuDevicesRequest } = fixedMessage(
  requestOf(Op.gpuDevices),
  { wantsChannel: flag(GpuDevicesFlag.channel), reserved },
);

/** State of a GPU. A lost GPU is unusable until the agent restarts. */
export const GpuDeviceState = { ok: 0, lost: 1 } as const;
export type GpuDeviceState = (typeof GpuDeviceState)[keyof typeof GpuDeviceState];

export interface GpuDeviceItem {
  /** UUID of the GPU: 16 bytes, as reported by the driver. */
  readonly uuid: Uint8Array;
  readonly memoryBytes: number;
  /** NUMA node of the GPU. Null if unknown. */
  readonly numaNode: number | null;
  /** Bits of `GpuDeviceFlag`. */
  readonly flags: number;
  readonly state: GpuDeviceState;
}

/**
 * Reply to GPU_DEVICES: the GPUs that the agent copies from and to. `hasChannel`: a socket for file
 * descriptors came with this reply.
 */
export const { encode: encodeGpuDevicesReply, decode: decodeGpuDevicesReply } = listMessage(
  replyTo(Op.gpuDevices),
  "devices",
  {
    head: { hasChannel: flag(GpuDevicesFlag.channel), reserved },
    item: {
      uuid: bytes(GPU_UUID_BYTES),
      memoryBytes: size,
      numaNode,
      flags: bits(GpuDeviceFlag.dmaBuf | GpuDeviceFlag.batches),
      state: within<GpuDeviceState>(GpuDeviceState.ok, GpuDeviceState.lost),
      reserved,
    },
  },
  { max: DEVICES_MAX },
);

export interface GpuMemoryItem {
  /** UUID of the GPU that has the memory. */
  readonly uuid: Uint8Array;
  readonly kind: GpuMemoryKind;
  /** Offset in bytes of the registered part in its allocation. */
  readonly offset: number;
  /** Length in bytes of the registered part. */
  readonly bytes: number;
  /** Length in bytes of the whole allocation that the handle or descriptor refers to. */
  readonly allocationBytes: number;
  /**
   * CUDA IPC handle, 64 bytes, for memory of kind `ipc`. All zeros if the client sends a file
   * descriptor on the channel instead.
   */
  readonly handle: Uint8Array;
}

/** Request GPU_REGISTER: registers memory that the agent may copy from and to. */
export const { encode: encodeGpuRegisterRequest, decode: decodeGpuRegisterRequest } = listMessage(
  requestOf(Op.gpuRegister),
  "memories",
  {
    head: {},
    item: {
      uuid: bytes(GPU_UUID_BYTES),
      kind: within<GpuMemoryKind>(GpuMemoryKind.ipc, GpuMemoryKind.descriptor),
      reserved,
      offset: size,
      bytes: size,
      allocationBytes: size,
      handle: bytes(GPU_HANDLE_BYTES),
    },
  },
  {
    max: GPU_REGISTER_MAX,
    check: ({ kind, handle }) =>
      kind === GpuMemoryKind.descriptor && !isZero(handle, 0, GPU_HANDLE_BYTES)
        ? "the handle of a memory with a descriptor must be zeros"
        : null,
  },
);

export interface GpuRegistered {
  readonly outcome: Outcome;
  /** Number by which this connection refers to the memory; 0 unless the outcome is `ok`. */
  readonly memory: number;
  /**
   * The driver's error code (CUresult) if the outcome is `device`; 0 if the driver was not called.
   */
  readonly code: number;
}

export const { encode: encodeGpuRegisterReply, decode: decodeGpuRegisterReply } = listMessage(
  replyTo(Op.gpuRegister),
  "registered",
  {
    head: {},
    item: {
      outcome: within<Outcome>(Outcome.ok, Outcome.device),
      memory: u32,
      code: u32,
      reserved,
    },
  },
  {
    max: GPU_REGISTER_MAX,
    check({ outcome, memory, code }) {
      const isSaid = (outcome === Outcome.ok) === (memory !== 0);
      if (isSaid && (outcome === Outcome.device || code === 0)) return null;
      return "a memory or a code does not belong to its outcome";
    },
  },
);

/** Numbers of registered memories, as a column. */
export interface MemoryItems {
  count: number;
  readonly memory: Uint32Array;
}

export const { encode: encodeGpuUnregisterRequest, decode: decodeGpuUnregisterRequest } =
  itemsMessage<MemoryItems>(
    requestOf(Op.gpuUnregister),
    { head: {}, item: { memory: u32, reserved } },
    { capacity: ({ memory }) => memory.length },
  );

/**
 * Ranges to copy, as columns. Item `i` is `bytes[i]` bytes at `slotOffset[i]` in a slot and at
 * `memoryOffset[i]` in a registered memory.
 */
export interface PieceItems extends HandleItems {
  readonly memory: Uint32Array;
  readonly slotOffset: Float64Array;
  readonly memoryOffset: Float64Array;
  readonly bytes: Float64Array;
}

export interface CopyOptions {
  /** True if the agent verifies the slots' content by its hash before it replies to a load. */
  verify: boolean;
}

export type CopyOp = typeof Op.gpuStore | typeof Op.gpuLoad;

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

function copyRequest(op: CopyOp, verifyBit: number) {
  return columnsMessage<CopyOptions, PieceItems>(
    requestOf(op),
    {
      head: { verify: flag(verifyBit), reserved },
      item: {
        slot: u32,
        generation: u32,
        memory: u32,
        reserved,
        slotOffset: size,
        memoryOffset: size,
        bytes: size,
      },
    },
    { capacity: ({ slot }) => slot.length },
  );
}

/**
 * Codecs of GPU_STORE and GPU_LOAD: copies between slots and registered memory. A store has no
 * flags.
 */
export const gpuCopyRequests = {
  [Op.gpuStore]: copyRequest(Op.gpuStore, 0),
  [Op.gpuLoad]: copyRequest(Op.gpuLoad, GpuLoadFlag.verify),
} as const;

/**
 * Request GPU_WARM: an engine reports the outcomes of the previous offer and waits for blocks that
 * were requested for its GPU.
 */
export interface WarmWait {
  /** Number of the offer that the outcomes belong to; 0: no previous offer. */
  offer: number;
  /** Maximum ms to wait for the next offer; 0: the agent's default. */
  deadlineMs: number;
}

export const { encode: encodeGpuWarmRequest, decode: decodeGpuWarmRequest } = columnsMessage<
  WarmWait,
  OutcomeItems
>(
  requestOf(Op.gpuWarm),
  {
    head: { offer: u32, deadlineMs: u32 },
    item: { outcome: within<Outcome>(Outcome.ok, Outcome.device), reserved },
  },
  {
    capacity: ({ outcome }) => outcome.length,
    check: ({ view, body, count }) =>
      count > 0 && view.getUint32(body, true) === 0
        ? malformed("gpuWarm: outcomes without an offer")
        : null,
  },
);

/** Reply to GPU_WARM. Offer number 0 without blocks: none was available before the deadline. */
export const { encode: encodeGpuWarmReply, decode: decodeGpuWarmReply } = columnsMessage<
  { offer: number },
  DigestItems
>(
  replyTo(Op.gpuWarm),
  { head: { offer: u32, layer: u32 }, item: DIGEST_ITEM },
  {
    capacity: digestsFit,
    check({ view, body, count }) {
      const [offer, layer] = [view.getUint32(body, true), view.getUint32(body + 4, true)];
      if ((offer === 0) === (count === 0) && (offer !== 0 || layer === 0)) return null;
      return malformed("gpuWarm: an offer must have a number and blocks, or neither");
    },
  },
);
