import { expect, test } from "bun:test";
import { readdirSync } from "node:fs";
import type { NamespaceIndex } from "../../src/core/index.ts";
import { emptyEngineStats, FrameStatus, GpuPlane, Outcome } from "../../src/engine/index.ts";
import {
  createPieceItems,
  encodeGpuDevicesRequest,
  encodeGpuRegisterRequest,
  encodeGpuWarmRequest,
  type GpuMemoryItem,
  GpuMemoryKind,
  Op,
} from "../../src/engine/protocol/index.ts";
import { loadNative, type Native } from "../../src/native/index.ts";
import { handleBatch } from "../store/store-engine.ts";
import { openStoreKit, PAGE } from "../store/store-kit.ts";
import { FakeGpus } from "../support/fake-gpus.ts";
import { describeNative, ManualClock, waitFor } from "../support/index.ts";
import { openAgent } from "./agent-kit.ts";

const UUID = new Uint8Array(16).fill(3);
const DEVICE_BYTES = 2 ** 30;
const NO_HANDLE = new Uint8Array(64);

function memory(changes: Partial<GpuMemoryItem> = {}): GpuMemoryItem {
  const whole = { offset: 0, bytes: 4_096, allocationBytes: 8_192, handle: NO_HANDLE };
  return { uuid: UUID, kind: GpuMemoryKind.ipc, ...whole, ...changes };
}

/** Number of open descriptors of this process. */
const openDescriptors = () => readdirSync("/proc/self/fd").length;

function openLine(native: Native = loadNative()) {
  const gpus = new FakeGpus(UUID, DEVICE_BYTES);
  const stats = emptyEngineStats();
  const clock = new ManualClock();
  const plane = new GpuPlane({ gpus, native, stats, clock, log: () => undefined });
  return { gpus, stats, plane, line: plane.open(), native, clock };
}

const outcomesOf = (answers: readonly { outcome: Outcome }[]) =>
  answers.map(({ outcome }) => outcome);

describeNative("GPU state of a connection", () => {
  test("memory is accepted only within its allocation and on a present device", async () => {
    const { line, gpus } = openLine();
    const answers = await line.register([
      memory(),
      memory({ offset: 4_096 }),
      memory({ offset: 4_097 }),
      memory({ bytes: 0 }),
      memory({ bytes: 8_193 }),
      memory({ uuid: new Uint8Array(16) }),
      memory({ allocationBytes: DEVICE_BYTES + 1 }),
    ]);
    const { ok, rejected } = Outcome;
    expect(outcomesOf(answers)).toEqual([ok, ok, ...new Array<Outcome>(5).fill(rejected)]);
    expect(answers.map(({ memory }) => memory)).toEqual([1, 2, 0, 0, 0, 0, 0]);
    expect(gpus.openMemories).toBe(2);
    line.close();
    expect(gpus.openMemories).toBe(0);
  });

  test("4096 memories at a time", async () => {
    const { line } = openLine();
    const many = await line.register(new Array<GpuMemoryItem>(4_096).fill(memory()));
    expect(outcomesOf(many).every((outcome) => outcome === Outcome.ok)).toBe(true);
    expect(outcomesOf(await line.register([memory()]))).toEqual([Outcome.full]);
    expect(await line.unregister(4_096)).toBe(Outcome.ok);
    expect(await line.register([memory(), memory()])).toMatchObject([
      { outcome: Outcome.ok, memory: 4_097 },
      { outcome: Outcome.full },
    ]);
  });

  test("memory is freed even if the device's job queue is full", async () => {
    const { line, gpus, clock } = openLine();
    await line.register([memory(), memory()]);
    gpus.fullTimes = 3;
    const unregistered = line.unregister(1);
    line.close();
    await waitFor(() => {
      clock.advance(10);
      return gpus.openMemories === 0;
    });
    expect(await unregistered).toBe(Outcome.ok);
  });

  test("each item with a descriptor takes one, and none is left open", async () => {
    const { line, native, gpus } = openLine();
    const before = openDescriptors();
    const kind = GpuMemoryKind.descriptor;
    expect(outcomesOf(await line.register([memory({ kind })]))).toEqual([Outcome.rejected]);
    const theirs = line.openChannel()!;
    expect(line.openChannel()).toBeNull();
    const [first, second] = native.socketPair();
    for (const fd of [first, second]) native.sendFd(theirs, new Uint8Array(1), fd);
    const imported: number[] = [];
    gpus.importFd = async (_device: number, fd: number) => {
      imported.push(fd);
      native.closeFd(fd);
      return gpus.allocate(0, 8_192);
    };
    const answers = await line.register([
      memory({ kind, bytes: 0 }),
      memory({ kind }),
      memory({ kind }),
    ]);
    const { ok, rejected } = Outcome;
    // The first item takes its own descriptor; the third has none.
    expect(outcomesOf(answers)).toEqual([rejected, ok, rejected]);
    expect(imported.length).toBe(1);
    for (const fd of [first, second, theirs]) native.closeFd(fd);
    line.close();
    expect(openDescriptors()).toBe(before);
  });

  test("memory imported after the end of the connection is freed", async () => {
    const { line, gpus } = openLine();
    const coming = line.register([memory()]);
    line.close();
    expect(outcomesOf(await coming)).toEqual([Outcome.device]);
    expect(gpus.openMemories).toBe(0);
  });

  test("copy requests beyond 64 are full, and their slots cannot be committed", async () => {
    await using kit = openStoreKit({ arenaBytes: 16 * PAGE });
    const { line, gpus } = openLine();
    gpus.holds = true;
    await line.register([memory()]);
    const engine = kit.engine();
    const handles = engine.reserve({ name: "a", bytes: 64 }, { name: "b", bytes: 64 });
    const copy = (i: number) => {
      const pieces = createPieceItems(1);
      pieces.count = 1;
      pieces.slot[0] = handles[i]!.slot;
      pieces.generation[0] = handles[i]!.generation;
      pieces.memory[0] = 1;
      pieces.bytes[0] = 64;
      const out = { count: 0, outcome: new Uint32Array(1) };
      return line.copy(Op.gpuStore, engine.holder, pieces, false, out).then(() => out.outcome[0]);
    };
    const copies = Array.from({ length: 64 }, () => copy(0));
    expect(await copy(1)).toBe(Outcome.full);
    for (const one of [...gpus.copies]) one.end({ ok: true });
    expect(await Promise.all(copies)).toEqual(new Array(64).fill(Outcome.ok));
    const batch = handleBatch(handles);
    await engine.holder.commit(batch);
    expect([...batch.outcome]).toEqual([Outcome.ok, Outcome.corrupt]);
    kit.expectNothingLeft();
  });

  test("a device that cannot be stopped keeps its slots, which is reported", async () => {
    await using kit = openStoreKit({ arenaBytes: 16 * PAGE });
    const { line, gpus, plane, stats } = openLine();
    gpus.holds = true;
    await line.register([memory()]);
    const engine = kit.engine();
    const [handle] = engine.reserve({ name: "a", bytes: 64 });
    const pieces = createPieceItems(1);
    pieces.count = 1;
    pieces.slot[0] = handle!.slot;
    pieces.generation[0] = handle!.generation;
    pieces.memory[0] = 1;
    pieces.bytes[0] = 64;
    const out = { count: 0, outcome: new Uint32Array(1) };
    const copied = line.copy(Op.gpuStore, engine.holder, pieces, false, out);
    engine.die();
    plane.close(line);
    expect(plane.orphans).toBe(1);
    gpus.copies[0]!.end({ ok: false, status: "lost", code: 700, leaked: true });
    await copied;
    expect(out.outcome[0]).toBe(Outcome.device);
    expect(plane.orphans).toBe(1);
    expect(stats).toMatchObject({ gpuFailures: 1, gpuLeakedSlots: 1 });
    expect(kit.snapshot()).toMatchObject({ slotsQuarantined: 1, slotsUsed: 1 });
  });
});

describeNative("frames about GPUs", () => {
  test("a connection gets one socket for descriptors, and none is left open", async () => {
    await using agent = await openAgent({ gpuPlan: "" });
    const before = openDescriptors();
    const raw = await agent.rawGreeted();
    const ask = { wantsChannel: true };
    // This reader drops the descriptor, as an ordinary read does.
    expect(await raw.ask((out) => encodeGpuDevicesRequest(out, 5, ask))).toMatchObject({
      status: FrameStatus.ok,
      count: 1,
    });
    const again = await raw.ask((out) => encodeGpuDevicesRequest(out, 6, ask));
    expect(again.status).toBe(FrameStatus.limit);
    expect(await raw.answersPing()).toBe(true);
    raw[Symbol.dispose]();
    await waitFor(() => agent.server.connections === 0);
    await waitFor(() => openDescriptors() === before);
  });

  test("a draining agent registers no memory and offers no blocks", async () => {
    await using agent = await openAgent({ gpuPlan: "" });
    await using engine = await agent.connect();
    const raw = await agent.rawGreeted();
    await using other = await agent.connect();
    await other.put("a");
    // A held slot keeps the connection open while the agent drains.
    const [held] = await engine.reserve("b");
    const hurry = new AbortController();
    const nothing = { count: 0, outcome: new Uint32Array(0) };
    const waiting = raw.ask((out) =>
      encodeGpuWarmRequest(out, 7, { offer: 0, deadlineMs: 60_000 }, nothing),
    );
    await waitFor(() => agent.frames.list().some(([operation]) => operation === "gpuWarm"));
    const drained = agent.server.drain(5_000, hurry.signal);
    expect(await waiting).toMatchObject({ op: Op.gpuWarm, status: FrameStatus.ok, count: 0 });
    await expect(engine.client.gpu.register([memoryOf()])).rejects.toThrow("draining");
    const blocks = { count: 0, layer: 0, digests: new Uint8Array(32) };
    const wait = { offer: 0, deadlineMs: 10 };
    await expect(engine.client.gpu.warm(wait, nothing, blocks)).rejects.toThrow("draining");
    await engine.abort([held!]);
    await drained;
    raw[Symbol.dispose]();
  });

  test("an engine that disconnects while waiting is offered nothing", async () => {
    await using agent = await openAgent();
    const raw = await agent.rawGreeted();
    const nothing = { count: 0, outcome: new Uint32Array(0) };
    raw.send((out) => encodeGpuWarmRequest(out, 7, { offer: 0, deadlineMs: 0 }, nothing));
    await waitFor(() => agent.frames.list().some(([operation]) => operation === "gpuWarm"));
    raw[Symbol.dispose]();
    await waitFor(() => agent.server.connections === 0);
    const block = { namespace: 1 as NamespaceIndex, layer: 0, digest: new Uint8Array(32) };
    const [result] = await agent.server.gpuSink.offer([block], new AbortController().signal);
    expect(result!.reason).toContain("no engine here loads blocks");
  });

  test("each item with invalid memory gets its own outcome", async () => {
    await using agent = await openAgent();
    const raw = await agent.rawGreeted();
    const reply = await raw.ask((out) =>
      encodeGpuRegisterRequest(out, 5, { memories: [memory(), memory()] }),
    );
    const view = new DataView(reply.body.buffer);
    expect([reply.count, view.getUint32(0, true), view.getUint32(16, true)]).toEqual([
      2,
      Outcome.device,
      Outcome.device,
    ]);
    raw[Symbol.dispose]();
  });
});

function memoryOf() {
  const { uuid, offset, bytes, allocationBytes, handle } = memory();
  return { uuid, offset, bytes, allocationBytes, handle };
}
