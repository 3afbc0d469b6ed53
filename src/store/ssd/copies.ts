import { NO_NODE, type NodeId, yieldToLoop } from "../../core/index.ts";
import { NodeFlag, Tier } from "../blocks/index.ts";
import type { BlockWriter } from "./block-writer.ts";
import type { HangWatch } from "./ssd-health.ts";
import type { SsdParts } from "./ssd-parts.ts";

/** What became of the wish to have all of RAM on SSD. */
export interface PersistReport {
  readonly written: number;
  readonly skipped: number;
  /** Everything that is on SSD survives a loss of power. */
  readonly durable: boolean;
}

/** Blocks looked at before other work gets its turn. */
const LOOKS_A_SLICE = 2_048;
/** Blocks that are owed a copy, looked at in one tick and for one writer that wants room. */
const OWED_A_TICK = 1_024;
const OWED_AT_ONCE = 64;

export interface CopiesOptions {
  readonly writer: BlockWriter;
  readonly hang: HangWatch;
  /** Whether blocks are written at all just now. */
  takesBlocks(): boolean;
  /** Queues a block of RAM to be written, or has it queued; false where nothing takes it. */
  write(node: NodeId): boolean;
}

/**
 * Copies that are made whatever the write policy: of what is kept, as soon as it can be, so that it
 * may leave RAM and survives; of blocks that somebody wants to be safe; of all of RAM for a stop.
 * Transient blocks are never copied.
 */
export class Copies {
  readonly #parts: SsdParts;
  readonly #options: CopiesOptions;
  /** Kept blocks that came to be in RAM alone, with their generations; some are written by now. */
  readonly #owed = new Map<NodeId, number>();

  constructor(parts: SsdParts, options: CopiesOptions) {
    this.#parts = parts;
    this.#options = options;
    const { table } = parts;
    // What was kept before there was this tier; recovery may find that some of it is on SSD.
    if (table.keptInRamAloneBytes === 0) return;
    let node = table.nextOn(NO_NODE, Tier.ram);
    for (; node !== NO_NODE; node = table.nextOn(node, Tier.ram)) this.owe(node);
  }

  /** A kept block has come to be in RAM and not on SSD. Changes nothing of the table. */
  owe(node: NodeId): void {
    this.#owed.set(node, this.#parts.table.generationOf(node));
  }

  /** For a tick: queues what is owed, as far as it is taken. */
  makeOwed(): void {
    this.#makeOwed(OWED_A_TICK);
  }

  /** For somebody who wants room in RAM: a few of what is owed go first. */
  makeSomeOwed(): void {
    this.#makeOwed(OWED_AT_ONCE);
  }

  #makeOwed(looksMax: number): void {
    if (!this.#options.takesBlocks()) return;
    let looks = Math.min(looksMax, this.#owed.size);
    for (const [node, generation] of this.#owed) {
      if (looks-- === 0) return;
      this.#owed.delete(node);
      if (!this.#isOwed(node, generation)) continue;
      // Until it is there: a write may fail. What was looked at goes to the end of the line.
      this.#owed.set(node, generation);
      if (!this.#options.writer.isQueued(node) && !this.#options.write(node)) return;
    }
  }

  #isOwed(node: NodeId, generation: number): boolean {
    const { table } = this.#parts;
    if (!table.isLive(node, generation) || !table.isKept(node)) return false;
    const isInRamAlone = table.isResident(node, Tier.ram) && !table.isResident(node, Tier.ssd);
    return isInRamAlone && !this.#isTransient(node);
  }

  /**
   * Has these blocks on SSD now, and what is kept above them; true for each that is there when it
   * is over. False where it cannot be: transient, in RAM no more, or the tier does not take it. It
   * waits for room in the queue, but for no disk that hangs, and not when `signal` has gone off. To
   * be safe from a loss of power they need `makeDurable` after that.
   */
  async secure(nodes: readonly NodeId[], signal?: AbortSignal): Promise<boolean[]> {
    const { table } = this.#parts;
    const { writer } = this.#options;
    const wanted = [...nodes, ...this.#owedAbove(nodes)];
    const generations = wanted.map((node) => table.generationOf(node));
    const isThere = (i: number) =>
      table.isLive(wanted[i]!, generations[i]!) && table.isResident(wanted[i]!, Tier.ssd);
    const aborted = Promise.withResolvers<false>();
    const onAbort = () => aborted.resolve(false);
    signal?.addEventListener("abort", onAbort);
    if (signal?.aborted === true) onAbort();
    const wait: Wait = (work) => Promise.race([this.#orHung(work), aborted.promise]);
    for (let i = 0; i < wanted.length && signal?.aborted !== true; i++) {
      if (!isThere(i)) await this.#queue(wanted[i]!, generations[i]!, wait);
      if (i % LOOKS_A_SLICE === LOOKS_A_SLICE - 1) await yieldToLoop();
    }
    const queued = wanted.filter((node, i) => !isThere(i) && writer.isQueued(node));
    await wait(Promise.all(queued.map((node) => writer.over(node))));
    signal?.removeEventListener("abort", onAbort);
    return nodes.map((_, i) => isThere(i));
  }

  /** Ancestors, none of them among `nodes`, that are kept and in RAM alone. */
  #owedAbove(nodes: readonly NodeId[]): NodeId[] {
    const { table } = this.#parts;
    const seen = new Set(nodes);
    const owed: NodeId[] = [];
    for (const node of nodes) {
      let step = table.parentOf(node);
      for (; step !== NO_NODE && !seen.has(step); step = table.parentOf(step)) {
        seen.add(step);
        if (this.#isOwed(step, table.generationOf(step))) owed.push(step);
      }
    }
    return owed;
  }

  /**
   * Has everything in RAM on SSD that may be there: as far as it was there when it asked. How many
   * nothing takes. It does not wait for a disk that hangs.
   */
  async persist(): Promise<number> {
    const { table } = this.#parts;
    let skipped = 0;
    let node = table.nextOn(NO_NODE, Tier.ram);
    for (let looks = 1; node !== NO_NODE; node = table.nextOn(node, Tier.ram), looks++) {
      const generation = table.generationOf(node);
      const isWanted = !table.isResident(node, Tier.ssd) && !this.#isTransient(node);
      if (isWanted && !(await this.#queue(node, generation, this.#orHung))) skipped++;
      if (looks % LOOKS_A_SLICE === 0) await yieldToLoop();
    }
    await this.#orHung(this.#options.writer.queuedOver());
    return skipped;
  }

  readonly #orHung: Wait = async (work) =>
    (await this.#options.hang.orHung(work.then(() => true))) === true;

  /** Queues the block where it still wants to be; false where nothing takes it. */
  async #queue(node: NodeId, generation: number, wait: Wait): Promise<boolean> {
    const { table } = this.#parts;
    const { writer, takesBlocks, write } = this.#options;
    const isThere = () => table.isLive(node, generation) && table.isResident(node, Tier.ram);
    const isWanted = () => isThere() && !writer.isQueued(node) && takesBlocks();
    while (isWanted() && !writer.mayTake(node) && writer.queuedBlocks > 0) {
      if (!(await wait(writer.oneSettled()))) break;
    }
    return !isThere() || table.isResident(node, Tier.ssd) || write(node);
  }

  #isTransient(node: NodeId): boolean {
    return this.#parts.table.hasFlag(node, NodeFlag.transient);
  }
}

/** False where nobody waits for the work any longer. */
type Wait = (work: Promise<unknown>) => Promise<boolean>;
