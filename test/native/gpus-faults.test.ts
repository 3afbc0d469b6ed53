import { expect, test } from "bun:test";
import { openSync } from "node:fs";
import { type GpuMemory, type Gpus, loadNative, openGpus } from "../../src/native/index.ts";
import { describeNative } from "../support/native.ts";
import { standIn } from "../support/stand-ins.ts";
import { waitFor } from "../support/wait.ts";
import {
  type Bed,
  goesAround,
  gpuThreadsEnd,
  KIB,
  MIB,
  opened,
  piece,
  scattered,
  withGpus,
} from "./gpus-kit.ts";

const OUT_OF_MEMORY = 2;
const INVALID_CONTEXT = 201;
const ILLEGAL_ADDRESS = 700;
const NOT_SUPPORTED = 801;
const TIMEOUT = 909;
/** Short for a device, long for a busy host. */
const GIVE_UP_MS = 400;

const LOST = { ok: false, status: "lost", code: TIMEOUT, leaked: false } as const;
const LEAKED = { ...LOST, leaked: true } as const;

/** Two copies, the first of which hits the plan's fault. */
async function copyBoth(gpus: Gpus, memory: GpuMemory, pieces = scattered(4, 64 * KIB)) {
  const there = await gpus.toGpu(memory, pieces);
  const back = await gpus.fromGpu(memory, pieces);
  return { there, back };
}

async function allocated(bed: Bed, device = 0): Promise<GpuMemory> {
  return opened(bed.gpus.allocate(device, 4 * MIB));
}

function openDescriptor(): number {
  return openSync("/dev/null", "r");
}

describeNative("GPUs with a failing call", () => {
  const failed = {
    ok: false,
    status: "device_failed",
    code: OUT_OF_MEMORY,
    leaked: false,
  } as const;

  test.each([
    "no-batch;cuMemcpyHtoDAsync_v2=2@1",
    "no-batch;cuMemcpyHtoDAsync_v2=2@3",
    "cuEventRecord=2@1",
    "cuEventQuery=2@1",
  ])("%s: the copy fails, and the next works", async (plan) => {
    await withGpus({ plan }, async (bed) => {
      const memory = await allocated(bed);
      const { there, back } = await copyBoth(bed.gpus, memory);
      // Without its event the end of a copy is detected another way, so it may have succeeded.
      if (!plan.startsWith("cuEventRecord")) expect(there).toEqual(failed);
      expect(back).toEqual({ ok: true });
      await goesAround(bed, memory, MIB, 4n);
      expect(bed.lost).toEqual([]);
    });
  });

  test("pieces whose batch is refused are copied one by one", async () => {
    await withGpus({ plan: "cuMemcpyBatchAsync_v2=1@1" }, async (bed) => {
      const memory = await allocated(bed);
      expect(await copyBoth(bed.gpus, memory)).toEqual({ there: { ok: true }, back: { ok: true } });
      expect(bed.cuda.counters()).toMatchObject({
        "calls.cuMemcpyBatchAsync_v2": 2,
        "calls.cuMemcpyHtoDAsync_v2": 4,
      });
      bed.cuda.configure("+cuMemcpyBatchAsync_v2=1;cuMemcpyHtoDAsync_v2=2@3");
      expect(await bed.gpus.toGpu(memory, scattered(4, 64 * KIB))).toEqual(failed);
    });
  });

  test("a copy ends only when all its issued pieces have ended", async () => {
    const plan = "no-batch;delay=30;cuMemcpyDtoHAsync_v2=2@2";
    await withGpus({ plan }, async ({ gpus, region, cuda }) => {
      const memory = await opened(gpus.allocate(0, 4 * MIB));
      expect(await gpus.fromGpu(memory, scattered(2, 64 * KIB))).toEqual(failed);
      expect(cuda.counters().copies).toBe(1);
      region.fill(0, MIB, 1n);
      await Bun.sleep(40);
      expect(region.firstWrong(0, MIB, 1n)).toBe(null);
    });
  });

  test("a copy fails if its stream cannot be made to wait", async () => {
    await withGpus({ plan: "delay=20;cuStreamWaitEvent=2" }, async ({ gpus }) => {
      const memory = await opened(gpus.allocate(0, MIB));
      const there = gpus.toGpu(memory, [piece(0, 0, MIB)]);
      expect(await gpus.fromGpu(memory, [piece(0, 0, MIB)])).toEqual(failed);
      expect(await there).toEqual({ ok: true });
    });
  });

  test("memory that cannot be allocated", async () => {
    await withGpus({ plan: "memory=8m" }, async ({ gpus }) => {
      expect(await gpus.allocate(0, 16 * MIB)).toEqual(failed);
      await opened(gpus.allocate(0, MIB));
    });
  });

  test.each([
    "cuMemCreate",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemGetAllocationGranularity",
  ])("%s: nothing is left of memory whose export failed", async (call) => {
    await withGpus({ plan: `${call}=2@1` }, async ({ gpus, cuda }) => {
      expect(await gpus.allocate(0, MIB, { exportable: true })).toEqual(failed);
      expect(cuda.counters()["open.allocations"] ?? 0).toBe(0);
      await opened(gpus.allocate(0, MIB, { exportable: true }));
    });
  });

  test("memory whose registration is refused is copied all the same", async () => {
    const plan = "cuMemHostRegister_v2=2@1";
    await withGpus({ plan, isRegistered: false }, async (bed) => {
      expect(await bed.gpus.register(0, 4 * MIB)).toEqual(failed);
      await goesAround(bed, await allocated(bed), MIB, 4n);
      expect(bed.gpus.devices()[0]!.pageableCopies).toBe(2);
      expect(await bed.gpus.register(0, 4 * MIB)).toEqual({ ok: true });
    });
  });

  test("without virtual memory management no memory can be exported", async () => {
    await withGpus({ plan: "no-vmm" }, async ({ gpus }) => {
      const refused = { status: "device_failed", code: NOT_SUPPORTED };
      expect(await gpus.allocate(0, MIB, { exportable: true })).toMatchObject(refused);
      expect(await gpus.exportFd(await opened(gpus.allocate(0, MIB)))).toMatchObject({
        status: "bad_request",
      });
    });
  });

  test("a handle of this process cannot be opened", async () => {
    await withGpus({}, async ({ gpus }) => {
      const exported = await gpus.exportIpc(await opened(gpus.allocate(0, MIB)));
      if (!exported.ok) throw new Error("not exported");
      expect(await gpus.importIpc(0, exported.handle, MIB)).toMatchObject({
        status: "device_failed",
        code: INVALID_CONTEXT,
      });
    });
  });
});

describeNative("GPUs that are lost", () => {
  test.each([
    ["no-batch;cuMemcpyHtoDAsync_v2=700@2", "at the call"],
    ["copy=700@1", "on the stream"],
    ["cuEventRecord=700@1", "at its event"],
    ["cuEventQuery=719@1", "when looked at"],
    ["cuEventQuery=226@1", "with an error that was kept to this process"],
    ["delay=20;cuStreamWaitEvent=700@1", "at the other way"],
  ])("%s: %s", async (plan) => {
    await withGpus({ plan: `devices=2;${plan}` }, async (bed) => {
      const { gpus } = bed;
      const first = await allocated(bed);
      const second = await allocated(bed, 1);
      const jobs = [gpus.toGpu(first, scattered(4, KIB)), gpus.fromGpu(first, scattered(4, KIB))];
      const ends = await Promise.all(jobs);
      const code = Number(/=(719|226)@/.exec(plan)?.[1] ?? ILLEGAL_ADDRESS);
      expect(ends[1]).toEqual({ ok: false, status: "lost", code, leaked: false });
      expect(gpus.devices()[0]!.lost).toBe(code);
      expect(bed.lost.map((device) => [device.index, device.lost])).toEqual([[0, code]]);
      expect(await gpus.allocate(0, KIB)).toMatchObject({ status: "lost", code });
      expect(await gpus.free(first)).toMatchObject({ status: "lost", code });
      expect(gpus.devices()[1]!.lost).toBe(null);
      await goesAround(bed, second, MIB, 6n);
      expect(bed.lost.length).toBe(1);
    });
  });

  test("other devices register the memory of a lost device again", async () => {
    await withGpus({ plan: "devices=2;copy=700@1", isRegistered: false }, async (bed) => {
      const { gpus, cuda } = bed;
      expect(await gpus.register(0, 8 * MIB)).toEqual({ ok: true });
      const second = await allocated(bed, 1);
      expect(await gpus.toGpu(await allocated(bed), [piece(0, 0, 1)])).toMatchObject({
        status: "lost",
      });
      await waitFor(() => cuda.counters()["open.registrations"] === 1);
      expect(await gpus.register(8 * MIB, 8 * MIB)).toEqual({ ok: true });
      await goesAround(bed, second, 4 * MIB, 6n);
      expect(gpus.devices()[1]!.pageableCopies).toBe(0);
    });
  });

  test("registrations of a lost device are removed while no copy runs", async () => {
    await withGpus({ plan: "devices=2;delay=3" }, async (bed) => {
      const { gpus, cuda } = bed;
      const second = await allocated(bed, 1);
      const copy = () => gpus.toGpu(second, scattered(2, KIB));
      const jobs = Array.from({ length: 40 }, copy);
      cuda.configure("+cuMemAlloc_v2=700@1");
      expect(await gpus.allocate(0, KIB)).toMatchObject({ status: "lost", code: 700 });
      jobs.push(copy());
      for (const end of await Promise.all(jobs)) expect(end).toEqual({ ok: true });
      expect(cuda.counters()["misuse.unregistered-under-copy"] ?? 0).toBe(0);
    });
  });

  test("loss of all devices hangs nothing", async () => {
    await withGpus({ plan: "devices=2;copy=714@1+" }, async (bed) => {
      const memories = [await allocated(bed), await allocated(bed, 1)];
      const jobs = memories.flatMap((memory) =>
        Array.from({ length: 40 }, () => bed.gpus.toGpu(memory, [piece(0, 0, KIB)])),
      );
      for (const end of await Promise.all(jobs)) {
        expect(end).toEqual({ ok: false, status: "lost", code: 714, leaked: false });
      }
      expect(bed.lost.length).toBe(2);
      expect(await bed.gpus.register(0, 4096)).toMatchObject({ status: "lost", code: 714 });
    });
  });

  test("a device that cannot be opened is listed, and the other works", async () => {
    const plan = "devices=2;cuDevicePrimaryCtxRetain=46@1";
    await withGpus({ plan }, async (bed) => {
      const lost = bed.gpus.devices().map((device) => device.lost);
      expect(lost.toSorted()).toEqual([46, null]);
      const good = lost.indexOf(null);
      expect(await bed.gpus.allocate(1 - good, KIB)).toMatchObject({ status: "lost", code: 46 });
      await goesAround(bed, await allocated(bed, good), MIB, 6n);
    });
  });
});

describeNative("GPUs that hang", () => {
  test("a copy that never ends: its device is declared lost and stopped", async () => {
    await withGpus({ plan: "devices=2", giveUpMs: GIVE_UP_MS }, async (bed) => {
      const { gpus, region, cuda } = bed;
      const memory = await allocated(bed);
      cuda.configure("+stall");
      const jobs = [
        ...Array.from({ length: 40 }, () => gpus.fromGpu(memory, [piece(0, 0, MIB)])),
        gpus.free(memory),
      ];
      for (const end of await Promise.all(jobs)) expect(end).toEqual(LOST);
      expect(bed.lost.map((device) => device.lost)).toEqual([TIMEOUT]);
      region.fill(0, MIB, 7n);
      cuda.configure("+release");
      await goesAround(bed, await allocated(bed, 1), 64 * KIB, 6n);
      region.fill(0, MIB, 7n);
      expect(region.firstWrong(0, MIB, 7n)).toBe(null);
    });
  });

  test("a slow device is not hung: each completion counts as progress", async () => {
    await withGpus({ plan: "delay=100", giveUpMs: GIVE_UP_MS }, async ({ gpus }) => {
      const memory = await opened(gpus.allocate(0, MIB));
      const jobs = Array.from({ length: 8 }, () => gpus.toGpu(memory, [piece(0, 0, KIB)]));
      for (const end of await Promise.all(jobs)) expect(end).toEqual({ ok: true });
    });
  });

  test.each([
    ["its context cannot be destroyed", "cuDevicePrimaryCtxReset_v2=2"],
    ["nor does the call that destroys it come back", "cuDevicePrimaryCtxReset_v2=hang"],
  ])("%s: the spans are leaked", async (_, fault) => {
    await withGpus({ giveUpMs: GIVE_UP_MS, leaks: true }, async (bed) => {
      const memory = await allocated(bed);
      bed.cuda.configure(`+stall;${fault}`);
      const jobs = [
        bed.gpus.fromGpu(memory, [piece(0, 0, MIB)]),
        bed.gpus.toGpu(memory, [piece(0, 0, MIB)]),
      ];
      for (const end of await Promise.all(jobs)) expect(end).toEqual(LEAKED);
      expect(await bed.gpus.allocate(0, MIB)).toEqual(LOST);
    });
  });

  test.each([
    ["cuMemcpyHtoDAsync_v2=hang@1", true],
    ["stall", false],
    ["cuEventQuery=hang@1", true],
  ])("a call that never returns (%s): other threads report it", async (fault, isRegistered) => {
    const options = { plan: "devices=2", giveUpMs: GIVE_UP_MS, leaks: true, isRegistered };
    await withGpus(options, async (bed) => {
      const { gpus, cuda } = bed;
      const memory = await allocated(bed);
      const second = await allocated(bed, 1);
      cuda.configure(`+${fault}`);
      const stuck = gpus.toGpu(memory, [piece(0, 0, MIB)]);
      const behind = gpus.exportIpc(memory);
      expect(await stuck).toEqual(LEAKED);
      expect(await behind).toMatchObject({ ok: false, status: "lost", code: TIMEOUT });
      expect(await gpus.toGpu(memory, [piece(0, 0, 1)])).toEqual(LOST);
      expect(await gpus.importFd(0, openDescriptor(), MIB)).toEqual(LOST);
      expect(bed.lost.map((device) => device.index)).toEqual([0]);
      cuda.configure("+release");
      await goesAround(bed, second, MIB, 6n);
    });
  });

  test("a device that hangs when it is opened is listed as lost", async () => {
    const plan = "devices=2;cuDevicePrimaryCtxRetain=hang@2";
    await withGpus({ plan, giveUpMs: GIVE_UP_MS, leaks: true }, async (bed) => {
      const lost = bed.gpus.devices().map((device) => device.lost);
      expect(lost.toSorted()).toEqual([TIMEOUT, null]);
      await goesAround(bed, await allocated(bed, lost.indexOf(null)), MIB, 6n);
    });
  });

  test("a driver that never answers counts as missing", async () => {
    const cuda = standIn("libcuda.so.1");
    cuda.configure("cuInit=hang");
    await using gpus = openGpus(loadNative(), {
      region: null,
      library: cuda.path,
      jobsMax: 1,
      piecesMax: 1,
      giveUpMs: 50,
      onLost: () => {},
    });
    expect(gpus.info).toMatchObject({ state: "failed", code: TIMEOUT });
    cuda.configure("+release");
    await gpuThreadsEnd();
    cuda.configure("");
  });

  test("closing ends and reports devices lost meanwhile", async () => {
    await withGpus({ plan: "stall", giveUpMs: GIVE_UP_MS }, async (bed) => {
      const memory = await allocated(bed);
      const copied = bed.gpus.toGpu(memory, [piece(0, 0, KIB)]);
      await bed.gpus[Symbol.asyncDispose]();
      expect(await copied).toEqual(LOST);
      expect(bed.lost.length).toBe(1);
      expect(bed.gpus.devices()[0]!.lost).toBe(TIMEOUT);
    });
  });

  test("closing ends even if a call for it hangs", async () => {
    await withGpus({ giveUpMs: GIVE_UP_MS, leaks: true }, async (bed) => {
      await allocated(bed);
      bed.cuda.configure("+cuMemFree_v2=hang");
      await bed.gpus[Symbol.asyncDispose]();
      expect(bed.gpus.devices()[0]!.lost).toBe(TIMEOUT);
    });
  });
});
