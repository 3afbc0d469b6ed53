import type {
  GpuDevice,
  GpuMemory,
  GpuOpened,
  GpuOutcome,
  GpuPiece,
  Gpus,
} from "../../src/native/index.ts";

const DONE: GpuOutcome = { ok: true };
const FAILED = { ok: false, status: "device_failed", code: 1, leaked: false } as const;

/** A copy that was asked for and has not ended. */
export interface FakeCopy {
  readonly toGpu: boolean;
  readonly pieces: readonly GpuPiece[];
  end(outcome: GpuOutcome): void;
}

/** One device whose copies end on request of the test, or at once. It moves no bytes. */
export class FakeGpus implements Gpus {
  readonly info = { state: "ready", driverVersion: 12_080, code: 0, hasBatches: true } as const;
  /** Those that have not ended, the oldest first. */
  readonly copies: FakeCopy[] = [];
  /** Whether copies wait for their end. */
  holds = false;
  openMemories = 0;
  /** Number of times that memory cannot be freed, because the job queue is full. */
  fullTimes = 0;
  readonly #device: GpuDevice;
  #lastId = 0;

  constructor(uuid: Uint8Array, memoryBytes: number) {
    this.#device = {
      index: 0,
      uuid,
      name: "fake",
      pci: "0000:00:00.0",
      memoryBytes,
      numaNode: null,
      capability: 90,
      hasDmaBuf: false,
      lost: null,
      pageableCopies: 0,
    };
  }

  devices(): readonly GpuDevice[] {
    return [this.#device];
  }

  register = async (): Promise<GpuOutcome> => DONE;
  exportIpc = async () => FAILED;
  exportFd = async () => FAILED;
  exportDmaBuf = async () => FAILED;
  importFd: Gpus["importFd"] = async () => FAILED;

  importIpc(device: number, _handle: Uint8Array, bytes: number): Promise<GpuOpened> {
    return this.allocate(device, bytes);
  }

  async allocate(device: number, bytes: number): Promise<GpuOpened> {
    this.openMemories++;
    return { ok: true, memory: { id: ++this.#lastId, device, bytes } };
  }

  async free(): Promise<GpuOutcome> {
    if (this.fullTimes > 0) {
      this.fullTimes--;
      return { ok: false, status: "full", code: 0, leaked: false };
    }
    this.openMemories--;
    return DONE;
  }

  toGpu(_memory: GpuMemory, pieces: readonly GpuPiece[]): Promise<GpuOutcome> {
    return this.#copy(true, pieces);
  }

  fromGpu(_memory: GpuMemory, pieces: readonly GpuPiece[]): Promise<GpuOutcome> {
    return this.#copy(false, pieces);
  }

  #copy(toGpu: boolean, pieces: readonly GpuPiece[]): Promise<GpuOutcome> {
    if (!this.holds) return Promise.resolve(DONE);
    return new Promise((resolve) => {
      const copy: FakeCopy = {
        toGpu,
        pieces,
        end: (outcome) => {
          this.copies.splice(this.copies.indexOf(copy), 1);
          resolve(outcome);
        },
      };
      this.copies.push(copy);
    });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const copy of [...this.copies]) copy.end(DONE);
  }
}
