import { formatBytes } from "../core/index.ts";
import type { GpuDevice, GpusInfo } from "../native/index.ts";
import { counted, type Finding, wrongPath } from "./finding.ts";

/** CUresults that operators meet, as cuda.h names them. */
const RESULTS: Readonly<Record<number, string>> = {
  1: "invalid value",
  2: "out of memory",
  3: "not initialized",
  34: "stub library",
  46: "device unavailable",
  100: "no device",
  101: "invalid device",
  201: "invalid context",
  214: "uncorrectable ECC error",
  220: "no NVLink peer",
  304: "operating system call failed",
  700: "illegal address",
  702: "launch timeout",
  710: "assert",
  709: "context destroyed",
  712: "memory already registered",
  714: "hardware stack error",
  715: "illegal instruction",
  716: "misaligned address",
  717: "invalid address space",
  718: "invalid program counter",
  719: "launch failed",
  800: "not permitted",
  801: "not supported",
  802: "system not ready",
  803: "driver and library do not match",
  804: "compatibility not supported on this device",
  909: "no answer in time",
  999: "unknown error",
};

/** `CUDA error 802 (system not ready)`. */
export function cudaError(code: number): string {
  const words = RESULTS[code];
  return words === undefined ? `CUDA error ${code}` : `CUDA error ${code} (${words})`;
}

/** 12080 → `12.8`. */
export function cudaVersion(version: number): string {
  return `${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`;
}

/** A name that people know it by: `NVIDIA H100 at 0000:3b:00.0`. */
export function gpuName({ name, pci }: Pick<GpuDevice, "name" | "pci">): string {
  return `${name} at ${pci}`;
}

type Named = Pick<GpuDevice, "name" | "memoryBytes">;

/** What opening the driver came to; `library` is the path that was asked for, if one was. */
export function gpuFinding(
  info: GpusInfo,
  devices: readonly Named[],
  library: string | null = null,
): Finding {
  switch (info.state) {
    case "ready":
      return { kind: "usable", text: readyText(info, devices), fix: null };
    case "no_library":
      if (library !== null) return wrongPath("gpu.library", library);
      return {
        kind: "absent",
        text: "no libcuda.so.1: no NVIDIA driver is installed",
        fix: "with a GPU, install its driver's user library, or name it in gpu.library",
      };
    case "no_device":
      return {
        kind: "absent",
        text: "libcuda.so.1 is there, and the driver shows no GPU",
        fix: "with a GPU, see nvidia-smi, and hand it to the container (--gpus all)",
      };
    case "not_ready":
      return {
        kind: "broken",
        text: `the GPU's driver is not ready: ${cudaError(info.code)}`,
        fix: driverFix(info.code),
      };
    case "too_old":
      return {
        kind: "broken",
        text: `the driver's library lacks calls that are needed${versionText(info)}`,
        fix: "update the NVIDIA driver to one for CUDA 11.0 or later",
      };
    case "failed":
      return {
        kind: "broken",
        text: `the GPU's driver cannot be opened: ${cudaError(info.code)}`,
        fix: driverFix(info.code),
      };
    default:
      return info.state satisfies never;
  }
}

/** What to do about codes that say it. */
const FIXES: Readonly<Record<number, string>> = {
  2: "free memory on the GPU: each process that opens it has a context there",
  46: "another process has the GPU to itself: nvidia-smi -c DEFAULT, and see who it is",
  802: "start nvidia-fabricmanager where GPUs hang on NVSwitch",
  803: "restart the host, or reload the kernel module: the driver was updated under it",
  804: "install the driver that belongs to this library, or drop the compatibility package",
};

function driverFix(code: number): string {
  return (
    FIXES[code] ?? "see nvidia-smi and dmesg (Xid), and whether the unit may open /dev/nvidia*"
  );
}

function versionText({ driverVersion }: GpusInfo): string {
  return driverVersion === 0 ? "" : ` (CUDA ${cudaVersion(driverVersion)})`;
}

function readyText(info: GpusInfo, devices: readonly Named[]): string {
  const kinds = new Map<string, number>();
  for (const { name, memoryBytes } of devices) {
    const kind = `${name} with ${formatBytes(memoryBytes)}`;
    kinds.set(kind, (kinds.get(kind) ?? 0) + 1);
  }
  const which = [...kinds].map(([kind, count]) => (count === 1 ? kind : `${count} x ${kind}`));
  return `${counted(devices.length, "GPU")}${versionText(info)}: ${which.join(", ")}`;
}
