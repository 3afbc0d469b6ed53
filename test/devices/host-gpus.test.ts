import { afterEach, expect, test } from "bun:test";
import { HostGpus } from "../../src/devices/index.ts";
import { loadNative, openGpus, Region } from "../../src/native/index.ts";
import { describeNative, waitFor } from "../support/index.ts";
import { standIn } from "../support/stand-ins.ts";
import { watchedHealth } from "./watched-health.ts";

const BYTES = 4 * 2 ** 20;

describeNative("the GPUs of a host", () => {
  const cuda = standIn("libcuda.so.1");
  const native = loadNative();
  afterEach(() => cuda.configure(""));

  /** What is open of contexts, streams, registrations and the like. */
  function left(): string[] {
    const counters = Object.entries(cuda.counters());
    return counters.filter(([key, count]) => key.startsWith("open.") && count > 0).map(String);
  }

  function open(plan: string) {
    cuda.configure(plan);
    const watched = watchedHealth();
    const wish = { bytes: BYTES, hugePages: "off", lockMemory: "off" } as const;
    const region = Region.create(native, wish);
    const host = new HostGpus({
      ...{ region, library: cuda.path, health: watched.health },
      open: (options) => openGpus(native, options),
    });
    const end = async () => {
      await host[Symbol.asyncDispose]();
      region[Symbol.dispose]();
      expect(left()).toEqual([]);
    };
    return { ...watched, host, region, [Symbol.asyncDispose]: end };
  }

  test("are reported with what they are, and RAM is registered as it is backed", async () => {
    await using opened = open("devices=2;memory=64m;numa=0,1;dma-buf=off");
    const { host, lines } = opened;
    host.ready(BYTES);
    await waitFor(() => host.report().registeredBytes === BYTES);
    const { finding, driverVersion, hasBatches, gpus } = host.report();
    expect(finding.text).toBe(
      "2 GPUs (CUDA 12.8): Stand-in GPU 0 with 64MiB, Stand-in GPU 1 with 64MiB",
    );
    expect([driverVersion, hasBatches, gpus.length]).toEqual([12_080, true, 2]);
    expect(gpus[1]).toMatchObject({ numaNode: 1, hasDmaBuf: false, lost: null, pageableCopies: 0 });
    expect(gpus[0]!.uuid).toMatch(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/);
    expect(lines).toEqual([]);
    expect(left()).not.toEqual([]);
  });

  test("a driver that refuses RAM is told once, and copies go on", async () => {
    await using opened = open("cuMemHostRegister_v2=2");
    const { host, details, lines } = opened;
    host.ready(BYTES);
    await waitFor(() => details("GPU_UNREGISTERED") !== null);
    expect(details("GPU_UNREGISTERED")).toBe("the driver refused: CUDA error 2 (out of memory)");
    const gpus = host.usable!;
    const made = await gpus.allocate(0, 65_536);
    if (!made.ok) throw new Error("no memory");
    const piece = { regionOffset: 0, memoryOffset: 0, bytes: 65_536 };
    expect(await gpus.toGpu(made.memory, [piece])).toEqual({ ok: true });
    expect(host.report().gpus[0]!.pageableCopies).toBeGreaterThan(0);
    await gpus.free(made.memory);
    expect(lines.length).toBe(1);
  });

  test("one that is lost is an error with its name and code; the other goes on", async () => {
    await using opened = open("devices=2;cuMemcpyHtoDAsync_v2=700;cuMemcpyBatchAsync=700");
    const { host, details, lines } = opened;
    const gpus = host.usable!;
    const [bad, good] = [await gpus.allocate(0, 4096), await gpus.allocate(1, 4096)];
    if (!bad.ok || !good.ok) throw new Error("no memory");
    const piece = { regionOffset: 0, memoryOffset: 0, bytes: 4096 };
    expect(await gpus.toGpu(bad.memory, [piece])).toMatchObject({ ok: false, status: "lost" });
    await waitFor(() => details("GPU_LOST") !== null);
    const { pci, lost } = host.report().gpus[0]!;
    expect(details("GPU_LOST")).toBe(`Stand-in GPU 0 at ${pci}: CUDA error 700 (illegal address)`);
    expect(lost).toBe("CUDA error 700 (illegal address)");
    expect(lines.map(({ level }) => level)).toEqual(["error"]);
    expect(await gpus.fromGpu(good.memory, [piece])).toEqual({ ok: true });
    await gpus.free(bad.memory);
    await gpus.free(good.memory);
  });

  test("one that cannot be opened beside another is an error from the start", async () => {
    await using opened = open("devices=2;cuDevicePrimaryCtxRetain=46@2");
    const { host, details } = opened;
    expect(host.finding.kind).toBe("usable");
    expect(details("GPU_LOST")).toEndWith(": CUDA error 46 (device unavailable)");
    expect(host.report().gpus.filter(({ lost }) => lost !== null).length).toBe(1);
  });

  test.each([
    ["init=100", "absent", null],
    ["devices=0", "absent", null],
    ["init=802", "broken", "fabricmanager"],
    ["init=999", "broken", "CUDA error 999"],
  ] as const)("%s: %s, and the region can go", async (plan, kind, says) => {
    await using opened = open(plan);
    const { host, details, lines } = opened;
    host.ready(BYTES);
    expect([host.finding.kind, host.usable, lines.length]).toEqual([kind, null, says ? 1 : 0]);
    if (says !== null) expect(details("GPU_DRIVER")).toContain(says);
  });
});
