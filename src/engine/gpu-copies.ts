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
import type { CopyEnd, CopySlot, CopySource, EngineSession } from "../store/index.ts";
import * as protocol from "./protocol/index.ts";
import type { EngineStats } from "./server-options.ts";

/**
 * Maximum copy requests of a connection in progress. Pieces of further requests get the outcome
 * `full`.
 */
const COPIES_MAX = 64;
/** Delay in ms before the agent tries again to free memory, if the device's job queue was full. */
const AGAIN_MS = 10;

export interface GpuConnectionContext {
  readonly gpus: Gpus;
  readonly native: Native;
  readonly stats: EngineStats;
  readonly clock: Clock;
  /** Registers work that no caller awaits. The agent waits for it before the devices close. */
  inBackground(work: Promise<unknown>): void;
}

/** GPU state of one connection: its registered memory and its copies in progress. */
export class GpuConnection {
  readonly #parts: GpuConnectionContext | null;
  readonly #memories = new Map<number, RegisteredMemory>();
  #opening = 0;
  #lastNumber = 0;
  #copies = 0;
  /**
   * The agent's end of the socket on which the client sends file descriptors. Null if none is open.
   */
  #channel: number | null = null;
  #closed = false;

  /** `parts` is null if this agent has no GPU. */
  constructor(parts: GpuConnectionContext | null) {
    this.#parts = parts;
  }

  /** Number of copy requests that a GPU is working on. */
  get copies(): number {
    return this.#copies;
  }

  get hasDevices(): boolean {
    return this.#parts !== null;
  }

  devices(): readonly GpuDevice[] {
    return this.#parts?.gpus.devices() ?? [];
  }

  /**
   * Opens a socket for file descriptors. Returns the client's end, which the caller closes. Null if
   * the client already has one.
   */
  openChannel(): number | null {
    assert(this.#parts !== null, "descriptors require a device");
    if (this.#channel !== null || this.#closed) return null;
    const [ours, theirs] = this.#parts.native.socketPair();
    this.#channel = ours;
    return theirs;
  }

  /** NUMA node of the registered memory. Null if it is unknown or differs between memories. */
  get node(): number | null {
    const devices = this.devices();
    const memories = [...this.#memories.values()];
    const nodes = new Set(memories.map(({ memory }) => devices[memory.device]?.numaNode ?? null));
    return nodes.size === 1 ? ([...nodes][0] ?? null) : null;
  }

  /**
   * Registers memory. Its file descriptors are received before this method returns, in the order of
   * the items that announce them.
   */
  register(items: readonly protocol.GpuMemoryItem[]): Promise<protocol.GpuRegistered[]> {
    const taken = items.map((item) => ({
      item,
      fd: item.kind === protocol.GpuMemoryKind.descriptor ? this.#takeDescriptor() : null,
    }));
    return Promise.all(taken.map(({ item, fd }) => this.#registerOne(item, fd)));
  }

  #takeDescriptor(): number | null {
    if (this.#channel === null) return null;
    const received = this.#parts!.native.receiveFd(this.#channel, new Uint8Array(1));
    return typeof received === "string" ? null : received.fd;
  }

  async #registerOne(
    item: protocol.GpuMemoryItem,
    fd: number | null,
  ): Promise<protocol.GpuRegistered> {
    const refused = this.#refusalOf(item, fd);
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
      return { outcome, memory: 0, code: outcome === protocol.Outcome.device ? opened.code : 0 };
    }
    return this.#keep(item, opened.memory);
  }

  #deviceOf({ uuid }: protocol.GpuMemoryItem): GpuDevice | undefined {
    return this.devices().find((device) => Buffer.compare(device.uuid, uuid) === 0);
  }

  /** Returns why the item cannot be registered, or null if the GPU driver may be called. */
  #refusalOf(item: protocol.GpuMemoryItem, fd: number | null): protocol.Outcome | null {
    if (this.#parts === null) return protocol.Outcome.device;
    const { offset, bytes, allocationBytes, kind } = item;
    if (bytes === 0 || offset + bytes > allocationBytes) return protocol.Outcome.rejected;
    if (kind === protocol.GpuMemoryKind.descriptor && fd === null) return protocol.Outcome.rejected;
    if (this.#memories.size + this.#opening >= protocol.GPU_MEMORIES_MAX)
      return protocol.Outcome.full;
    const device = this.#deviceOf(item);
    if (device === undefined || allocationBytes > device.memoryBytes)
      return protocol.Outcome.rejected;
    return device.lost === null ? null : protocol.Outcome.device;
  }

  #keep({ offset, bytes }: protocol.GpuMemoryItem, memory: GpuMemory): protocol.GpuRegistered {
    if (this.#closed) {
      this.#parts!.inBackground(this.#free(memory));
      return { outcome: protocol.Outcome.device, memory: 0, code: 0 };
    }
    const number = ++this.#lastNumber;
    this.#memories.set(number, { memory, offset, bytes });
    return { outcome: protocol.Outcome.ok, memory: number, code: 0 };
  }

  /**
   * Unregisters the memory with this number. The number is invalid at once; the promise resolves
   * when the copies that use the memory have ended.
   */
  async unregister(number: number): Promise<protocol.Outcome> {
    const registered = this.#memories.get(number);
    if (registered === undefined) return protocol.Outcome.stale;
    this.#memories.delete(number);
    await this.#free(registered.memory);
    return protocol.Outcome.ok;
  }

  /**
   * Frees the memory, with retries until the driver has done so. The engine could never reuse
   * memory that stayed open.
   */
  async #free(memory: GpuMemory): Promise<void> {
    const { gpus, clock } = this.#parts!;
    while (true) {
      const freed = await gpus.free(memory);
      if (freed.ok || freed.status !== "full") return;
      await sleep(clock, AGAIN_MS);
    }
  }

  /**
   * Copies pieces from memory to slots (`gpuStore`) or back. Resolves with an outcome per piece
   * when no device accesses the slots any more.
   */
  async copy(
    op: typeof protocol.Op.gpuStore | typeof protocol.Op.gpuLoad,
    holder: EngineSession,
    pieces: protocol.PieceItems,
    verify: boolean,
    out: protocol.OutcomeItems,
  ): Promise<void> {
    const memoryOf = (number: number) => this.#memories.get(number);
    const frame = new CopyFrame({ op, holder, memoryOf, verify }, pieces, out);
    if (this.#copies >= COPIES_MAX) {
      frame.refuse(protocol.Outcome.full);
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
    if (op === protocol.Op.gpuStore) stats.gpuStoredBytes += frame.copiedBytes;
    else stats.gpuLoadedBytes += frame.copiedBytes;
    stats.gpuFailures += frame.failedJobs;
    stats.gpuLeakedSlots += frame.leakedSlots;
  }

  /**
   * Frees each registered memory as soon as no copy uses it. Called when the connection has ended.
   */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    if (this.#parts === null) return;
    const { native, inBackground } = this.#parts;
    for (const { memory } of this.#memories.values()) inBackground(this.#free(memory));
    this.#memories.clear();
    if (this.#channel !== null) native.closeFd(this.#channel);
    this.#channel = null;
  }
}

/** The registered part of an allocation on a GPU. */
interface RegisteredMemory {
  readonly memory: GpuMemory;
  /** Offset in bytes of the registered part in the allocation. */
  readonly offset: number;
  readonly bytes: number;
}

interface CopySettings {
  readonly op: typeof protocol.Op.gpuStore | typeof protocol.Op.gpuLoad;
  readonly holder: EngineSession;
  memoryOf(number: number): RegisteredMemory | undefined;
  /** True if a load hashes the slots' content to verify it. */
  readonly verify: boolean;
}

/**
 * A slot named by pieces of the frame. The agent keeps a reference to it until all these pieces are
 * copied.
 */
interface SlotReference {
  readonly generation: number;
  readonly lent: CopySlot;
  readonly block: CopySource | null;
  readonly pieces: number[];
  how: CopyEnd;
}

/** Pieces that lie in the same registered memory. The device copies them together. */
interface Job {
  readonly memory: GpuMemory;
  readonly pieces: GpuPiece[];
  /** Positions of these pieces in the frame. */
  readonly places: number[];
}

/** One copy request. References its slots and starts one copy job per registered memory. */
class CopyFrame {
  copiedBytes = 0;
  failedJobs = 0;
  leakedSlots = 0;
  readonly #settings: CopySettings;
  readonly #pieces: protocol.PieceItems;
  readonly #out: protocol.OutcomeItems;
  /** References by slot number. */
  readonly #references = new Map<number, SlotReference>();
  readonly #jobs = new Map<number, Job>();

  constructor(settings: CopySettings, pieces: protocol.PieceItems, out: protocol.OutcomeItems) {
    this.#settings = settings;
    this.#pieces = pieces;
    this.#out = out;
    out.count = pieces.count;
  }

  /**
   * Gives every piece this outcome. Slots that were to be filled are marked failed, because they do
   * not contain the data that their writer expects.
   */
  refuse(outcome: protocol.Outcome): void {
    for (let i = 0; i < this.#pieces.count; i++) {
      const reference = this.#referenceSlot(i);
      this.#out.outcome[i] = reference === null ? protocol.Outcome.stale : outcome;
      if (reference !== null) reference.how = "failed";
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
    const checks = [...this.#references.values()].map((reference) => this.#check(reference));
    try {
      await Promise.all([...copies, ...checks]);
    } catch (error) {
      // The state of the device's copies is unknown, so these slots must never be reused.
      for (const reference of this.#references.values()) reference.how = "leaked";
      throw error;
    } finally {
      this.#endLoans();
    }
  }

  /**
   * Assigns a piece to the copy job of its memory. Returns `ok`, or why the piece cannot be copied.
   */
  #enter(i: number): protocol.Outcome {
    const { slotOffset, memoryOffset, bytes, memory } = this.#pieces;
    const reference = this.#referenceSlot(i);
    if (reference === null) return protocol.Outcome.stale;
    const found = this.#settings.memoryOf(memory[i]);
    const length = bytes[i];
    const isWithin =
      found !== undefined &&
      length > 0 &&
      slotOffset[i] + length <= reference.lent.bytes &&
      memoryOffset[i] + length <= found.bytes;
    if (!isWithin) {
      reference.how = "failed";
      return protocol.Outcome.rejected;
    }
    let job = this.#jobs.get(found.memory.id);
    if (job === undefined) {
      job = { memory: found.memory, pieces: [], places: [] };
      this.#jobs.set(found.memory.id, job);
    }
    job.places.push(i);
    job.pieces.push({
      regionOffset: reference.lent.offset + slotOffset[i],
      memoryOffset: found.offset + memoryOffset[i],
      bytes: length,
    });
    return protocol.Outcome.ok;
  }

  #referenceSlot(i: number): SlotReference | null {
    const { holder, op } = this.#settings;
    const slot = this.#pieces.slot[i];
    const generation = this.#pieces.generation[i];
    const known = this.#references.get(slot);
    if (known !== undefined) {
      if (known.generation !== generation) return null;
      known.pieces.push(i);
      return known;
    }
    const block = op === protocol.Op.gpuLoad ? holder.copySource(this.#pieces, i) : null;
    const lent = op === protocol.Op.gpuLoad ? block : holder.copyTarget(this.#pieces, i);
    if (lent === null) return null;
    const reference: SlotReference = { generation, lent, block, pieces: [i], how: "done" };
    this.#references.set(slot, reference);
    return reference;
  }

  async #copy(gpus: Gpus, { memory, pieces, places }: Job): Promise<void> {
    const { op } = this.#settings;
    const isStore = op === protocol.Op.gpuStore;
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
      const reference = this.#references.get(this.#pieces.slot[i])!;
      if (done.leaked) reference.how = "leaked";
      else if (reference.how === "done") reference.how = "failed";
    }
  }

  /** Hashes a slot's content while the device copies it; both only read the bytes. */
  async #check({ block, pieces }: SlotReference): Promise<void> {
    if (!this.#settings.verify || block === null || (await block.isWhole())) return;
    for (const i of pieces) {
      if (this.#out.outcome[i] === protocol.Outcome.ok)
        this.#out.outcome[i] = protocol.Outcome.corrupt;
    }
  }

  #endLoans(): void {
    for (const reference of this.#references.values()) {
      if (reference.how === "leaked") this.leakedSlots++;
      reference.lent.end(reference.how);
    }
    this.#references.clear();
  }
}

/** Converts a failure of a copy job to the outcome that the engine receives. */
function outcomeOf({ status }: GpuFault): protocol.Outcome {
  if (status === "full") return protocol.Outcome.full;
  return status === "out_of_range" ? protocol.Outcome.rejected : protocol.Outcome.device;
}

export interface GpuPlaneOptions {
  /**
   * GPUs that the agent copies with. Null: the agent makes no copies, and engines use their own
   * mapping of the arena.
   */
  readonly gpus: Gpus | null;
  readonly native: Native;
  readonly stats: EngineStats;
  readonly clock: Clock;
  log(level: "info" | "warn" | "error", text: string): void;
}

/** GPU state shared by all connections. */
export class GpuPlane {
  readonly #gpus: Gpus | null;
  readonly #options: GpuPlaneOptions;
  readonly #parts: GpuConnectionContext | null;
  /** Ended connections with copies still in progress. */
  readonly #leaving = new Set<GpuConnection>();

  constructor(options: GpuPlaneOptions) {
    const { gpus, native, stats, clock } = options;
    this.#gpus = gpus?.info.state === "ready" ? gpus : null;
    this.#options = options;
    const inBackground = (work: Promise<unknown>) => this.#watch(work);
    const parts = { native, stats, clock, inBackground };
    this.#parts = this.#gpus === null ? null : { ...parts, gpus: this.#gpus };
  }

  /** GPU feature bits for HELLO's reply. */
  get features(): number {
    const isThere = this.#gpus?.devices().some((device) => device.lost === null);
    return isThere ? protocol.Feature.gpu : 0;
  }

  get hasBatches(): boolean {
    return this.#gpus?.info.hasBatches === true;
  }

  /**
   * Slots that a GPU may still access although no connection holds them: one per copy of an ended
   * connection, and the slots of copies that cannot be stopped.
   */
  get orphans(): number {
    let copies = 0;
    for (const connection of this.#leaving) {
      if (connection.copies === 0) this.#leaving.delete(connection);
      copies += connection.copies;
    }
    return copies + this.#options.stats.gpuLeakedSlots;
  }

  open(): GpuConnection {
    return new GpuConnection(this.#parts);
  }

  close(connection: GpuConnection): void {
    connection.close();
    if (connection.copies > 0) this.#leaving.add(connection);
  }

  #watch(work: Promise<unknown>): void {
    work.catch((error) => this.#options.log("error", `GPU memory: ${messageOf(error)}`));
  }
}
