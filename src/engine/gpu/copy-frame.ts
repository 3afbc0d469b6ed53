import type { GpuFault, GpuMemory, GpuOutcome, GpuPiece, Gpus } from "../../native/index.ts";
import type { CopyEnd, Holder, LentBlock, LentSlot } from "../../store/index.ts";
import { Op, Outcome, type OutcomeItems, type PieceItems } from "../protocol/index.ts";

/** The part of a device's memory that an engine handed over. */
export interface RegisteredMemory {
  readonly memory: GpuMemory;
  /** Where the part begins. */
  readonly offset: number;
  readonly bytes: number;
}

export interface CopySettings {
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
export class CopyFrame {
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
export function outcomeOf({ status }: GpuFault): Outcome {
  if (status === "full") return Outcome.full;
  return status === "out_of_range" ? Outcome.rejected : Outcome.device;
}
