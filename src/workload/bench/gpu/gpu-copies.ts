import { assert, HearthError } from "../../../core/index.ts";
import { cudaError, cudaVersion, gpuFinding } from "../../../devices/index.ts";
import {
  type GpuDevice,
  type GpuMemory,
  type GpuOutcome,
  type GpuPiece,
  type Gpus,
  type Native,
  openGpus,
  Queue,
  type Region,
} from "../../../native/index.ts";
import { ArenaGrowth, createArena } from "../../../store/index.ts";

export interface GpuCopiesOptions {
  readonly native: Native;
  /** Null: as the dynamic linker finds it. */
  readonly library: string | null;
  readonly device: number;
  /** Of the arena, and as much memory of the device. */
  readonly bytes: number;
}

export type Direction = "h2d" | "d2h";

/** One job, as it were the blocks that an engine asks for together. */
const JOB_BYTES = 2 ** 26;
const PIECE_BYTES_MIN = 2 ** 16;
const SLICE_BYTES = 2 ** 26;

/**
 * An arena like an agent's, registered with the driver, and as much memory of a device. Pieces lie
 * in the opposite order on both sides, so that no two of them are one copy.
 */
export class GpuCopies implements AsyncDisposable {
  readonly region: Region;
  readonly gpus: Gpus;
  readonly #memory: GpuMemory;
  readonly #queue: Queue;
  readonly #bytes: number;

  private constructor(
    options: GpuCopiesOptions,
    parts: { region: Region; gpus: Gpus; queue: Queue; memory: GpuMemory },
  ) {
    this.region = parts.region;
    this.gpus = parts.gpus;
    this.#queue = parts.queue;
    this.#memory = parts.memory;
    this.#bytes = options.bytes;
  }

  /** Throws UNSUPPORTED, in words, where there is no such device or it has not enough memory. */
  static async open(options: GpuCopiesOptions): Promise<GpuCopies> {
    const { native, bytes, library } = options;
    const arena = { bytes, hugePages: "try", lockMemory: "off", sliceBytes: SLICE_BYTES } as const;
    const region = createArena(native, arena);
    const queue = new Queue(native, { entries: 64, threads: 1, watches: 8 });
    // A copy of everything is under way at once.
    const jobsMax = Math.ceil(bytes / JOB_BYTES) + 1;
    const limits = { jobsMax, piecesMax: bytes / PIECE_BYTES_MIN };
    const gpus = openGpus(native, { region, library, ...limits, onLost: () => undefined });
    try {
      const device = chosen(gpus, options.device);
      const growth = new ArenaGrowth(region, queue, arena, () => undefined);
      await growth.first();
      await growth.rest((short) => {
        throw short;
      });
      mustBeOk(await gpus.register(0, bytes), "register the arena");
      const allocated = await gpus.allocate(device.index, bytes);
      if (!allocated.ok) throw failed(allocated, "allocate its memory");
      return new GpuCopies(options, { region, gpus, queue, memory: allocated.memory });
    } catch (thrown) {
      await close(gpus, queue, region);
      throw thrown;
    }
  }

  get device(): GpuDevice {
    return this.gpus.devices()[this.#memory.device]!;
  }

  /** As in `12.8`. */
  get driver(): string {
    return cudaVersion(this.gpus.info.driverVersion);
  }

  /** Copies everything in pieces of so many bytes; nanoseconds from the first job to the last. */
  async copy(direction: Direction, pieceBytes: number): Promise<number> {
    const jobs = this.#jobs(pieceBytes);
    const { gpus } = this;
    const start = Bun.nanoseconds();
    const done = jobs.map((pieces) =>
      direction === "h2d" ? gpus.toGpu(this.#memory, pieces) : gpus.fromGpu(this.#memory, pieces),
    );
    const outcomes = await Promise.all(done);
    const taken = Bun.nanoseconds() - start;
    for (const outcome of outcomes) mustBeOk(outcome, "copy");
    return taken;
  }

  #jobs(pieceBytes: number): GpuPiece[][] {
    const total = this.#bytes;
    assert(total % pieceBytes === 0, "the arena is whole pieces");
    const each = Math.max(1, JOB_BYTES / pieceBytes);
    const jobs: GpuPiece[][] = [];
    for (let first = 0; first < total / pieceBytes; first += each) {
      const count = Math.min(each, total / pieceBytes - first);
      jobs.push(
        Array.from({ length: count }, (_, i) => {
          const regionOffset = (first + i) * pieceBytes;
          const memoryOffset = total - regionOffset - pieceBytes;
          return { regionOffset, memoryOffset, bytes: pieceBytes };
        }),
      );
    }
    return jobs;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await close(this.gpus, this.#queue, this.region);
  }
}

async function close(gpus: Gpus, queue: Queue, region: Region): Promise<void> {
  await gpus[Symbol.asyncDispose]();
  await queue[Symbol.asyncDispose]();
  region[Symbol.dispose]();
}

function chosen(gpus: Gpus, index: number): GpuDevice {
  const devices = gpus.devices();
  const { kind, text, fix } = gpuFinding(gpus.info, devices);
  if (kind !== "usable") {
    throw new HearthError("UNSUPPORTED", text, fix === null ? {} : { fix });
  }
  const device = devices[index];
  if (device !== undefined) return device;
  const last = devices.length - 1;
  throw new HearthError("UNSUPPORTED", `there is no GPU ${index}: the last is ${last}`);
}

function mustBeOk(outcome: GpuOutcome, what: string): void {
  if (!outcome.ok) throw failed(outcome, what);
}

function failed(fault: { status: string; code: number }, what: string): HearthError {
  const why = fault.code === 0 ? fault.status : cudaError(fault.code);
  return new HearthError("UNSUPPORTED", `the GPU could not ${what}: ${why}`);
}
