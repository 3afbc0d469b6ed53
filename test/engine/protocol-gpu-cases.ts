import * as protocol from "../../src/engine/protocol/index.ts";
import {
  batchOf,
  type Case,
  fill,
  outcomesCase,
  plain,
  sequence,
  unwrap,
} from "./protocol-support.ts";

/** The golden frames about GPUs: registered memory, copies, and offered blocks. */

const { Op, Outcome, GpuMemoryKind } = protocol;
const ALL = 0xffff_ffff;
const GIB = 2 ** 30;

const bytesFrom = (first: number, count: number) =>
  Uint8Array.from({ length: count }, (_, i) => (first + i) & 0xff);
const UUID = bytesFrom(0xd0, 16);

const devices = {
  hasChannel: true,
  devices: [
    {
      uuid: UUID,
      memoryBytes: 80 * GIB,
      numaNode: 1,
      flags: 3,
      state: protocol.GpuDeviceState.ok,
    },
    {
      uuid: bytesFrom(0x10, 16),
      memoryBytes: 40 * GIB,
      numaNode: null,
      flags: 0,
      state: protocol.GpuDeviceState.lost,
    },
  ],
};

const memories: readonly protocol.GpuMemoryItem[] = [
  {
    uuid: UUID,
    kind: GpuMemoryKind.ipc,
    offset: 2 * 2 ** 20,
    bytes: GIB,
    allocationBytes: 2 * GIB,
    handle: bytesFrom(0x80, 64),
  },
  {
    uuid: bytesFrom(0x10, 16),
    kind: GpuMemoryKind.descriptor,
    offset: 0,
    bytes: 5 * GIB,
    allocationBytes: 5 * GIB,
    handle: new Uint8Array(64),
  },
];

const registered: readonly protocol.GpuRegistered[] = [
  { outcome: Outcome.ok, memory: 1, code: 0 },
  { outcome: Outcome.device, memory: 0, code: 201 },
];

type Piece = readonly [number, number, number, number, number, number];

function piecesOf(pieces: readonly Piece[]): protocol.PieceItems {
  const items = protocol.createPieceItems(pieces.length);
  items.count = pieces.length;
  for (const [i, piece] of pieces.entries()) {
    items.slot[i] = piece[0];
    items.generation[i] = piece[1];
    items.memory[i] = piece[2];
    items.slotOffset[i] = piece[3];
    items.memoryOffset[i] = piece[4];
    items.bytes[i] = piece[5];
  }
  return items;
}

function plainPieces(items: protocol.PieceItems): Piece[] {
  return Array.from({ length: items.count }, (_, i) => [
    items.slot[i]!,
    items.generation[i]!,
    items.memory[i]!,
    items.slotOffset[i]!,
    items.memoryOffset[i]!,
    items.bytes[i]!,
  ]);
}

function copyCase(golden: string, op: 20 | 21, id: number, pieces: Piece[], verify = false): Case {
  return {
    golden,
    direction: "requests",
    encode: (output) =>
      protocol.gpuCopyRequests[op].encode(output, id, { verify }, piecesOf(pieces)),
    decode(frame) {
      const options = { verify: false };
      const into = protocol.createPieceItems(64);
      const refused = protocol.gpuCopyRequests[op].decode(frame, options, into);
      return refused ?? { ...options, pieces: plainPieces(into) };
    },
    value: { verify, pieces },
  };
}

function warmReplyCase(golden: string, id: number, offer: number, digests: number[]): Case {
  const blocks = batchOf({ digests }, offer === 0 ? 0 : ALL);
  return {
    golden,
    direction: "replies",
    encode: (output) => protocol.encodeGpuWarmReply(output, id, { offer }, blocks),
    decode(frame) {
      const head = { offer: 0 };
      const run = (into: ReturnType<typeof batchOf>) =>
        protocol.decodeGpuWarmReply(frame, head, into);
      return fill(run, ["digests"], true, () => head);
    },
    value: { ...plain(blocks, ["digests"], true), offer },
  };
}

const gone = batchOf({ outcome: [Outcome.ok, Outcome.miss] });
const unregistered = { count: 2, memory: Uint32Array.of(1, 9) };

const MEMORY_CASES: readonly Case[] = [
  {
    golden: "gpu-devices.request",
    direction: "requests",
    encode: (output) => protocol.encodeGpuDevicesRequest(output, 22, { wantsChannel: true }),
    decode(frame) {
      const request = { wantsChannel: false };
      return protocol.decodeGpuDevicesRequest(frame, request) ?? request;
    },
    value: { wantsChannel: true },
  },
  {
    golden: "gpu-devices.reply",
    direction: "replies",
    encode: (output) => protocol.encodeGpuDevicesReply(output, 22, devices),
    decode: (frame) => unwrap(protocol.decodeGpuDevicesReply(frame)),
    value: devices,
  },
  {
    golden: "gpu-register.request",
    direction: "requests",
    encode: (output) => protocol.encodeGpuRegisterRequest(output, 23, { memories }),
    decode: (frame) => unwrap(protocol.decodeGpuRegisterRequest(frame)),
    value: { memories },
  },
  {
    golden: "gpu-register.reply",
    direction: "replies",
    encode: (output) => protocol.encodeGpuRegisterReply(output, 23, { registered }),
    decode: (frame) => unwrap(protocol.decodeGpuRegisterReply(frame)),
    value: { registered },
  },
  {
    golden: "gpu-unregister.request",
    direction: "requests",
    encode: (output) => protocol.encodeGpuUnregisterRequest(output, 24, unregistered),
    decode(frame) {
      const into = { count: 0, memory: new Uint32Array(64) };
      const refused = protocol.decodeGpuUnregisterRequest(frame, into);
      return refused ?? Array.from(into.memory.subarray(0, into.count));
    },
    value: [1, 9],
  },
  outcomesCase("gpu-unregister.reply", Op.gpuUnregister, 24, [Outcome.ok, Outcome.stale]),
];

export const GPU_CASES: readonly Case[] = [
  ...MEMORY_CASES,
  copyCase("gpu-store.request", Op.gpuStore, 25, [
    [12, 3, 1, 0, 6 * GIB, 65_536],
    [12, 3, 1, 65_536, 2 ** 20, 65_536],
  ]),
  outcomesCase("gpu-store.reply", Op.gpuStore, 25, [Outcome.ok, Outcome.device]),
  copyCase("gpu-load.request", Op.gpuLoad, 26, [[13, 1, 2, 4_096, 8_192, 131_072]], true),
  outcomesCase("gpu-load.reply", Op.gpuLoad, 26, [Outcome.corrupt]),
  {
    golden: "gpu-warm.request",
    direction: "requests",
    encode: (output) =>
      protocol.encodeGpuWarmRequest(output, 27, { offer: 7, deadlineMs: 30_000 }, gone),
    decode(frame) {
      const wait = { offer: 0, deadlineMs: 0 };
      const run = (into: ReturnType<typeof batchOf>) =>
        protocol.decodeGpuWarmRequest(frame, wait, into);
      return fill(run, ["outcome"], false, () => wait);
    },
    value: { count: 2, outcome: [0, 1], offer: 7, deadlineMs: 30_000 },
  },
  warmReplyCase("gpu-warm.reply", 27, 8, [...sequence(0xa0), ...sequence(0x40)]),
  warmReplyCase("gpu-warm.none.reply", 28, 0, []),
];
