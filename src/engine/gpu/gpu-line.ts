import { assert, type Clock, sleep } from "../../core/index.ts";
import type { GpuDevice, GpuMemory, GpuOpened, Gpus, Native } from "../../native/index.ts";
import type { Holder } from "../../store/index.ts";
import type { EngineStats } from "../engine-stats.ts";
import {
  GPU_MEMORIES_MAX,
  type GpuMemoryItem,
  GpuMemoryKind,
  type GpuRegistered,
  Op,
  Outcome,
  type OutcomeItems,
  type PieceItems,
} from "../protocol/index.ts";
import { CopyFrame, outcomeOf, type RegisteredMemory } from "./copy-frame.ts";

/** Requests to copy that one engine may have at work; what comes beyond them is `full`. */
const COPIES_MAX = 64;
/** Until memory is given back anew for which there was no place among the jobs. */
const AGAIN_MS = 10;

export interface GpuLineParts {
  readonly gpus: Gpus;
  readonly native: Native;
  readonly stats: EngineStats;
  readonly clock: Clock;
  /** Nobody waits for this any more; it must end before the devices do. */
  inBackground(work: Promise<unknown>): void;
}

/** What one connection has of the GPUs: memory it registered, and copies under way. */
export class GpuLine {
  readonly #parts: GpuLineParts | null;
  readonly #memories = new Map<number, RegisteredMemory>();
  #opening = 0;
  #lastNumber = 0;
  #copies = 0;
  /** Our end of the socket on which descriptors come; null: there is none. */
  #channel: number | null = null;
  #closed = false;

  /** Without parts there is no device. */
  constructor(parts: GpuLineParts | null) {
    this.#parts = parts;
  }

  /** Requests to copy whose device is still at work. */
  get copies(): number {
    return this.#copies;
  }

  get hasDevices(): boolean {
    return this.#parts !== null;
  }

  devices(): readonly GpuDevice[] {
    return this.#parts?.gpus.devices() ?? [];
  }

  /** The client's end of a socket for descriptors, for the caller to close; null: it has one. */
  openChannel(): number | null {
    assert(this.#parts !== null, "descriptors are of use where there is a device");
    if (this.#channel !== null || this.#closed) return null;
    const [ours, theirs] = this.#parts.native.socketPair();
    this.#channel = ours;
    return theirs;
  }

  /** The NUMA node that its memories are near; null: none is known, or they are near several. */
  get node(): number | null {
    const devices = this.devices();
    const memories = [...this.#memories.values()];
    const nodes = new Set(memories.map(({ memory }) => devices[memory.device]?.numaNode ?? null));
    return nodes.size === 1 ? ([...nodes][0] ?? null) : null;
  }

  /** Descriptors are taken at once, in the order of the items that say they came before. */
  register(items: readonly GpuMemoryItem[]): Promise<GpuRegistered[]> {
    const taken = items.map((item) => ({
      item,
      fd: item.kind === GpuMemoryKind.descriptor ? this.#takeDescriptor() : null,
    }));
    return Promise.all(taken.map(({ item, fd }) => this.#registerOne(item, fd)));
  }

  #takeDescriptor(): number | null {
    if (this.#channel === null) return null;
    const received = this.#parts!.native.receiveFd(this.#channel, new Uint8Array(1));
    return typeof received === "string" ? null : received.fd;
  }

  async #registerOne(item: GpuMemoryItem, fd: number | null): Promise<GpuRegistered> {
    const refused = this.#judge(item, fd);
    if (refused !== null) {
      if (fd !== null) this.#parts!.native.closeFd(fd);
      return { outcome: refused, memory: 0, code: 0 };
    }
    const { gpus } = this.#parts!;
    const { index } = this.#deviceOf(item)!;
    const { allocationBytes, handle } = item;
    this.#opening++;
    const opened: GpuOpened =
      fd === null
        ? await gpus.importIpc(index, handle, allocationBytes)
        : await gpus.importFd(index, fd, allocationBytes);
    this.#opening--;
    if (!opened.ok) {
      const outcome = outcomeOf(opened);
      return { outcome, memory: 0, code: outcome === Outcome.device ? opened.code : 0 };
    }
    return this.#keep(item, opened.memory);
  }

  #deviceOf({ uuid }: GpuMemoryItem): GpuDevice | undefined {
    return this.devices().find((device) => Buffer.compare(device.uuid, uuid) === 0);
  }

  /** Null where the driver may be asked. */
  #judge(item: GpuMemoryItem, fd: number | null): Outcome | null {
    if (this.#parts === null) return Outcome.device;
    const { offset, bytes, allocationBytes, kind } = item;
    if (bytes === 0 || offset + bytes > allocationBytes) return Outcome.rejected;
    if (kind === GpuMemoryKind.descriptor && fd === null) return Outcome.rejected;
    if (this.#memories.size + this.#opening >= GPU_MEMORIES_MAX) return Outcome.full;
    const device = this.#deviceOf(item);
    if (device === undefined || allocationBytes > device.memoryBytes) return Outcome.rejected;
    return device.lost === null ? null : Outcome.device;
  }

  #keep({ offset, bytes }: GpuMemoryItem, memory: GpuMemory): GpuRegistered {
    if (this.#closed) {
      this.#parts!.inBackground(this.#giveBack(memory));
      return { outcome: Outcome.device, memory: 0, code: 0 };
    }
    const number = ++this.#lastNumber;
    this.#memories.set(number, { memory, offset, bytes });
    return { outcome: Outcome.ok, memory: number, code: 0 };
  }

  /** Resolves when copies that use it have ended; from now on it is unknown. */
  async unregister(number: number): Promise<Outcome> {
    const registered = this.#memories.get(number);
    if (registered === undefined) return Outcome.stale;
    this.#memories.delete(number);
    await this.#giveBack(registered.memory);
    return Outcome.ok;
  }

  /** Whatever the device is busy with: memory that stayed open would be lost to its engine. */
  async #giveBack(memory: GpuMemory): Promise<void> {
    const { gpus, clock } = this.#parts!;
    while (true) {
      const freed = await gpus.free(memory);
      if (freed.ok || freed.status !== "full") return;
      await sleep(clock, AGAIN_MS);
    }
  }

  /**
   * Copies pieces from memory to slots (`gpuStore`) or the other way round. Resolves when no device
   * touches any of the slots; each piece has its outcome then.
   */
  async copy(
    op: typeof Op.gpuStore | typeof Op.gpuLoad,
    holder: Holder,
    pieces: PieceItems,
    verify: boolean,
    out: OutcomeItems,
  ): Promise<void> {
    const memoryOf = (number: number) => this.#memories.get(number);
    const frame = new CopyFrame({ op, holder, memoryOf, verify }, pieces, out);
    if (this.#copies >= COPIES_MAX) {
      frame.refuse(Outcome.full);
      return;
    }
    this.#copies++;
    try {
      await frame.run(this.#parts?.gpus ?? null);
    } finally {
      this.#copies--;
    }
    if (this.#parts === null) return;
    const { stats } = this.#parts;
    if (op === Op.gpuStore) stats.gpuStoredBytes += frame.copiedBytes;
    else stats.gpuLoadedBytes += frame.copiedBytes;
    stats.gpuFailures += frame.failedJobs;
    stats.gpuLeakedSlots += frame.leakedSlots;
  }

  /** The connection is over. What it registered is given back when no copy uses it any more. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    if (this.#parts === null) return;
    const { native, inBackground } = this.#parts;
    for (const { memory } of this.#memories.values()) inBackground(this.#giveBack(memory));
    this.#memories.clear();
    if (this.#channel !== null) native.closeFd(this.#channel);
    this.#channel = null;
  }
}
