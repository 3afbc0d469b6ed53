import { assert, type Clock, messageOf, sleep } from "../core/index.ts";
import type {
  GpuDevice,
  GpuFault,
  GpuMemory,
  GpuOpened,
  GpuOutcome,
  GpuPiece,
  Gpus,
  Native,
} from "../native/index.ts";
import type { CopyEnd, Holder, LentBlock, LentSlot } from "../store/index.ts";
import {
  Feature,
  GPU_MEMORIES_MAX,
  type GpuMemoryItem,
  GpuMemoryKind,
  type GpuRegistered,
  Op,
  Outcome,
  type OutcomeItems,
  type PieceItems,
} from "./protocol/index.ts";
import type { EngineStats } from "./server-options.ts";

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

/** The part of a device's memory that an engine handed over. */
interface RegisteredMemory {
  readonly memory: GpuMemory;
  /** Where the part begins. */
  readonly offset: number;
  readonly bytes: number;
}

interface CopySettings {
  readonly op: typeof Op.gpuStore | typeof Op.gpuLoad;
  readonly holder: Holder;
  memoryOf(number: number): RegisteredMemory | undefined;
  /** Of a load: whether what lies in the slots is hashed. */
  readonly verify: boolean;
}

/** A slot that pieces of the frame name, lent until all of them are copied. */
interface Loan {
  readonly generation: number;
  readonly lent: LentSlot;
  readonly block: LentBlock | null;
  readonly pieces: number[];
  how: CopyEnd;
}

/** Pieces of one memory, which the device copies as one. */
interface Job {
  readonly memory: GpuMemory;
  readonly pieces: GpuPiece[];
  /** Their places in the frame. */
  readonly places: number[];
}

/** One request to copy: its slots are lent, its pieces go to the devices memory by memory. */
class CopyFrame {
  copiedBytes = 0;
  failedJobs = 0;
  leakedSlots = 0;
  readonly #settings: CopySettings;
  readonly #pieces: PieceItems;
  readonly #out: OutcomeItems;
  /** By slot. */
  readonly #loans = new Map<number, Loan>();
  readonly #jobs = new Map<number, Job>();

  constructor(settings: CopySettings, pieces: PieceItems, out: OutcomeItems) {
    this.#settings = settings;
    this.#pieces = pieces;
    this.#out = out;
    out.count = pieces.count;
  }

  /** Nothing is copied: slots that were to be filled are not what their writer takes them for. */
  refuse(outcome: Outcome): void {
    for (let i = 0; i < this.#pieces.count; i++) {
      const loan = this.#lend(i);
      this.#out.outcome[i] = loan === null ? Outcome.stale : outcome;
      if (loan !== null) loan.how = "failed";
    }
    this.#endLoans();
  }

  async run(gpus: Gpus | null): Promise<void> {
    for (let i = 0; i < this.#pieces.count; i++) this.#out.outcome[i] = this.#enter(i);
    if (gpus === null) {
      this.#endLoans();
      return;
    }
    const copies = [...this.#jobs.values()].map((job) => this.#copy(gpus, job));
    const checks = [...this.#loans.values()].map((loan) => this.#check(loan));
    try {
      await Promise.all([...copies, ...checks]);
    } catch (error) {
      // Where a device is at work is not known: nobody may touch these slots again.
      for (const loan of this.#loans.values()) loan.how = "leaked";
      throw error;
    } finally {
      this.#endLoans();
    }
  }

  /** `ok` where the piece goes to a device. */
  #enter(i: number): Outcome {
    const { slotOffset, memoryOffset, bytes, memory } = this.#pieces;
    const loan = this.#lend(i);
    if (loan === null) return Outcome.stale;
    const found = this.#settings.memoryOf(memory[i]!);
    const length = bytes[i]!;
    const isWithin =
      found !== undefined &&
      length > 0 &&
      slotOffset[i]! + length <= loan.lent.bytes &&
      memoryOffset[i]! + length <= found.bytes;
    if (!isWithin) {
      loan.how = "failed";
      return Outcome.rejected;
    }
    let job = this.#jobs.get(found.memory.id);
    if (job === undefined) {
      job = { memory: found.memory, pieces: [], places: [] };
      this.#jobs.set(found.memory.id, job);
    }
    job.places.push(i);
    job.pieces.push({
      regionOffset: loan.lent.offset + slotOffset[i]!,
      memoryOffset: found.offset + memoryOffset[i]!,
      bytes: length,
    });
    return Outcome.ok;
  }

  #lend(i: number): Loan | null {
    const { holder, op } = this.#settings;
    const slot = this.#pieces.slot[i]!;
    const generation = this.#pieces.generation[i]!;
    const known = this.#loans.get(slot);
    if (known !== undefined) {
      if (known.generation !== generation) return null;
      known.pieces.push(i);
      return known;
    }
    const block = op === Op.gpuLoad ? holder.lendRead(this.#pieces, i) : null;
    const lent = op === Op.gpuLoad ? block : holder.lendWritten(this.#pieces, i);
    if (lent === null) return null;
    const loan: Loan = { generation, lent, block, pieces: [i], how: "done" };
    this.#loans.set(slot, loan);
    return loan;
  }

  async #copy(gpus: Gpus, { memory, pieces, places }: Job): Promise<void> {
    const { op } = this.#settings;
    const isStore = op === Op.gpuStore;
    const done: GpuOutcome = await (isStore
      ? gpus.fromGpu(memory, pieces)
      : gpus.toGpu(memory, pieces));
    if (done.ok) {
      for (const { bytes } of pieces) this.copiedBytes += bytes;
      return;
    }
    this.failedJobs++;
    for (const i of places) {
      this.#out.outcome[i] = outcomeOf(done);
      const loan = this.#loans.get(this.#pieces.slot[i]!)!;
      if (done.leaked) loan.how = "leaked";
      else if (loan.how === "done") loan.how = "failed";
    }
  }

  /** While the device copies, since both read the same bytes. */
  async #check({ block, pieces }: Loan): Promise<void> {
    if (!this.#settings.verify || block === null || (await block.isWhole())) return;
    for (const i of pieces) {
      if (this.#out.outcome[i] === Outcome.ok) this.#out.outcome[i] = Outcome.corrupt;
    }
  }

  #endLoans(): void {
    for (const loan of this.#loans.values()) {
      if (loan.how === "leaked") this.leakedSlots++;
      loan.lent.end(loan.how);
    }
    this.#loans.clear();
  }
}

/** What an engine is told of a job that failed. */
function outcomeOf({ status }: GpuFault): Outcome {
  if (status === "full") return Outcome.full;
  return status === "out_of_range" ? Outcome.rejected : Outcome.device;
}

export interface GpuPlaneOptions {
  /** Null: the agent copies nothing; engines use the arena's mapping by themselves. */
  readonly gpus: Gpus | null;
  readonly native: Native;
  readonly stats: EngineStats;
  readonly clock: Clock;
  log(level: "info" | "warn" | "error", text: string): void;
}

/** What all connections share of the GPUs. */
export class GpuPlane {
  readonly #gpus: Gpus | null;
  readonly #options: GpuPlaneOptions;
  readonly #parts: GpuLineParts | null;
  /** Of connections that are over, those whose copies are not. */
  readonly #leaving = new Set<GpuLine>();

  constructor(options: GpuPlaneOptions) {
    const { gpus, native, stats, clock } = options;
    this.#gpus = gpus?.info.state === "ready" ? gpus : null;
    this.#options = options;
    const inBackground = (work: Promise<unknown>) => this.#watch(work);
    const parts = { native, stats, clock, inBackground };
    this.#parts = this.#gpus === null ? null : { ...parts, gpus: this.#gpus };
  }

  /** What the hello's answer may say. */
  get features(): number {
    const isThere = this.#gpus?.devices().some((device) => device.lost === null);
    return isThere ? Feature.gpu : 0;
  }

  get hasBatches(): boolean {
    return this.#gpus?.info.hasBatches === true;
  }

  /**
   * Slots that a device may touch though no connection holds them: copies for connections that are
   * over (each counts once), and what cannot be stopped.
   */
  get orphans(): number {
    let copies = 0;
    for (const line of this.#leaving) {
      if (line.copies === 0) this.#leaving.delete(line);
      copies += line.copies;
    }
    return copies + this.#options.stats.gpuLeakedSlots;
  }

  open(): GpuLine {
    return new GpuLine(this.#parts);
  }

  close(line: GpuLine): void {
    line.close();
    if (line.copies > 0) this.#leaving.add(line);
  }

  #watch(work: Promise<unknown>): void {
    work.catch((error) => this.#options.log("error", `GPU memory: ${messageOf(error)}`));
  }
}
