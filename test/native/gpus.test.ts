import { afterEach, describe, expect, test } from "bun:test";
import { join } from "node:path";
import { loadNative, openGpus } from "../../src/native/index.ts";
import { describeNative, withTempDir } from "../support/index.ts";
import { standIn, standInLacking } from "../support/stand-ins.ts";
import { goesAround, KIB, MIB, opened, piece, scattered, withGpus } from "./gpus-kit.ts";

const INVALID_VALUE = 1;
const NO_DEVICE = 100;

function openWith(library: string | null) {
  return openGpus(loadNative(), {
    region: null,
    library,
    jobsMax: 16,
    piecesMax: 16,
    onLost: () => {},
  });
}

describeNative("GPUs", () => {
  const cuda = standIn("libcuda.so.1");
  afterEach(() => cuda.configure(""));

  test("are listed with the driver's properties", async () => {
    await withGpus({ plan: "devices=2;memory=2g;numa=1,0;driver=12080" }, async ({ gpus }) => {
      expect(gpus.info).toEqual({
        state: "ready",
        driverVersion: 12080,
        code: 0,
        hasBatches: true,
      });
      const [first, second] = gpus.devices();
      expect(first).toEqual({
        index: 0,
        uuid: new TextEncoder().encode("stand-in-gpu-\0\0\0"),
        name: "Stand-in GPU 0",
        pci: "0000:3b:00.0",
        memoryBytes: 2 * 2 ** 30,
        numaNode: 1,
        capability: 90,
        hasDmaBuf: true,
        lost: null,
        pageableCopies: 0,
      });
      expect(second).toMatchObject({ index: 1, pci: "0000:3c:00.0", numaNode: 0 });
    });
  });

  test("bytes are copied there and back, in one piece and in many", async () => {
    await withGpus({}, async (bed) => {
      const { gpus, region } = bed;
      const memory = await opened(gpus.allocate(0, 4 * MIB));
      await goesAround(bed, memory, 4 * MIB, 3n);
      const pieces = scattered(64, 64 * KIB);
      for (const [index, { regionOffset, bytes }] of pieces.entries()) {
        region.fill(regionOffset, bytes, BigInt(index));
      }
      expect(await gpus.toGpu(memory, pieces)).toEqual({ ok: true });
      region.fill(0, region.bytes, 99n);
      expect(await gpus.fromGpu(memory, pieces)).toEqual({ ok: true });
      for (const [index, { regionOffset, bytes }] of pieces.entries()) {
        expect(region.firstWrong(regionOffset, bytes, BigInt(index))).toBe(null);
      }
      expect(bed.cuda.counters().batches).toBe(2);
      expect(gpus.devices()[0]!.pageableCopies).toBe(0);
      expect(await gpus.free(memory)).toEqual({ ok: true });
      expect(await gpus.free(memory)).toMatchObject({ ok: false, status: "stale_handle" });
      expect(await gpus.toGpu(memory, pieces)).toMatchObject({ status: "stale_handle" });
    });
  });

  test.each(["no-batch", "driver=12040"])(
    "%s: piece by piece where there are no batches",
    async (plan) => {
      await withGpus({ plan }, async ({ gpus, region, cuda: driver }) => {
        const memory = await opened(gpus.allocate(0, 4 * MIB));
        const pieces = scattered(8, 64 * KIB);
        region.fill(0, region.bytes, 5n);
        const sums = pieces.map((one) => region.checksum(one.regionOffset, one.bytes));
        expect(await gpus.toGpu(memory, pieces)).toEqual({ ok: true });
        region.fill(0, region.bytes, 6n);
        expect(await gpus.fromGpu(memory, pieces)).toEqual({ ok: true });
        expect(pieces.map((one) => region.checksum(one.regionOffset, one.bytes))).toEqual(sums);
        expect(driver.counters().batches ?? 0).toBe(0);
        expect(driver.counters()["calls.cuMemcpyHtoDAsync_v2"]).toBe(8);
      });
    },
  );

  test("the batch call of a driver before 13.0 is supported", async () => {
    await withTempDir(async (folder) => {
      const path = join(folder, "libcuda.so.1");
      const older = standInLacking("libcuda.so.1", ["cuMemcpyBatchAsync_v2"], path);
      await withGpus({ library: older }, async ({ gpus, region, cuda: driver }) => {
        const memory = await opened(gpus.allocate(0, MIB));
        const pieces = scattered(8, 64 * KIB);
        region.fill(0, 2 * MIB, 5n);
        const sums = pieces.map((one) => region.checksum(one.regionOffset, one.bytes));
        expect(await gpus.toGpu(memory, pieces)).toEqual({ ok: true });
        region.fill(0, 2 * MIB, 6n);
        expect(await gpus.fromGpu(memory, pieces)).toEqual({ ok: true });
        expect(pieces.map((one) => region.checksum(one.regionOffset, one.bytes))).toEqual(sums);
        expect(driver.counters()["calls.cuMemcpyBatchAsync"]).toBe(2);
      });
    });
  });

  test("adjacent pieces become one copy", async () => {
    await withGpus({}, async ({ gpus, cuda: driver }) => {
      const memory = await opened(gpus.allocate(0, 4 * MIB));
      const pieces = Array.from({ length: 16 }, (_, i) => piece(i * KIB, i * KIB, KIB));
      expect(await gpus.toGpu(memory, pieces)).toEqual({ ok: true });
      expect(driver.counters()["calls.cuMemcpyHtoDAsync_v2"]).toBe(1);
      expect(await gpus.toGpu(memory, [])).toEqual({ ok: true });
      expect(await gpus.toGpu(memory, [piece(0, 0, 0)])).toEqual({ ok: true });
      expect(driver.counters()["calls.cuMemcpyHtoDAsync_v2"]).toBe(1);
    });
  });

  test("jobs on one memory run in the order of their calls", async () => {
    await withGpus({ plan: "delay=2" }, async ({ gpus, region }) => {
      const memory = await opened(gpus.allocate(0, MIB));
      const jobs: Promise<unknown>[] = [];
      for (let round = 0; round < 8; round++) {
        region.fill(round * 64 * KIB, 64 * KIB, BigInt(round));
        jobs.push(gpus.toGpu(memory, [piece(round * 64 * KIB, 0, 64 * KIB)]));
        jobs.push(gpus.fromGpu(memory, [piece(8 * MIB + round * 64 * KIB, 0, 64 * KIB)]));
      }
      for (const job of jobs) expect(await job).toEqual({ ok: true });
      for (let round = 0; round < 8; round++) {
        const at = 8 * MIB + round * 64 * KIB;
        expect(region.firstWrong(at, 64 * KIB, BigInt(round))).toBe(null);
      }
    });
  });

  test("ranges outside are refused before the driver is called", async () => {
    await withGpus({}, async ({ gpus, region, cuda: driver }) => {
      const memory = await opened(gpus.allocate(0, MIB));
      const outside = [
        piece(0, MIB - 1, 2),
        piece(region.bytes - 1, 0, 2),
        piece(-1, 0, 1),
        piece(0, -1, 1),
        piece(0, 0, -1),
        piece(0.5, 0, 1),
        piece(2 ** 53, 0, 1),
      ];
      for (const one of outside) {
        expect(await gpus.toGpu(memory, [one])).toMatchObject({ status: "out_of_range" });
        expect(await gpus.fromGpu(memory, [one])).toMatchObject({ status: "out_of_range" });
      }
      expect(await gpus.register(0, region.bytes + 4096)).toMatchObject({ status: "out_of_range" });
      expect(await gpus.register(1, 4096)).toMatchObject({ status: "bad_request" });
      expect(await gpus.allocate(1, MIB)).toMatchObject({ status: "out_of_range" });
      expect(await gpus.allocate(0, 0)).toMatchObject({ status: "bad_request" });
      const forged = { ...memory, id: memory.id + 1 };
      expect(await gpus.toGpu(forged, [piece(0, 0, 1)])).toMatchObject({ status: "stale_handle" });
      const larger = { ...memory, bytes: 8 * MIB };
      expect(await gpus.toGpu(larger, [piece(0, MIB, 1)])).toMatchObject({
        status: "out_of_range",
      });
      expect(driver.counters()["calls.cuMemcpyHtoDAsync_v2"] ?? 0).toBe(0);
    });
  });

  test("jobs and pieces in flight are bounded", async () => {
    await withGpus({ jobsMax: 4, piecesMax: 8, plan: "delay=1" }, async ({ gpus }) => {
      const memory = await opened(gpus.allocate(0, MIB));
      const pieces = scattered(3, KIB);
      const jobs = Array.from({ length: 6 }, () => gpus.toGpu(memory, pieces));
      const ends = await Promise.all(jobs);
      expect(ends.filter((end) => end.ok).length).toBe(2);
      expect(ends[2]).toEqual({ ok: false, status: "full", code: 0, leaked: false });
      expect(await gpus.toGpu(memory, scattered(9, KIB))).toMatchObject({ status: "full" });
      const many = await Promise.all(Array.from({ length: 9 }, () => gpus.allocate(0, KIB)));
      expect(many.filter((end) => end.ok).length).toBe(4);
      expect(await gpus.toGpu(memory, pieces)).toEqual({ ok: true });
    });
  });

  test("the region cannot close before the devices", async () => {
    await withGpus({}, async ({ region }) => {
      expect(() => region[Symbol.dispose]()).toThrow("busy");
    });
  });

  test("remaining memory is freed at close, after the copies in flight", async () => {
    await withGpus({ plan: "devices=2;delay=20" }, async ({ gpus, region }) => {
      const memory = await opened(gpus.allocate(0, MIB));
      await opened(gpus.allocate(1, MIB, { exportable: true }));
      region.fill(0, MIB, 1n);
      const copied = gpus.toGpu(memory, [piece(0, 0, MIB)]);
      const freed = gpus.free(memory);
      await gpus[Symbol.asyncDispose]();
      expect(await copied).toEqual({ ok: true });
      expect(await freed).toEqual({ ok: true });
      expect(await gpus.toGpu(memory, [])).toMatchObject({ status: "closed" });
      expect(gpus.devices().length).toBe(2);
    });
  });

  describe("registration", () => {
    test("grows with the arena, and a copy across two registrations is split", async () => {
      await withGpus({ isRegistered: false }, async (bed) => {
        const { gpus } = bed;
        expect(await gpus.register(0, 4 * MIB)).toEqual({ ok: true });
        expect(await gpus.register(4 * MIB, 4 * MIB)).toEqual({ ok: true });
        expect(await gpus.register(0, 16 * MIB)).toEqual({ ok: true });
        expect(bed.cuda.counters()["open.registrations"]).toBe(3);
        const memory = await opened(gpus.allocate(0, 8 * MIB));
        await goesAround(bed, memory, 8 * MIB, 8n);
        expect(gpus.devices()[0]!.pageableCopies).toBe(0);
        expect(bed.cuda.counters().pageable ?? 0).toBe(0);
      });
    });

    test("copies without it work and are counted", async () => {
      await withGpus({ isRegistered: false }, async (bed) => {
        expect(await bed.gpus.register(0, 4096)).toEqual({ ok: true });
        const memory = await opened(bed.gpus.allocate(0, MIB));
        await goesAround(bed, memory, MIB, 8n);
        expect(bed.gpus.devices()[0]!.pageableCopies).toBe(2);
      });
    });

    test("memory that the driver already knows counts as registered", async () => {
      await withGpus({}, async ({ region, cuda: driver }) => {
        const other = openGpus(loadNative(), {
          region,
          library: driver.path,
          jobsMax: 4,
          piecesMax: 4,
          onLost: () => {},
        });
        expect(await other.register(0, region.bytes)).toEqual({ ok: true });
        await other[Symbol.asyncDispose]();
        expect(driver.counters()["open.registrations"]).toBe(1);
      });
    });
  });

  describe("are missing", () => {
    test("without a library", async () => {
      await using gpus = openWith("/nonexistent/libcuda.so.1");
      expect(gpus.info).toMatchObject({ state: "no_library", code: 0, hasBatches: false });
      expect(gpus.devices()).toEqual([]);
      expect(await gpus.register(0, 0)).toMatchObject({ ok: false, status: "unsupported" });
      expect(await gpus.allocate(0, 1)).toMatchObject({ ok: false, status: "unsupported" });
    });

    test.each([
      ["devices=0", "no_device", NO_DEVICE],
      ["init=100", "no_device", NO_DEVICE],
      ["init=802", "not_ready", 802],
      ["init=999", "failed", 999],
      ["cuDeviceGetCount=3", "failed", 3],
      ["cuDeviceGetName=1", "failed", INVALID_VALUE],
      ["devices=2;cuDevicePrimaryCtxRetain=46", "failed", 46],
      ["cuStreamCreate=2@2", "failed", 2],
      ["cuEventCreate=2@40", "failed", 2],
    ] as const)("with %s", async (plan, state, code) => {
      cuda.configure(plan);
      await using gpus = openWith(cuda.path);
      expect(gpus.info).toMatchObject({ state, code });
      expect(await gpus.allocate(0, 1)).toMatchObject({ ok: false, status: "unsupported", code });
      expect(cuda.counters()["open.contexts"] ?? 0).toBe(0);
      expect(cuda.counters()["open.streams"] ?? 0).toBe(0);
      expect(cuda.counters()["open.events"] ?? 0).toBe(0);
    });

    test("with a driver that lacks a required call", async () => {
      await withTempDir(async (folder) => {
        const path = join(folder, "libcuda.so.1");
        standInLacking("libcuda.so.1", ["cuEventQuery"], path);
        await using gpus = openWith(path);
        expect(gpus.info.state).toBe("too_old");
      });
    });
  });
});
