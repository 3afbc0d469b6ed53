import { expect } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import {
  type GpuDevice,
  type GpuMemory,
  type GpuOpened,
  type GpuPiece,
  type Gpus,
  type GpusOptions,
  loadNative,
  openGpus,
  Region,
} from "../../src/native/index.ts";
import { type StandIn, standIn } from "../support/stand-ins.ts";
import { waitFor } from "../support/wait.ts";

export const MIB = 2 ** 20;
export const KIB = 2 ** 10;

export interface Bed {
  readonly gpus: Gpus;
  readonly region: Region;
  readonly lost: GpuDevice[];
  readonly cuda: StandIn;
}

export interface BedOptions extends Partial<Omit<GpusOptions, "library">> {
  /** A stand-in other than the shared one. */
  readonly library?: StandIn;
  readonly plan?: string;
  readonly bytes?: number;
  /** Whether the whole region is registered before the test begins. */
  readonly isRegistered?: boolean;
  /** The test leaves a device that cannot be stopped, so the region stays open. */
  readonly leaks?: boolean;
}

/** GPUs of the stand-in over a region. After `use`, no driver object may be open. */
export async function withGpus(options: BedOptions, use: (bed: Bed) => Promise<void>) {
  const {
    plan = "",
    bytes = 16 * MIB,
    isRegistered = true,
    leaks = false,
    library,
    ...rest
  } = options;
  const cuda = library ?? standIn("libcuda.so.1");
  cuda.configure(plan);
  const native = loadNative();
  const region = Region.create(native, { bytes, hugePages: "off", lockMemory: "off" });
  const lost: GpuDevice[] = [];
  const gpus = openGpus(native, {
    region,
    library: cuda.path,
    jobsMax: 256,
    piecesMax: 65_536,
    onLost: (device) => lost.push(device),
    ...rest,
  });
  try {
    if (isRegistered && gpus.info.state === "ready") {
      expect(await gpus.register(0, bytes)).toEqual({ ok: true });
    }
    await use({ gpus, region, lost, cuda });
    await gpus[Symbol.asyncDispose]();
    if (leaks) expect(() => region[Symbol.dispose]()).toThrow("busy");
    else {
      expectNothingOpen(cuda.counters());
      region[Symbol.dispose]();
    }
  } finally {
    cuda.configure("+release");
    await gpus[Symbol.asyncDispose]();
    await gpuThreadsEnd();
    cuda.configure("");
  }
}

/** A thread left in a hung call ends when the call returns. */
export async function gpuThreadsEnd() {
  await waitFor(() => !threadNames().some((name) => name.startsWith("hearth-gpu")));
}

/** Names of the threads of this process. */
function threadNames(): string[] {
  const names: string[] = [];
  for (const id of readdirSync("/proc/self/task")) {
    try {
      names.push(readFileSync(`/proc/self/task/${id}/comm`, "utf8"));
    } catch (thrown) {
      // The thread has ended since.
      if (!(thrown instanceof Error)) throw thrown;
    }
  }
  return names;
}

export function expectNothingOpen(counters: Readonly<Record<string, number>>) {
  const left = Object.entries(counters).filter(
    ([name, count]) => (name.startsWith("open.") || name.startsWith("misuse.")) && count !== 0,
  );
  expect(left).toEqual([]);
}

/** The memory opened by a job. */
export async function opened(opening: Promise<GpuOpened>): Promise<GpuMemory> {
  const result = await opening;
  if (!result.ok) throw new Error(`not opened: ${result.status} ${result.code}`);
  return result.memory;
}

export function piece(regionOffset: number, memoryOffset: number, bytes: number): GpuPiece {
  return { regionOffset, memoryOffset, bytes };
}

/** `count` pieces of `bytes` bytes, far apart on both sides and in reverse order on the device. */
export function scattered(count: number, bytes: number, regionStart = 0): GpuPiece[] {
  return Array.from({ length: count }, (_, index) =>
    piece(regionStart + index * bytes * 2, (count - 1 - index) * bytes, bytes),
  );
}

/** Whether content survives a copy to the device and back to another place of the region. */
export async function goesAround(bed: Bed, memory: GpuMemory, bytes: number, seed: bigint) {
  const { gpus, region } = bed;
  const half = region.bytes / 2;
  region.fill(0, bytes, seed);
  region.fill(half, bytes, seed + 1n);
  expect(await gpus.toGpu(memory, [piece(0, 0, bytes)])).toEqual({ ok: true });
  expect(await gpus.fromGpu(memory, [piece(half, 0, bytes)])).toEqual({ ok: true });
  expect(region.firstWrong(half, bytes, seed)).toBe(null);
}
