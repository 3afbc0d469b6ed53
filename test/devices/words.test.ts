import { describe, expect, test } from "bun:test";
import { cudaError, cudaVersion, gpuFinding, rdmaFinding } from "../../src/devices/index.ts";
import type { GpuDevice, GpuState, RdmaState } from "../../src/native/index.ts";

const GPU: GpuDevice = {
  ...{ index: 0, uuid: new Uint8Array(16), name: "NVIDIA H100", pci: "0000:3b:00.0" },
  ...{ memoryBytes: 80 * 2 ** 30, numaNode: 0, capability: 90, hasDmaBuf: true },
  ...{ lost: null, pageableCopies: 0 },
};

const GPU_STATES = ["no_library", "no_device", "not_ready", "too_old", "failed"] as const;
const RDMA_STATES = [
  ...["no_library", "no_device", "memlock", "not_permitted", "too_old", "failed"],
] as RdmaState[];

const gpus = (state: GpuState, code = 0) =>
  gpuFinding({ state, code, driverVersion: 12_080, hasBatches: true }, []);

describe("words", () => {
  test("every state that is not ready is one line, with one thing to do", () => {
    const findings = [
      ...GPU_STATES.map((state) => gpus(state, 999)),
      ...RDMA_STATES.map((state) => rdmaFinding({ state, errno: 5 }, [])),
    ];
    for (const { kind, text, fix } of findings) {
      expect(kind).not.toBe("usable");
      expect(text).toMatch(/^[^\n]{20,100}$/);
      expect(fix).toMatch(/^[^\n]{15,110}$/);
    }
    expect(new Set(findings.map(({ text }) => text)).size).toBe(findings.length);
  });

  test("a library that the configuration names and that is none is not nothing", () => {
    const info = { state: "no_library", code: 0, driverVersion: 0, hasBatches: false } as const;
    const nowhere = [
      gpuFinding(info, [], "/nowhere/a.so"),
      rdmaFinding({ state: "no_library", errno: 0 }, [], "/nowhere/b.so"),
    ];
    expect(nowhere.map(({ kind }) => kind)).toEqual(["broken", "broken"]);
    expect(nowhere[0]?.text).toBe("gpu.library /nowhere/a.so cannot be opened");
    expect(nowhere[1]?.fix).toContain("rdma.library");
  });

  test("a driver that is not ready is told what it lacks", () => {
    expect(gpus("not_ready", 802).fix).toContain("fabricmanager");
    expect(gpus("failed", 803).fix).toContain("the driver was updated");
    expect(gpus("failed", 46).fix).toContain("another process");
    expect(gpus("failed", 999).fix).toContain("dmesg");
    expect(gpus("not_ready", 802).text).toContain("CUDA error 802 (system not ready)");
  });

  test("GPUs of one kind are counted together", () => {
    const info = { state: "ready", code: 0, driverVersion: 12_080, hasBatches: true } as const;
    const small = { ...GPU, name: "NVIDIA L4", memoryBytes: 24 * 2 ** 30 };
    expect(gpuFinding(info, [GPU]).text).toBe("1 GPU (CUDA 12.8): NVIDIA H100 with 80GiB");
    expect(gpuFinding(info, [GPU, small, GPU]).text).toBe(
      "3 GPUs (CUDA 12.8): 2 x NVIDIA H100 with 80GiB, NVIDIA L4 with 24GiB",
    );
  });

  test("codes have their names, versions their point", () => {
    expect(cudaError(700)).toBe("CUDA error 700 (illegal address)");
    expect(cudaError(12_345)).toBe("CUDA error 12345");
    expect([11_040, 12_080, 13_000].map(cudaVersion)).toEqual(["11.4", "12.8", "13.0"]);
  });
});
