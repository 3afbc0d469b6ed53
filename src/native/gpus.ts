import { assert } from "../core/index.ts";
import { GPU_OPERATION, GPU_STATE, STRUCTS } from "./abi.gen.ts";
import { Completions } from "./completions.ts";
import {
  type NativeBuffer,
  namesOf,
  nativeBuffer,
  readStruct,
  type StatusName,
  type StructValue,
  statusName,
  textBuffer,
  textOf,
  writeU64,
} from "./memory.ts";
import type { Native } from "./native.ts";
import type { Region } from "./region.ts";

/** State of CUDA on this host: usable, or the reason it is not. */
export type GpuState = keyof typeof GPU_STATE;

export interface GpusInfo {
  readonly state: GpuState;
  /** Version of CUDA that the driver supports: 12080 for 12.8. 0 if unknown. */
  readonly driverVersion: number;
  /** CUresult of the driver call that led to `state`. 0 if no call failed. */
  readonly code: number;
  /** True if the driver can copy many pieces in one call. */
  readonly hasBatches: boolean;
}

export interface GpuDevice {
  readonly index: number;
  /** UUID of 16 bytes, by which engines identify a device. */
  readonly uuid: Uint8Array;
  readonly name: string;
  /** PCI address, such as `0000:3b:00.0`. */
  readonly pci: string;
  readonly memoryBytes: number;
  /** NUMA node of the device. Null if the driver does not report it. */
  readonly numaNode: number | null;
  /** Compute capability times ten: 90 means 9.0. */
  readonly capability: number;
  readonly hasDmaBuf: boolean;
  /**
   * CUresult with which the device was lost. Null if it works. A lost device is unusable until the
   * process ends.
   */
  readonly lost: number | null;
  /**
   * Number of copies that blocked a thread because their host memory was not registered with the
   * driver.
   */
  readonly pageableCopies: number;
}

/** Device memory that this process allocated, or imported from another process. */
export interface GpuMemory {
  readonly id: number;
  readonly device: number;
  readonly bytes: number;
}

/**
 * One copy between the memory region and device memory. Destinations of a job's pieces must not
 * overlap.
 */
export interface GpuPiece {
  readonly regionOffset: number;
  readonly memoryOffset: number;
  readonly bytes: number;
}

/** A failed job. `code` is the driver's CUresult; 0 if the driver was not called. */
export interface GpuFault {
  readonly ok: false;
  readonly status: StatusName;
  readonly code: number;
  /**
   * True only with status `lost`: the device could not be stopped and may access the job's memory
   * until the process ends. The job's spans of the region must not be reused.
   */
  readonly leaked: boolean;
}
export type GpuOutcome = { readonly ok: true } | GpuFault;
export type GpuHandle =
  | { readonly ok: true; readonly handle: Uint8Array; readonly offset: number }
  | GpuFault;
/** A file descriptor, which the caller must close, or the failure. */
export type GpuDescriptor = { readonly ok: true; readonly fd: number } | GpuFault;
export type GpuOpened = { readonly ok: true; readonly memory: GpuMemory } | GpuFault;

/**
 * The GPUs of this host. The driver is loaded at run time. Promises:
 *
 * - Without a driver, a device or a library, opening succeeds and `info` gives the reason; every
 *   job then ends with `unsupported`.
 * - The device may access a job's span of the region and its device memory until the job's promise
 *   resolves, even after a deadline. The promise always resolves. If the device hangs, it resolves
 *   when the device is declared lost. The device is then stopped; or, if that failed, the result
 *   has `leaked` set, the span must never be reused, and the region cannot be closed.
 * - Jobs on the same device memory run in the order of their calls. Jobs on different memories run
 *   in parallel.
 * - A lost device stays lost until the process ends. Its jobs end with `lost`; other devices
 *   continue. `onLost` is called once per device.
 * - Offsets and lengths are checked against the region and the memory before the driver is called.
 * - No call throws because of a device or a driver.
 */
export interface Gpus extends AsyncDisposable {
  readonly info: GpusInfo;
  /** Returns the current state of each device. */
  devices(): readonly GpuDevice[];
  /**
   * Registers a span of the region with the driver, so that all devices can copy from and to it
   * faster.
   */
  register(offset: number, bytes: number): Promise<GpuOutcome>;
  /**
   * Opens device memory of another process. `handle` is that process's result of
   * `cuIpcGetMemHandle`, and covers a whole allocation.
   */
  importIpc(device: number, handle: Uint8Array, bytes: number): Promise<GpuOpened>;
  /**
   * Opens device memory that another process exported as a file descriptor. Takes ownership of the
   * descriptor.
   */
  importFd(device: number, fd: number, bytes: number): Promise<GpuOpened>;
  allocate(device: number, bytes: number, options?: { exportable: boolean }): Promise<GpuOpened>;
  /**
   * Closes or frees device memory after its running copies have ended. Memory that was imported
   * twice is closed by the second call.
   */
  free(memory: GpuMemory): Promise<GpuOutcome>;
  toGpu(memory: GpuMemory, pieces: readonly GpuPiece[]): Promise<GpuOutcome>;
  fromGpu(memory: GpuMemory, pieces: readonly GpuPiece[]): Promise<GpuOutcome>;
  /**
   * Exports device memory to another process. Returns a handle of 64 bytes, and the offset of the
   * memory in the allocation that the handle covers.
   */
  exportIpc(memory: GpuMemory): Promise<GpuHandle>;
  exportFd(memory: GpuMemory): Promise<GpuDescriptor>;
  /**
   * Exports device memory to an RDMA NIC as a DMA-BUF. `offset` and `bytes` must be multiples of
   * 65,536. The caller closes the descriptor.
   */
  exportDmaBuf(memory: GpuMemory, offset: number, bytes: number): Promise<GpuDescriptor>;
}

export interface GpusOptions {
  /** Memory region that copies read and write. Null if no copies are needed. */
  readonly region: Region | null;
  /** Path of the CUDA library. Null: `libcuda.so.1` as the dynamic linker finds it. */
  readonly library: string | null;
  /** Maximum numbers of jobs and of pieces in flight. Further jobs end with `full`. */
  readonly jobsMax: number;
  readonly piecesMax: number;
  /**
   * A device that completes no job for this many milliseconds is declared lost. Default: 30,000.
   */
  readonly giveUpMs?: number;
  /** Called once per lost device, after its first job has ended with `lost`. */
  onLost(device: GpuDevice): void;
}

const JOB = STRUCTS.GpuJob;
const DONE = STRUCTS.GpuDone;
const PIECE = STRUCTS.GpuPiece;
const IPC_BYTES = 64;
const GIVE_UP_MS = 30_000;

const STATES = namesOf(GPU_STATE);

interface Job {
  readonly operation: number;
  readonly device?: number;
  readonly memory?: number;
  readonly offset?: number;
  readonly bytes?: number;
  readonly count?: number;
  readonly fd?: number;
  readonly flags?: number;
  readonly buffer?: NativeBuffer;
}

type Done = { readonly ok: true; readonly result: number } | GpuFault;

interface Waiting {
  /** Keeps the job's memory referenced until the job ends. */
  readonly job: Job;
  settle(done: Done): void;
}

class NativeGpus implements Gpus {
  readonly info: GpusInfo;
  readonly #native: Native;
  readonly #options: GpusOptions;
  /** Keeps the region referenced until the devices are closed. */
  readonly #region: Region | null;
  readonly #handle: number;
  readonly #deviceCount: number;
  readonly #job: NativeBuffer = nativeBuffer(JOB.size);
  readonly #jobView = new DataView(this.#job.bytes.buffer);
  readonly #device: NativeBuffer = nativeBuffer(STRUCTS.GpuDevice.size);
  /**
   * Buffer for the pieces of a job. The library copies it during `submit`, so each job can reuse
   * it.
   */
  #pieces: NativeBuffer = nativeBuffer(PIECE.size * 256);
  readonly #running: Completions<Waiting> | null;
  readonly #reportedLost = new Set<number>();
  /** True if a job has ended with `lost` since lost devices were last reported. */
  #isLost = false;
  #last: readonly GpuDevice[] = [];
  #closing: Promise<void> | null = null;
  #isClosed = false;

  constructor(native: Native, options: GpusOptions) {
    this.#native = native;
    this.#options = options;
    this.#region = options.region;
    const info = this.#create();
    this.#handle = Number(info.handle);
    this.#deviceCount = info.devices;
    this.info = {
      state: STATES.get(info.state)!,
      driverVersion: info.driver_version,
      code: info.code,
      hasBatches: info.has_batches !== 0,
    };
    this.#running =
      this.#handle === 0
        ? null
        : new Completions(native, {
            reap: "hearth_gpus_reap",
            handle: this.#handle,
            entryBytes: DONE.size,
            eventFd: info.event_fd,
            deliver: (view, at) => this.#deliver(view, at),
            drained: () => this.#reportLost(),
          });
  }

  #create(): StructValue<"GpusInfo"> {
    const { library, jobsMax, piecesMax, giveUpMs } = this.#options;
    const path = textBuffer(library ?? "");
    const request = {
      region: BigInt(this.#region?.handle ?? 0),
      library: BigInt(library === null ? 0 : path.address),
      jobs: jobsMax,
      pieces: piecesMax,
      give_up_ms: giveUpMs ?? GIVE_UP_MS,
      reserved: 0,
    };
    const info = this.#native.exchange("hearth_gpus_create", ["GpusRequest", request], "GpusInfo");
    // Keeps the path referenced until the library has read it.
    assert(path.address !== 0, "the path has an address");
    return info;
  }

  devices(): readonly GpuDevice[] {
    if (this.#isClosed) return this.#last;
    return Array.from({ length: this.#deviceCount }, (_, index) => this.#readDevice(index));
  }

  #readDevice(index: number): GpuDevice {
    const out = this.#device.bytes;
    this.#native.call("hearth_gpus_device", this.#handle, index, out);
    const device = readStruct("GpuDevice", out);
    return {
      index,
      uuid: device.uuid,
      name: textOf(device.name),
      pci: textOf(device.pci),
      memoryBytes: Number(device.memory_bytes),
      numaNode: device.numa_node < 0 ? null : device.numa_node,
      capability: device.capability,
      hasDmaBuf: device.has_dma_buf !== 0,
      lost: device.lost === 0 ? null : device.lost,
      pageableCopies: Number(device.pageable_copies),
    };
  }

  async register(offset: number, bytes: number): Promise<GpuOutcome> {
    return outcomeOf(await this.#run({ operation: GPU_OPERATION.register, offset, bytes }));
  }

  async importIpc(device: number, handle: Uint8Array, bytes: number): Promise<GpuOpened> {
    assert(handle.length === IPC_BYTES, "an IPC handle has 64 bytes");
    const buffer = nativeBuffer(IPC_BYTES);
    buffer.bytes.set(handle);
    const done = await this.#run({ operation: GPU_OPERATION.import_ipc, device, bytes, buffer });
    return openedOf(done, device, bytes);
  }

  async importFd(device: number, fd: number, bytes: number): Promise<GpuOpened> {
    if (this.#handle === 0 || this.#closing !== null) this.#native.closeFd(fd);
    const done = await this.#run({ operation: GPU_OPERATION.import_fd, device, fd, bytes });
    return openedOf(done, device, bytes);
  }

  async allocate(
    device: number,
    bytes: number,
    options: { exportable: boolean } = { exportable: false },
  ): Promise<GpuOpened> {
    const flags = options.exportable ? 1 : 0;
    const done = await this.#run({ operation: GPU_OPERATION.allocate, device, bytes, flags });
    return openedOf(done, device, bytes);
  }

  async free(memory: GpuMemory): Promise<GpuOutcome> {
    return outcomeOf(await this.#run({ operation: GPU_OPERATION.free, memory: memory.id }));
  }

  toGpu(memory: GpuMemory, pieces: readonly GpuPiece[]): Promise<GpuOutcome> {
    return this.#copy(GPU_OPERATION.to_gpu, memory, pieces);
  }

  fromGpu(memory: GpuMemory, pieces: readonly GpuPiece[]): Promise<GpuOutcome> {
    return this.#copy(GPU_OPERATION.from_gpu, memory, pieces);
  }

  async #copy(
    operation: number,
    memory: GpuMemory,
    pieces: readonly GpuPiece[],
  ): Promise<GpuOutcome> {
    const count = pieces.length;
    if (count > this.#options.piecesMax) return fault("full", 0);
    const regionBytes = this.#region?.bytes ?? 0;
    // The library checks too, but against the whole allocation, not only the imported part.
    const isWithin = pieces.every(
      (piece) =>
        isSpan(piece.memoryOffset, piece.bytes, memory.bytes) &&
        isSpan(piece.regionOffset, piece.bytes, regionBytes),
    );
    if (!isWithin) return fault("out_of_range", 0);
    const buffer = this.#stage(pieces);
    return outcomeOf(await this.#run({ operation, memory: memory.id, count, buffer }));
  }

  #stage(pieces: readonly GpuPiece[]): NativeBuffer {
    const needed = pieces.length * PIECE.size;
    if (this.#pieces.bytes.length < needed) {
      this.#pieces = nativeBuffer(2 ** Math.ceil(Math.log2(needed)));
    }
    const words = new Uint32Array(this.#pieces.bytes.buffer);
    const { region_offset: region, memory_offset: memory, bytes } = PIECE.fields;
    for (const [index, piece] of pieces.entries()) {
      const at = index * PIECE.size;
      writeU64(words, at + region.offset, piece.regionOffset);
      writeU64(words, at + memory.offset, piece.memoryOffset);
      writeU64(words, at + bytes.offset, piece.bytes);
    }
    return this.#pieces;
  }

  async exportIpc(memory: GpuMemory): Promise<GpuHandle> {
    const buffer = nativeBuffer(IPC_BYTES);
    const job = { operation: GPU_OPERATION.export_ipc, memory: memory.id, buffer };
    const done = await this.#run(job);
    if (!done.ok) return done;
    return { ok: true, handle: buffer.bytes.slice(), offset: done.result };
  }

  async exportFd(memory: GpuMemory): Promise<GpuDescriptor> {
    const done = await this.#run({ operation: GPU_OPERATION.export_fd, memory: memory.id });
    return done.ok ? { ok: true, fd: done.result } : done;
  }

  async exportDmaBuf(memory: GpuMemory, offset: number, bytes: number): Promise<GpuDescriptor> {
    const operation = GPU_OPERATION.export_dma_buf;
    const done = await this.#run({ operation, memory: memory.id, offset, bytes });
    return done.ok ? { ok: true, fd: done.result } : done;
  }

  #run(job: Job): Promise<Done> {
    const running = this.#running;
    if (running === null) return Promise.resolve(fault("unsupported", this.info.code));
    if (this.#closing !== null && job.operation !== GPU_OPERATION.end) {
      return Promise.resolve(fault("closed", 0));
    }
    return new Promise((settle) => {
      const token = running.wait({ job, settle });
      this.#write(job, token);
      const code = this.#native.symbols.hearth_gpus_submit(this.#handle, this.#job.bytes);
      if (code >= 0) return;
      running.forget(token);
      settle(fault(statusName(code), 0));
    });
  }

  #write(job: Job, token: number): void {
    const view = this.#jobView;
    const { fields } = JOB;
    const u64 = (name: "token" | "memory" | "buffer" | "offset" | "bytes", value: number) =>
      view.setBigUint64(fields[name].offset, BigInt(value), true);
    u64("token", token);
    u64("memory", job.memory ?? 0);
    u64("buffer", job.buffer?.address ?? 0);
    u64("offset", job.offset ?? 0);
    u64("bytes", job.bytes ?? 0);
    view.setUint32(fields.count.offset, job.count ?? 0, true);
    view.setUint32(fields.operation.offset, job.operation, true);
    view.setUint32(fields.device.offset, job.device ?? 0, true);
    view.setInt32(fields.fd.offset, job.fd ?? -1, true);
    view.setUint32(fields.flags.offset, job.flags ?? 0, true);
    view.setUint32(fields.reserved.offset, 0, true);
  }

  #deliver(view: DataView, at: number): void {
    const { fields } = DONE;
    const token = Number(view.getBigUint64(at + fields.token.offset, true));
    const waiting = this.#running!.of(token);
    this.#running!.forget(token);
    const result = Number(view.getBigUint64(at + fields.result.offset, true));
    const status = view.getInt32(at + fields.status.offset, true);
    if (status === 0) {
      waiting.settle({ ok: true, result });
      return;
    }
    const name = statusName(status);
    const code = view.getInt32(at + fields.code.offset, true);
    const isLost = name === "lost";
    this.#isLost ||= isLost;
    waiting.settle({ ok: false, status: name, code, leaked: isLost && result !== 0 });
  }

  #reportLost(): void {
    if (!this.#isLost) return;
    this.#isLost = false;
    for (const device of this.devices()) {
      if (device.lost === null || this.#reportedLost.has(device.index)) continue;
      this.#reportedLost.add(device.index);
      this.#options.onLost(device);
    }
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    if (this.#running === null) return;
    await this.#running.idle();
    const indexes = this.devices().map((device) => device.index);
    await Promise.all(indexes.map((device) => this.#run({ operation: GPU_OPERATION.end, device })));
    await this.#running.stop();
    this.#last = this.devices();
    this.#isClosed = true;
    this.#native.call("hearth_gpus_close", this.#handle);
  }
}

function fault(status: GpuFault["status"], code: number): GpuFault {
  return { ok: false, status, code, leaked: false };
}

function outcomeOf(done: Done): GpuOutcome {
  return done.ok ? { ok: true } : done;
}

function openedOf(done: Done, device: number, bytes: number): GpuOpened {
  return done.ok ? { ok: true, memory: { id: done.result, device, bytes } } : done;
}

function isSpan(offset: number, bytes: number, room: number): boolean {
  return Number.isSafeInteger(offset) && offset >= 0 && bytes >= 0 && offset + bytes <= room;
}

/**
 * Opens the GPUs of this host. A missing driver or device is not an error; `info` reports it.
 * Throws NativeError if memory or threads are insufficient.
 */
export function openGpus(native: Native, options: GpusOptions): Gpus {
  return new NativeGpus(native, options);
}
