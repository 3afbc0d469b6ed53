import { formatBytes } from "../core/index.ts";
import type { GpuDevice, GpuFault, Gpus, GpusInfo, GpusOptions, Region } from "../native/index.ts";
import type { Health } from "../observability/index.ts";
import { ArenaRegistrar } from "./arena-registrar.ts";
import { absent, broken, counted, type Finding, usable, wrongPath } from "./probe.ts";

export interface HostGpusOptions {
  readonly region: Region;
  /** Path of the CUDA library. Null: the dynamic linker's default. */
  readonly library: string | null;
  readonly health: Pick<Health, "raise">;
  open(options: GpusOptions): Gpus;
}

/** State of one GPU, as shown to operators. */
export interface GpuReport {
  readonly name: string;
  readonly pci: string;
  /** UUID as shown by nvidia-smi, without the prefix `GPU-`. */
  readonly uuid: string;
  readonly memoryBytes: number;
  /** NUMA node of the GPU. Null if unknown. */
  readonly numaNode: number | null;
  readonly hasDmaBuf: boolean;
  /** Name of the CUDA error with which the GPU was lost. Null if it works. */
  readonly lost: string | null;
  readonly pageableCopies: number;
}

export interface HostGpusReport {
  readonly finding: Finding;
  /** CUDA version of the driver: 12080 means 12.8. 0 if unknown. */
  readonly driverVersion: number;
  readonly hasBatches: boolean;
  readonly gpus: readonly GpuReport[];
  /** Bytes of the arena, from its start, that are registered with the driver. */
  readonly registeredBytes: number;
}

/**
 * Maximum number of concurrent copy jobs of all engines; further jobs fail with `full`. An engine
 * copies many layers at once, and a layer whose memory is mapped in pieces takes dozens of jobs.
 */
const JOBS_MAX = 16_384;
const PIECES_MAX = 2 ** 18;

/** The GPUs of this host. Opens the driver once, then reports lost GPUs to `health`. */
export class HostGpus implements AsyncDisposable {
  readonly finding: Finding;
  readonly #gpus: Gpus;
  readonly #health: Pick<Health, "raise">;
  readonly #registrar: ArenaRegistrar | null;

  constructor({ region, library, health, open }: HostGpusOptions) {
    this.#health = health;
    this.#gpus = open({
      region,
      library,
      jobsMax: JOBS_MAX,
      piecesMax: PIECES_MAX,
      onLost: (device) => this.#reportLost(device),
    });
    this.finding = gpuFinding(this.#gpus.info, this.#gpus.devices(), library);
    if (this.finding.kind === "broken") health.raise("GPU_DRIVER", textOf(this.finding));
    this.#reportLost(null);
    this.#registrar =
      this.usable !== null
        ? new ArenaRegistrar({
            gpus: this.#gpus,
            arenaBytes: region.bytes,
            onFault: (fault) => this.#unregistered(fault),
          })
        : null;
  }

  /** Returns the GPUs. Null if none can be used. */
  get usable(): Gpus | null {
    return this.finding.kind === "usable" ? this.#gpus : null;
  }

  /**
   * Reports that the first `bytes` bytes of the region are backed by memory and can be registered.
   */
  ready(bytes: number): void {
    this.#registrar?.ready(bytes);
  }

  report(): HostGpusReport {
    const { driverVersion, hasBatches } = this.#gpus.info;
    return {
      finding: this.finding,
      driverVersion,
      hasBatches,
      gpus: this.#gpus.devices().map(reportOf),
      registeredBytes: this.#registrar?.registeredBytes ?? 0,
    };
  }

  /**
   * Closes the GPUs. Resolves when no GPU accesses the region any more, except lost GPUs that could
   * not be stopped.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#registrar?.stop();
    await this.#gpus[Symbol.asyncDispose]();
  }

  /**
   * Reports all lost GPUs to `health`, including those that failed when the driver was opened.
   * `latest`: the GPU whose loss was just reported, or null.
   */
  #reportLost(latest: GpuDevice | null): void {
    const known = this.#gpus.devices();
    const lost = known.filter((one) => one.lost !== null || one.index === latest?.index);
    if (lost.length === 0) return;
    const messages = lost.map((one) => {
      const code = one.lost ?? latest?.lost ?? null;
      return `${gpuName(one)}: ${code === null ? "no code" : cudaError(code)}`;
    });
    this.#health.raise("GPU_LOST", messages.join("; "));
  }

  #unregistered({ status, code }: GpuFault): void {
    if (status === "lost" || status === "closed") return;
    const why = code === 0 ? status.replaceAll("_", " ") : cudaError(code);
    this.#health.raise("GPU_UNREGISTERED", `the driver refused: ${why}`);
  }
}

/** Returns a message with its fix appended, for `health` entries, which have no field for a fix. */
function textOf({ text, fix }: Finding): string {
  return fix === null ? text : `${text}: ${fix}`;
}

function reportOf(device: GpuDevice): GpuReport {
  const { name, pci, uuid, memoryBytes, numaNode, hasDmaBuf, lost, pageableCopies } = device;
  return {
    name,
    pci,
    memoryBytes,
    numaNode,
    hasDmaBuf,
    pageableCopies,
    uuid: uuidText(uuid),
    lost: lost === null ? null : cudaError(lost),
  };
}

function uuidText(uuid: Uint8Array): string {
  const hex = uuid.toHex();
  const parts = [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20)];
  return [...parts, hex.slice(20)].join("-");
}

/** Names (as in cuda.h) of the CUresult codes that operators encounter. */
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

/** Formats a CUresult code: `CUDA error 802 (system not ready)`. */
export function cudaError(code: number): string {
  const name = RESULTS[code];
  return name === undefined ? `CUDA error ${code}` : `CUDA error ${code} (${name})`;
}

/** Formats a CUDA version number: 12080 → `12.8`. */
export function cudaVersion(version: number): string {
  return `${Math.floor(version / 1000)}.${Math.floor((version % 1000) / 10)}`;
}

/** Formats a GPU's name and PCI address: `NVIDIA H100 at 0000:3b:00.0`. */
export function gpuName({ name, pci }: Pick<GpuDevice, "name" | "pci">): string {
  return `${name} at ${pci}`;
}

type Named = Pick<GpuDevice, "name" | "memoryBytes">;

/**
 * Converts the result of opening the driver to a message for operators. `library`: the configured
 * path, or null.
 */
export function gpuFinding(
  info: GpusInfo,
  devices: readonly Named[],
  library: string | null = null,
): Finding {
  switch (info.state) {
    case "ready":
      return usable(readyText(info, devices));
    case "no_library":
      if (library !== null) return wrongPath("gpu.library", library);
      return absent(
        "libcuda.so.1 not found: no NVIDIA driver installed",
        "if the host has a GPU, install its driver's user library or set gpu.library",
      );
    case "no_device":
      return absent(
        "libcuda.so.1 is installed, but the driver lists no GPU",
        "if the host has a GPU, check nvidia-smi and pass it in (--gpus all)",
      );
    case "not_ready":
      return broken(`the GPU's driver is not ready: ${cudaError(info.code)}`, driverFix(info.code));
    case "too_old":
      return broken(
        `the driver's library lacks required functions${versionText(info)}`,
        "update the NVIDIA driver to one for CUDA 11.0 or later",
      );
    case "failed":
      return broken(
        `the GPU's driver cannot be opened: ${cudaError(info.code)}`,
        driverFix(info.code),
      );
    default:
      return info.state satisfies never;
  }
}

/** Suggested fix for each CUDA error, by CUresult code. */
const FIXES: Readonly<Record<number, string>> = {
  2: "free memory on the GPU: each process that opens it has a context there",
  46: "another process uses the GPU exclusively: stop it, or set nvidia-smi -c DEFAULT",
  802: "start nvidia-fabricmanager if the GPUs use NVSwitch",
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
