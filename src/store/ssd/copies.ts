import { NO_NODE, type NodeId, yieldToLoop } from "../../core/index.ts";
import { NodeFlag, Tier } from "../blocks/index.ts";
import type { BlockWriter } from "./block-writer.ts";
import type { HangDetector } from "./ssd-health.ts";
import type { SsdParts } from "./ssd-parts.ts";

/** Result of writing all of RAM to SSD. */
export interface PersistReport {
  readonly written: number;
  readonly skipped: number;
  /** Whether all blocks on SSD survive a power loss. */
  readonly durable: boolean;
}

/** Blocks examined before the loop yields. */
const LOOKS_A_SLICE = 2_048;
/** Blocks with a pending copy that are examined per tick, and per writer that needs room. */
const PENDING_A_TICK = 1_024;
const PENDING_AT_ONCE = 64;

interface CopiesOptions {
  readonly writer: BlockWriter;
  readonly hang: HangDetector;
  /** Whether blocks are currently written to SSD. */
  takesBlocks(): boolean;
  /** Queues a block for writing; true also if it is queued already. False if it is refused. */
  write(node: NodeId): boolean;
}

/**
 * Copies that are made under every write policy: of retained blocks as soon as possible, so that
 * they survive and may leave RAM; of blocks that a command makes durable; and of all of RAM at
 * shutdown. Transient blocks are never copied.
 */
export class Copies {
  readonly #parts: SsdParts;
  readonly #options: CopiesOptions;
  /**
   * Retained blocks that became RAM-only, with their generations. Some may have been written since.
   */
  readonly #pending = new Map<NodeId, number>();

  constructor(parts: SsdParts, options: CopiesOptions) {
    this.#parts = parts;
    this.#options = options;
    const { table } = parts;
    // Blocks retained before the tier was opened. Recovery may have found some of them on SSD.
    if (table.keptInRamAloneBytes === 0) return;
    let node = table.nextOn(NO_NODE, Tier.ram);
    for (; node !== NO_NODE; node = table.nextOn(node, Tier.ram)) this.addPending(node);
  }

  /** Call when a retained block is in RAM and not on SSD. Does not change the table. */
  addPending(node: NodeId): void {
    this.#pending.set(node, this.#parts.table.generationOf(node));
  }

  /** Periodic: queues pending copies as far as they are accepted. */
  queuePending(): void {
    this.#queuePending(PENDING_A_TICK);
  }

  /** Queues a few pending copies for a writer that needs room in RAM. */
  queueSomePending(): void {
    this.#queuePending(PENDING_AT_ONCE);
  }

  #queuePending(looksMax: number): void {
    if (!this.#options.takesBlocks()) return;
    let looks = Math.min(looksMax, this.#pending.size);
    for (const [node, generation] of this.#pending) {
      if (looks-- === 0) return;
      this.#pending.delete(node);
      if (!this.#isOwed(node, generation)) continue;
      // Stays pending until it is written, since a write may fail. Move it to the end of the list.
      this.#pending.set(node, generation);
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
   * Writes these blocks and their retained ancestors to SSD. One entry per block: true if it is on
   * SSD. False if that is not possible: the block is transient, not in RAM, or refused. Waits for
   * room in the queue, but not for a hung disk and not after `signal` has fired. Call `makeDurable`
   * afterwards to survive a power loss.
   */
  async secure(nodes: readonly NodeId[], signal?: AbortSignal): Promise<boolean[]> {
    const { table } = this.#parts;
    const { writer } = this.#options;
    const wanted = [...nodes, ...this.#pendingAncestors(nodes)];
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

  /** Retained ancestors that are in RAM only and not among `nodes`. */
  #pendingAncestors(nodes: readonly NodeId[]): NodeId[] {
    const { table } = this.#parts;
    const seen = new Set(nodes);
    const pending: NodeId[] = [];
    for (const node of nodes) {
      let step = table.parentOf(node);
      for (; step !== NO_NODE && !seen.has(step); step = table.parentOf(step)) {
        seen.add(step);
        if (this.#isOwed(step, table.generationOf(step))) pending.push(step);
      }
    }
    return pending;
  }

  /**
   * Writes all blocks that were in RAM at the call to SSD, as far as allowed. Returns the number of
   * refused blocks. Does not wait for a hung disk.
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

  /** Queues the block if it still needs a copy; false if it is refused. */
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

/** False if the wait was given up. */
type Wait = (work: Promise<unknown>) => Promise<boolean>;
