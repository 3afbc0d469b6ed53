import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import * as protocol from "../../src/engine/protocol/index.ts";
import { GPU_CASES } from "./protocol-gpu-cases.ts";
import { batchOf, type Case, columns, goldenBytes, isRefusal, plain } from "./protocol-support.ts";

const { Op, FrameStatus } = protocol;
const SEED = { seed: 20_261, numRuns: 150 };
const CAPACITY = 64;
const u32 = fc.integer({ min: 0, max: 0xffff_ffff });
const safe = fc.integer({ min: 0, max: Number.MAX_SAFE_INTEGER });
const uuid = fc.uint8Array({ minLength: 16, maxLength: 16 });
const outcome = fc.integer({ min: 0, max: 11 });

/** Encodes a frame and decodes it as the other side would. */
function through<Value>(
  direction: protocol.FrameDirection,
  write: (output: protocol.Output) => void,
  read: (frame: protocol.Frame) => Value,
): Value {
  const output = protocol.createOutput();
  output.bytes.fill(0xcc);
  write(output);
  return readFrame(protocol.pendingOutput(output), direction, read);
}

function readFrame<Value>(
  bytes: Uint8Array,
  direction: protocol.FrameDirection,
  read: (frame: protocol.Frame) => Value,
): Value {
  const frames = protocol.createFrameReader({ direction, frameBytesMax: 1 << 20 });
  const seen: Value[] = [];
  expect(frames.push(bytes, (frame) => seen.push(read(frame)) > 0)).toBeNull();
  expect(seen.length).toBe(1);
  return seen[0]!;
}

function valued<Value>(decoded: protocol.Decoded<Value>): Value {
  if (!decoded.ok) throw new Error(decoded.refusal.text);
  return decoded.value;
}

const arbPiece = fc.record({
  slot: u32,
  generation: u32,
  memory: u32,
  slotOffset: safe,
  memoryOffset: safe,
  bytes: safe,
});

describe("encoded frames are decoded unchanged", () => {
  test("pieces to store and to load", () => {
    const frame = fc.record({
      pieces: fc.array(arbPiece, { maxLength: CAPACITY }),
      verify: fc.boolean(),
      op: fc.constantFrom(Op.gpuStore, Op.gpuLoad),
    });
    fc.assert(
      fc.property(frame, u32, ({ pieces, verify, op }, id) => {
        const items = protocol.createPieceItems(CAPACITY);
        items.count = pieces.length;
        for (const [i, piece] of pieces.entries()) {
          for (const name of Object.keys(piece) as (keyof typeof piece)[]) {
            items[name][i] = piece[name];
          }
        }
        const into = protocol.createPieceItems(CAPACITY);
        const options = { verify: !verify };
        const refused = through(
          "requests",
          (output) => protocol.gpuCopyRequests[op].encode(output, id, { verify }, items),
          (read) => protocol.gpuCopyRequests[op].decode(read, options, into),
        );
        expect(refused).toBeNull();
        expect(options.verify).toBe(verify && op === Op.gpuLoad);
        expect(into).toEqual(items);
      }),
      SEED,
    );
  });

  test("memories and their outcomes", () => {
    const arbMemory = fc
      .record({
        uuid,
        offset: safe,
        bytes: safe,
        allocationBytes: safe,
        handle: fc.option(fc.uint8Array({ minLength: 64, maxLength: 64 })),
      })
      .map(({ handle, ...rest }) => ({
        ...rest,
        kind: handle === null ? protocol.GpuMemoryKind.descriptor : protocol.GpuMemoryKind.ipc,
        handle: handle ?? new Uint8Array(64),
      }));
    const arbAnswer = fc.tuple(outcome, u32, u32).map(([number, memory, code]) => ({
      outcome: number as protocol.Outcome,
      memory: number === 0 ? memory || 1 : 0,
      code: number === protocol.Outcome.device ? code : 0,
    }));
    fc.assert(
      fc.property(
        fc.array(arbMemory, { maxLength: 64 }),
        fc.array(arbAnswer, { maxLength: 64 }),
        (memories, answers) => {
          const write = (output: protocol.Output) =>
            protocol.encodeGpuRegisterRequest(output, 1, { memories });
          const read = (frame: protocol.Frame) => valued(protocol.decodeGpuRegisterRequest(frame));
          expect(through("requests", write, read)).toEqual({ memories });
          const answer = (output: protocol.Output) =>
            protocol.encodeGpuRegisterReply(output, 1, { registered: answers });
          const understand = (frame: protocol.Frame) =>
            valued(protocol.decodeGpuRegisterReply(frame));
          expect(through("replies", answer, understand)).toEqual({ registered: answers });
        },
      ),
      SEED,
    );
  });

  test("devices", () => {
    const device = fc.record({
      uuid,
      memoryBytes: safe,
      numaNode: fc.option(fc.integer({ min: 0, max: 0x7fff_ffff })),
      flags: fc.integer({ min: 0, max: 3 }),
      state: fc.constantFrom(...Object.values(protocol.GpuDeviceState)),
    });
    fc.assert(
      fc.property(fc.array(device, { maxLength: 20 }), fc.boolean(), (devices, hasChannel) => {
        const seen = through(
          "replies",
          (output) => protocol.encodeGpuDevicesReply(output, 1, { hasChannel, devices }),
          (frame) => valued(protocol.decodeGpuDevicesReply(frame)),
        );
        expect(seen).toEqual({ hasChannel, devices });
      }),
      SEED,
    );
  });

  test("outcomes of an offer, and the next one", () => {
    const outcomes = fc.array(outcome, { minLength: 1, maxLength: CAPACITY });
    const offer = fc.integer({ min: 1, max: 0xffff_ffff });
    const keys = fc.array(fc.uint8Array({ minLength: 32, maxLength: 32 }), {
      minLength: 1,
      maxLength: CAPACITY,
    });
    fc.assert(
      fc.property(outcomes, offer, u32, keys, (given, number, word, digests) => {
        const wait = { offer: 0, deadlineMs: 0 };
        const into = columns();
        const refused = through(
          "requests",
          (output) =>
            protocol.encodeGpuWarmRequest(
              output,
              1,
              { offer: number, deadlineMs: word },
              batchOf({ outcome: given }),
            ),
          (frame) => protocol.decodeGpuWarmRequest(frame, wait, into),
        );
        expect(refused).toBeNull();
        expect(wait).toEqual({ offer: number, deadlineMs: word });
        expect(plain(into, ["outcome"])).toEqual({ count: given.length, outcome: given });
        const blocks = batchOf({ digests: digests.flatMap((digest) => [...digest]) }, word);
        const head = { offer: 0 };
        const seen = through(
          "replies",
          (output) => protocol.encodeGpuWarmReply(output, 1, { offer: number }, blocks),
          (frame) => protocol.decodeGpuWarmReply(frame, head, into),
        );
        expect(seen).toBeNull();
        expect(head.offer).toBe(number);
        expect(plain(into, ["digests"], true)).toEqual(plain(blocks, ["digests"], true));
      }),
      SEED,
    );
  });
});

/** A golden frame with one word of its body changed. */
async function changed(golden: string, at: number, value: number): Promise<unknown> {
  const one: Case = GPU_CASES.find((each) => each.golden === golden)!;
  const bytes = await goldenBytes(golden);
  new DataView(bytes.buffer).setUint32(16 + at, value, true);
  return readFrame(bytes, one.direction, (frame) => one.decode(frame));
}

const NOT_SAFE = 2 ** 21;

describe("refusals", () => {
  test.each([
    ["gpu-devices.request", "undefined flags", 0, 2],
    ["gpu-devices.request", "a reserved field in use", 4, 1],
    ["gpu-register.request", "an undefined kind", 16, 3],
    ["gpu-register.request", "a reserved field in use", 20, 1],
    ["gpu-register.request", "an offset no double holds", 28, NOT_SAFE],
    ["gpu-register.request", "a length no double holds", 36, NOT_SAFE],
    ["gpu-register.request", "an allocation no double holds", 44, NOT_SAFE],
    ["gpu-register.request", "a descriptor with a handle", 112 + 48, 1],
    ["gpu-unregister.request", "a reserved field in use", 4, 1],
    ["gpu-store.request", "flags of a load", 0, 1],
    ["gpu-load.request", "undefined flags", 0, 2],
    ["gpu-load.request", "a reserved field in use", 4, 1],
    ["gpu-store.request", "a reserved field of a piece in use", 8 + 12, 1],
    ["gpu-store.request", "an offset in the slot no double holds", 8 + 20, NOT_SAFE],
    ["gpu-store.request", "an offset in the memory no double holds", 8 + 28, NOT_SAFE],
    ["gpu-store.request", "a length no double holds", 8 + 36, NOT_SAFE],
    ["gpu-warm.request", "outcomes of no offer", 0, 0],
    ["gpu-warm.request", "an undefined outcome", 8, 12],
    ["gpu-warm.request", "a reserved field in use", 12, 1],
  ])("%s with %s", async (golden, _what, at, value) => {
    const seen = await changed(golden, at, value);
    expect(seen).toMatchObject({ status: FrameStatus.malformed, fatal: true });
  });

  test.each([
    ["gpu-devices.reply", "undefined flags", 0, 2],
    ["gpu-devices.reply", "a reserved field in use", 4, 1],
    ["gpu-devices.reply", "a size no double holds", 8 + 20, NOT_SAFE],
    ["gpu-devices.reply", "a node below -1", 8 + 24, 0xffff_fffe],
    ["gpu-devices.reply", "undefined flags of a device", 8 + 28, 4],
    ["gpu-devices.reply", "an undefined state", 8 + 32, 2],
    ["gpu-devices.reply", "a reserved field of a device in use", 8 + 36, 1],
    ["gpu-register.reply", "a memory that is none", 4, 0],
    ["gpu-register.reply", "a memory that was not taken", 16 + 4, 1],
    ["gpu-register.reply", "a code of one that was taken", 8, 1],
    ["gpu-register.reply", "an undefined outcome", 16, 12],
    ["gpu-register.reply", "a reserved field in use", 12, 1],
    ["gpu-store.reply", "an undefined outcome", 0, 12],
    ["gpu-warm.reply", "blocks of no offer", 0, 0],
    ["gpu-warm.none.reply", "an offer of nothing", 0, 1],
    ["gpu-warm.none.reply", "a layer of nothing", 4, 1],
  ])("%s with %s", async (golden, _what, at, value) => {
    expect(isRefusal(await changed(golden, at, value))).toBe(true);
  });

  test("more items than allowed are refused without closing the connection", () => {
    const memory = {
      uuid: new Uint8Array(16),
      kind: protocol.GpuMemoryKind.ipc,
      offset: 0,
      bytes: 1,
      allocationBytes: 1,
      handle: new Uint8Array(64),
    };
    const many = new Array<typeof memory>(65).fill(memory);
    const seen = through(
      "requests",
      (output) => protocol.encodeGpuRegisterRequest(output, 1, { memories: many }),
      (frame) => protocol.decodeGpuRegisterRequest(frame),
    );
    const limit = { status: FrameStatus.limit, fatal: false };
    expect(seen).toMatchObject({ ok: false, refusal: limit });
    const items = protocol.createPieceItems(3);
    items.count = 3;
    const load = protocol.gpuCopyRequests[Op.gpuLoad];
    const pieces = through(
      "requests",
      (output) => load.encode(output, 1, { verify: true }, items),
      (frame) => load.decode(frame, { verify: false }, protocol.createPieceItems(2)),
    );
    expect(pieces).toMatchObject(limit);
  });
});
