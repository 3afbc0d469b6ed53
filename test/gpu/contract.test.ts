/**
 * What the port of GPUs promises, as far as a device that works can show it: on the stand-in, and
 * on a real driver where HEARTH_TEST_CUDA names its library (`./dev test:gpu`). Faults have the
 * stand-in to themselves: test/native/gpus-faults.test.ts.
 */
import { expect, test } from "bun:test";
import { join } from "node:path";
import {
  type GpuMemory,
  type GpuOpened,
  type Gpus,
  loadNative,
  openGpus,
  Region,
} from "../../src/native/index.ts";
import { describeNative, waitFor } from "../support/index.ts";
import { standIn } from "../support/stand-ins.ts";
import { ANSWER_SEED, LENT_BYTES, LENT_SEED, type Lent } from "./lender.ts";

const KIB = 2 ** 10;
const MIB = 2 ** 20;
const GIB = 2 ** 30;
const REGION_BYTES = 64 * MIB;
const HALF = REGION_BYTES / 2;
const OK = { ok: true } as const;

const named = process.env.HEARTH_TEST_CUDA;
const isReal = named !== undefined;

function library(): string {
  return named ?? standIn("libcuda.so.1").path;
}

interface Bed {
  readonly gpus: Gpus;
  readonly region: Region;
}

/** The first device over an arena of which nothing is registered yet. */
async function withGpus(use: (bed: Bed) => Promise<void>): Promise<void> {
  const native = loadNative();
  if (!isReal) standIn("libcuda.so.1").configure("");
  using region = Region.create(native, {
    bytes: REGION_BYTES,
    hugePages: "try",
    lockMemory: "off",
  });
  await using gpus = openGpus(native, {
    ...{ region, library: library(), jobsMax: 256, piecesMax: 65_536 },
    onLost: ({ lost }) => {
      throw new Error(`the device is lost: ${lost}`);
    },
  });
  expect(gpus.info.state).toBe("ready");
  await use({ gpus, region });
}

async function opened(opening: Promise<GpuOpened>): Promise<GpuMemory> {
  const result = await opening;
  if (!result.ok) throw new Error(`not opened: ${result.status} ${result.code}`);
  return result.memory;
}

function whole(bytes: number, regionOffset = 0) {
  return [{ regionOffset, memoryOffset: 0, bytes }];
}

/** Pieces that are no neighbours on both sides. */
function scattered(count: number, bytes: number, regionOffset: number) {
  return Array.from({ length: count }, (_, index) => ({
    regionOffset: regionOffset + index * bytes,
    memoryOffset: (count - 1 - index) * bytes,
    bytes,
  }));
}

/** Memory of a process of its own, which ends with this. */
async function lender() {
  const native = loadNative();
  const [ours, theirs] = native.socketPair();
  const child = Bun.spawn([process.execPath, join(import.meta.dir, "lender.ts"), library()], {
    stdio: ["pipe", "pipe", "inherit", theirs],
  });
  native.closeFd(theirs);
  const reader = child.stdout.getReader();
  const line = async () => JSON.parse(new TextDecoder().decode((await reader.read()).value));
  const lent: Lent = await line();
  let fd: number | null = null;
  if (lent.hasDescriptor) {
    await waitFor(() => {
      const received = native.receiveFd(ours, new Uint8Array(1));
      if (typeof received === "object") fd = received.fd;
      return fd !== null;
    });
  }
  native.closeFd(ours);
  return {
    handle: Uint8Array.fromHex(lent.handle),
    fd: fd as number | null,
    look(): Promise<(number | null)[]> {
      child.stdin.write("look\n");
      child.stdin.flush();
      return line();
    },
    async [Symbol.asyncDispose]() {
      child.kill("SIGKILL");
      await child.exited;
    },
  };
}

describeNative(`a GPU, by ${named ?? "the stand-in"}`, () => {
  test("says what it is", async () => {
    await withGpus(async ({ gpus }) => {
      const [device] = gpus.devices();
      expect(device!.name.length).toBeGreaterThan(3);
      expect(device!.pci).toMatch(/^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0$/);
      expect(device!.uuid.some((byte) => byte !== 0)).toBe(true);
      expect(device!.memoryBytes).toBeGreaterThanOrEqual(GIB);
      expect(device!.capability).toBeGreaterThan(0);
      expect(device).toMatchObject({ index: 0, lost: null, pageableCopies: 0 });
      expect(gpus.info.driverVersion).toBeGreaterThan(11_000);
    });
  });

  test.each([1, 4096, 64 * KIB, 2 * MIB, 16 * MIB])(
    "%d bytes and more go there and come back",
    async (bytes) => {
      await withGpus(async ({ gpus, region }) => {
        expect(await gpus.register(0, REGION_BYTES)).toEqual(OK);
        const count = Math.min(512, HALF / bytes);
        const memory = await opened(gpus.allocate(0, count * bytes));
        region.fill(0, count * bytes, 3n);
        region.fill(HALF, count * bytes, 4n);
        expect(await gpus.toGpu(memory, scattered(count, bytes, 0))).toEqual(OK);
        expect(await gpus.fromGpu(memory, scattered(count, bytes, HALF))).toEqual(OK);
        expect(region.firstWrong(HALF, count * bytes, 3n)).toBeNull();
        expect(gpus.devices()[0]!.pageableCopies).toBe(0);
        expect(await gpus.free(memory)).toEqual(OK);
      });
    },
  );

  test("memory that is not registered is copied all the same, and counted", async () => {
    await withGpus(async ({ gpus, region }) => {
      const memory = await opened(gpus.allocate(0, MIB));
      region.fill(0, MIB, 5n);
      expect(await gpus.toGpu(memory, whole(MIB))).toEqual(OK);
      expect(await gpus.fromGpu(memory, whole(MIB, HALF))).toEqual(OK);
      expect(region.firstWrong(HALF, MIB, 5n)).toBeNull();
      expect(gpus.devices()[0]!.pageableCopies).toBeGreaterThan(0);
      // In slices, and across their border.
      expect(await gpus.register(0, MIB)).toEqual(OK);
      expect(await gpus.register(MIB, REGION_BYTES - MIB)).toEqual(OK);
      region.fill(MIB / 2, MIB, 6n);
      expect(await gpus.toGpu(memory, whole(MIB, MIB / 2))).toEqual(OK);
      expect(await gpus.fromGpu(memory, whole(MIB, HALF))).toEqual(OK);
      expect(region.firstWrong(HALF, MIB, 6n)).toBeNull();
    });
  });

  test("jobs on one memory run in order, however many there are", async () => {
    await withGpus(async ({ gpus, region }) => {
      expect(await gpus.register(0, REGION_BYTES)).toEqual(OK);
      const memory = await opened(gpus.allocate(0, MIB));
      const jobs = Array.from({ length: 16 }, (_, turn) => {
        region.fill(turn * MIB, MIB, BigInt(turn));
        return [
          gpus.toGpu(memory, whole(MIB, turn * MIB)),
          gpus.fromGpu(memory, whole(MIB, HALF + turn * MIB)),
        ];
      });
      for (const outcome of await Promise.all(jobs.flat())) expect(outcome).toEqual(OK);
      for (let turn = 0; turn < 16; turn++) {
        expect(region.firstWrong(HALF + turn * MIB, MIB, BigInt(turn))).toBeNull();
      }
    });
  });

  test("what is wrong is refused, and nothing of it is lost", async () => {
    await withGpus(async ({ gpus, region }) => {
      const memory = await opened(gpus.allocate(0, MIB));
      const range = { ok: false, status: "out_of_range" };
      expect(await gpus.toGpu(memory, whole(MIB + 1))).toMatchObject(range);
      expect(await gpus.toGpu(memory, whole(MIB, REGION_BYTES - 1))).toMatchObject(range);
      const { memoryBytes } = gpus.devices()[0]!;
      const tooMuch = await gpus.allocate(0, memoryBytes + GIB);
      expect(tooMuch.ok).toBe(false);
      region.fill(0, MIB, 7n);
      expect(await gpus.toGpu(memory, whole(MIB))).toEqual(OK);
      expect(await gpus.free(memory)).toEqual(OK);
      const stale = { ok: false, status: "stale_handle" };
      expect(await gpus.toGpu(memory, whole(MIB))).toMatchObject(stale);
      expect(gpus.devices()[0]!.lost).toBeNull();
    });
  });

  test("memory of another process is read and written", async () => {
    await withGpus(async ({ gpus, region }) => {
      expect(await gpus.register(0, REGION_BYTES)).toEqual(OK);
      await using other = await lender();
      const memories = [await opened(gpus.importIpc(0, other.handle, LENT_BYTES))];
      if (other.fd !== null) memories.push(await opened(gpus.importFd(0, other.fd, LENT_BYTES)));
      for (const memory of memories) {
        region.fill(0, LENT_BYTES, 0n);
        expect(await gpus.fromGpu(memory, whole(LENT_BYTES))).toEqual(OK);
        expect(region.firstWrong(0, LENT_BYTES, LENT_SEED)).toBeNull();
        region.fill(0, LENT_BYTES, ANSWER_SEED);
        expect(await gpus.toGpu(memory, whole(LENT_BYTES))).toEqual(OK);
      }
      expect(await other.look()).toEqual(memories.map(() => null));
      for (const memory of memories) expect(await gpus.free(memory)).toEqual(OK);
    });
  });

  test("memory that can be exported is a dma-buf where the device says so", async () => {
    await withGpus(async ({ gpus }) => {
      const memory = await opened(gpus.allocate(0, 2 * MIB));
      const exported = await gpus.exportDmaBuf(memory, 0, 2 * MIB);
      expect(exported.ok).toBe(gpus.devices()[0]!.hasDmaBuf);
      if (exported.ok) loadNative().closeFd(exported.fd);
    });
  });
});
