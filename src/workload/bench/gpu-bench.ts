import { assert, HearthError } from "../../core/index.ts";
import { cudaError, cudaVersion, gpuFinding } from "../../devices/index.ts";
import {
  BareCuda,
  type GpuDevice,
  type GpuMemory,
  type GpuOutcome,
  type GpuPiece,
  type Gpus,
  isStandInCuda,
  type Native,
  openGpus,
  Queue,
  type Region,
} from "../../native/index.ts";
import { createArena } from "../../store/index.ts";
import { benchArena, growArena } from "./bench-store.ts";
import { median } from "./measure.ts";

export interface GpuBenchOptions {
  /** Path of the CUDA library; null lets the dynamic linker find it. */
  readonly library: string | null;
  readonly device: number;
  /** Bytes copied by each measurement; a multiple of 16 MiB. */
  readonly bytes: number;
  readonly rounds: number;
  readonly signal: AbortSignal;
  onProgress(what: string): void;
}

const LARGE = 2 ** 24;
const MIDDLE = 2 ** 20;
const SMALL = 2 ** 16;
const SIZES = { large: LARGE, middle: MIDDLE, small: SMALL } as const;
const DIRECTIONS: readonly Direction[] = ["h2d", "d2h"];
const OTHER_BYTES = 0n;

/**
 * Measures copies between RAM and a GPU. Reports the medians of the rounds, each of which runs
 * every measurement once. In each round, data copied to the GPU is copied back and compared. Throws
 * UNSUPPORTED without a GPU.
 */
export async function benchGpu(native: Native, options: GpuBenchOptions) {
  const { library, device, bytes, rounds, signal, onProgress } = options;
  await using copies = await GpuCopies.open({ native, library, device, bytes });
  using bare = new BareCuda({ library, device, bytes });
  const samples = new Map<string, number[]>();
  const note = (name: string, ns: number) => {
    const known = samples.get(name) ?? [];
    samples.set(name, [...known, bytes / ns]);
  };
  let wrong = 0;
  // The first round is a warm-up and does not count.
  for (let round = 0; round <= rounds; round++) {
    onProgress(round === 0 ? "a first round" : `round ${round} of ${rounds}`);
    for (const direction of DIRECTIONS) {
      const large = bare.copy(direction, bytes, LARGE);
      const small = bare.copy(direction, bytes, SMALL);
      if (round === 0) continue;
      note(`bareLarge ${direction}`, large);
      note(`bareSmall ${direction}`, small);
    }
    for (const [name, size] of Object.entries(SIZES)) {
      signal.throwIfAborted();
      const seed = BigInt(round * LARGE + size);
      copies.region.fill(0, bytes, seed);
      const there = await copies.copy("h2d", size);
      copies.region.fill(0, bytes, OTHER_BYTES);
      const back = await copies.copy("d2h", size);
      if (copies.region.firstWrong(0, bytes, seed) !== null) wrong++;
      if (round === 0) continue;
      note(`${name} h2d`, there);
      note(`${name} d2h`, back);
    }
  }
  /** 10^9 bytes a second. */
  const gbps = (name: string) => median(samples.get(name)!);
  const bareH2d = gbps("bareLarge h2d");
  const bareD2h = gbps("bareLarge d2h");
  return {
    device: copies.device.name,
    /** CUDA version of the driver, such as `12.8`. */
    driver: copies.driver,
    /** The library is a test double: the rates are those of memory copies. */
    stand_in: isStandInCuda(library),
    batches: copies.gpus.info.hasBatches,
    bytes,
    rounds,
    h2d_gbps: gbps("large h2d"),
    d2h_gbps: gbps("large d2h"),
    h2d_1mib_gbps: gbps("middle h2d"),
    d2h_1mib_gbps: gbps("middle d2h"),
    /** Batches of many small pieces, no two of them neighbours. */
    scatter_gbps: gbps("small h2d"),
    gather_gbps: gbps("small d2h"),
    /** A plain loop over the driver with memory of its own, in the same rounds. */
    bare_h2d_gbps: bareH2d,
    bare_d2h_gbps: bareD2h,
    bare_64kib_h2d_gbps: gbps("bareSmall h2d"),
    bare_64kib_d2h_gbps: gbps("bareSmall d2h"),
    h2d_of_bare: gbps("large h2d") / bareH2d,
    d2h_of_bare: gbps("large d2h") / bareD2h,
    h2d_1mib_of_bare: gbps("middle h2d") / bareH2d,
    d2h_1mib_of_bare: gbps("middle d2h") / bareD2h,
    scatter_of_bare: gbps("small h2d") / bareH2d,
    gather_of_bare: gbps("small d2h") / bareD2h,
    /** Copies that were not asynchronous. */
    pageable: copies.device.pageableCopies,
    /** Number of round trips after which at least one byte differed. */
    wrong,
  };
}

interface GpuCopiesOptions {
  readonly native: Native;
  /** Path of the CUDA library; null lets the dynamic linker find it. */
  readonly library: string | null;
  readonly device: number;
  /** Bytes of the arena, and of the GPU memory. */
  readonly bytes: number;
}

type Direction = "h2d" | "d2h";

/** Bytes copied by one job, as many as a typical set of blocks that an engine requests together. */
const JOB_BYTES = 2 ** 26;
const PIECE_BYTES_MIN = 2 ** 16;

/**
 * An arena like an agent's, registered with the driver, and the same amount of GPU memory. The
 * pieces have opposite orders in both, so that the driver cannot merge two of them.
 */
class GpuCopies implements AsyncDisposable {
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

  /** Opens a GPU. Throws UNSUPPORTED with the reason if it is missing or has too little memory. */
  static async open(options: GpuCopiesOptions): Promise<GpuCopies> {
    const { native, bytes, library } = options;
    const arena = benchArena(bytes);
    const region = createArena(native, arena);
    const queue = new Queue(native, { entries: 64, threads: 1, watches: 8 });
    // All bytes are copied by jobs that are in progress at the same time.
    const jobsMax = Math.ceil(bytes / JOB_BYTES) + 1;
    const limits = { jobsMax, piecesMax: bytes / PIECE_BYTES_MIN };
    const gpus = openGpus(native, { region, library, ...limits, onLost: () => undefined });
    try {
      const device = chosen(gpus, options.device);
      await growArena(region, queue, arena);
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
    return this.gpus.devices()[this.#memory.device];
  }

  /** CUDA version of the driver, such as `12.8`. */
  get driver(): string {
    return cudaVersion(this.gpus.info.driverVersion);
  }

  /**
   * Copies all bytes in pieces of `pieceBytes`. Returns the nanoseconds from the submission of the
   * first job to the completion of the last.
   */
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
  throw new HearthError("UNSUPPORTED", `GPU ${index} does not exist: the last is ${last}`);
}

function mustBeOk(outcome: GpuOutcome, what: string): void {
  if (!outcome.ok) throw failed(outcome, what);
}

function failed(fault: { status: string; code: number }, what: string): HearthError {
  const why = fault.code === 0 ? fault.status : cudaError(fault.code);
  return new HearthError("UNSUPPORTED", `the GPU could not ${what}: ${why}`);
}
