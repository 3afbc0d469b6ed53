import type { Region } from "./region.ts";
import type { StatusName } from "./status.ts";

/** Whether CUDA can be used here, and if not why. */
export type GpuState = "ready" | "no_library" | "no_device" | "not_ready" | "too_old" | "failed";

export interface GpusInfo {
  readonly state: GpuState;
  /** 12080 is 12.8; 0: unknown. */
  readonly driverVersion: number;
  /** The CUresult behind the state, or 0. */
  readonly code: number;
  /** Many pieces are copied by one call. */
  readonly hasBatches: boolean;
}

export interface GpuDevice {
  readonly index: number;
  /** 16 bytes: what engines name it by. */
  readonly uuid: Uint8Array;
  readonly name: string;
  /** As in `0000:3b:00.0`. */
  readonly pci: string;
  readonly memoryBytes: number;
  /** Null: the driver does not know it. */
  readonly numaNode: number | null;
  /** 90 is compute capability 9.0. */
  readonly capability: number;
  readonly hasDmaBuf: boolean;
  /** Null, or the CUresult with which it was lost: nothing of it works until the process ends. */
  readonly lost: number | null;
  /** Copies that blocked their thread, since memory of the host was not registered. */
  readonly pageableCopies: number;
}

/** Memory of a device, allocated here or opened from another process. */
export interface GpuMemory {
  readonly id: number;
  readonly device: number;
  readonly bytes: number;
}

/** Bytes to copy between the region and a device's memory. A job writes none of them twice. */
export interface GpuPiece {
  readonly regionOffset: number;
  readonly memoryOffset: number;
  readonly bytes: number;
}

/** `code` is the driver's CUresult, 0 where it did not come to ask. */
export interface GpuFault {
  readonly ok: false;
  readonly status: StatusName;
  readonly code: number;
  /**
   * The device could not be stopped and may touch what the job named until the process ends: the
   * spans of the region are never to be used again. Only with the status `lost`.
   */
  readonly leaked: boolean;
}
export type GpuOutcome = { readonly ok: true } | GpuFault;
export type GpuOpened = { readonly ok: true; readonly memory: GpuMemory } | GpuFault;

/**
 * The GPUs of this host, opened at run time. Promises:
 *
 * - On a host without a driver, a device or a library it opens all the same and says so in `info`;
 *   then every job ends with `unsupported`.
 * - A job's span of the region and its memory belong to the device until its promise has resolved,
 *   whatever deadline has passed. It resolves always: where a device hangs, when it is given up as
 *   lost. Then it is stopped, or the fault says `leaked`: the span is the device's for ever, and
 *   the region cannot close any more.
 * - Jobs on one memory run in the order of their calls; on several, beside each other.
 * - A device that is lost stays lost until the process ends: its jobs end with `lost`, those of the
 *   others go on. `onLost` says it once.
 * - Offsets and lengths are checked against the region and the memory before the driver is asked.
 * - Nothing here throws for what a device or a driver does.
 */
export interface Gpus extends AsyncDisposable {
  readonly info: GpusInfo;
  /** As they are now. */
  devices(): readonly GpuDevice[];
  /** Makes the span of the region fast to copy from and to, for all devices. */
  register(offset: number, bytes: number): Promise<GpuOutcome>;
  /** Opens what `cuIpcGetMemHandle` gave another process: the whole allocation. */
  importIpc(device: number, handle: Uint8Array, bytes: number): Promise<GpuOpened>;
  /** Maps what was exported as a descriptor (POSIX), which is taken over. */
  importFd(device: number, fd: number, bytes: number): Promise<GpuOpened>;
  allocate(device: number, bytes: number, options?: { exportable: boolean }): Promise<GpuOpened>;
  /** Waits for copies under way. What was imported twice is closed with the second call. */
  free(memory: GpuMemory): Promise<GpuOutcome>;
  toGpu(memory: GpuMemory, pieces: readonly GpuPiece[]): Promise<GpuOutcome>;
  fromGpu(memory: GpuMemory, pieces: readonly GpuPiece[]): Promise<GpuOutcome>;
  /** For another process: 64 bytes, and where the memory begins in what they open. */
  exportIpc(
    memory: GpuMemory,
  ): Promise<
    { readonly ok: true; readonly handle: Uint8Array; readonly offset: number } | GpuFault
  >;
  exportFd(memory: GpuMemory): Promise<{ readonly ok: true; readonly fd: number } | GpuFault>;
  /** For a NIC: `offset` and `bytes` are multiples of 65,536, the descriptor is the caller's. */
  exportDmaBuf(
    memory: GpuMemory,
    offset: number,
    bytes: number,
  ): Promise<{ readonly ok: true; readonly fd: number } | GpuFault>;
}

export interface GpusOptions {
  /** Null: no copies. */
  readonly region: Region | null;
  /** Path of the driver's library; null for `libcuda.so.1` as the dynamic linker finds it. */
  readonly library: string | null;
  /** Jobs and pieces under way, at most; beyond that a job ends with `full`. */
  readonly jobsMax: number;
  readonly piecesMax: number;
  /** A device that ends nothing for so long is given up as lost; 30 s unless said. */
  readonly giveUpMs?: number;
  /** Once for each device, when the first job has ended with `lost`. */
  onLost(device: GpuDevice): void;
}
