import type { GpuDevice, GpuFault, Gpus, GpusOptions, Region } from "../native/index.ts";
import type { Health } from "../observability/index.ts";
import { ArenaRegistrar } from "./arena-registrar.ts";
import type { Finding } from "./finding.ts";
import { cudaError, gpuFinding, gpuName } from "./gpu-words.ts";

export interface HostGpusOptions {
  readonly region: Region;
  /** Null: as the dynamic linker finds it. */
  readonly library: string | null;
  /** Whether the region is registered with the driver as it grows. */
  readonly registers: boolean;
  readonly health: Pick<Health, "raise">;
  open(options: GpusOptions): Gpus;
}

/** One GPU as operators see it. */
export interface GpuReport {
  readonly name: string;
  readonly pci: string;
  /** As nvidia-smi has it, without its `GPU-`. */
  readonly uuid: string;
  readonly memoryBytes: number;
  /** Null: unknown. */
  readonly numaNode: number | null;
  readonly hasDmaBuf: boolean;
  /** Null, or with what it was lost. */
  readonly lost: string | null;
  readonly pageableCopies: number;
}

export interface HostGpusReport {
  readonly finding: Finding;
  /** 12080 is 12.8; 0: unknown. */
  readonly driverVersion: number;
  readonly hasBatches: boolean;
  readonly gpus: readonly GpuReport[];
  /** Of the arena, with the driver. */
  readonly registeredBytes: number;
}

/**
 * Jobs of all engines under way at a time; what is beyond is told `full`. A layer of a cache that
 * is mapped in pieces takes one for each of some dozens of memories, and engines ask for many.
 */
const JOBS_MAX = 16_384;
const PIECES_MAX = 2 ** 18;

/** The GPUs of this host: what opening them came to, and what becomes of them. */
export class HostGpus implements AsyncDisposable {
  readonly finding: Finding;
  readonly #gpus: Gpus;
  readonly #health: Pick<Health, "raise">;
  readonly #registrar: ArenaRegistrar | null;

  constructor({ region, library, registers, health, open }: HostGpusOptions) {
    this.#health = health;
    this.#gpus = open({
      region,
      library,
      jobsMax: JOBS_MAX,
      piecesMax: PIECES_MAX,
      onLost: (device) => this.#tellLost(device),
    });
    this.finding = gpuFinding(this.#gpus.info, this.#gpus.devices(), library);
    if (this.finding.kind === "broken") health.raise("GPU_DRIVER", textOf(this.finding));
    this.#tellLost(null);
    this.#registrar =
      registers && this.usable !== null
        ? new ArenaRegistrar({
            gpus: this.#gpus,
            arenaBytes: region.bytes,
            onFault: (fault) => this.#unregistered(fault),
          })
        : null;
  }

  /** Null where no GPU can be used. */
  get usable(): Gpus | null {
    return this.finding.kind === "usable" ? this.#gpus : null;
  }

  /** So many bytes from the region's start are backed by memory. */
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

  /** Nothing of them touches the region when it resolves, but what a lost device still may. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#registrar?.stop();
    await this.#gpus[Symbol.asyncDispose]();
  }

  /** Also of those that could not be opened beside others. */
  #tellLost(latest: GpuDevice | null): void {
    const known = this.#gpus.devices();
    const lost = known.filter((one) => one.lost !== null || one.index === latest?.index);
    if (lost.length === 0) return;
    const words = lost.map((one) => {
      const code = one.lost ?? latest?.lost ?? null;
      return `${gpuName(one)}: ${code === null ? "no code" : cudaError(code)}`;
    });
    this.#health.raise("GPU_LOST", words.join("; "));
  }

  #unregistered({ status, code }: GpuFault): void {
    if (status === "lost" || status === "closed") return;
    const why = code === 0 ? status.replaceAll("_", " ") : cudaError(code);
    this.#health.raise("GPU_UNREGISTERED", `the driver refused: ${why}`);
  }
}

/** For a line that has no field of its own for the fix. */
function textOf({ text, fix }: Finding): string {
  return fix === null ? text : `${text}: ${fix}`;
}

function reportOf(device: GpuDevice): GpuReport {
  const { name, pci, uuid, memoryBytes, numaNode, hasDmaBuf, lost, pageableCopies } = device;
  return {
    ...{ name, pci, memoryBytes, numaNode, hasDmaBuf, pageableCopies },
    uuid: uuidText(uuid),
    lost: lost === null ? null : cudaError(lost),
  };
}

function uuidText(uuid: Uint8Array): string {
  const hex = uuid.toHex();
  const parts = [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20)];
  return [...parts, hex.slice(20)].join("-");
}
