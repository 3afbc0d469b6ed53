import { NO_NODE, type NodeId, yieldToLoop } from "../../core/index.ts";
import { NodeFlag, Tier } from "../blocks/index.ts";
import type { BlockWriter } from "./block-writer.ts";
import type { HangDetector } from "./ssd-health.ts";
import type { SsdParts } from "./ssd-parts.ts";

/** Result of writing all blocks in RAM to SSD. */
export interface PersistReport {
  readonly written: number;
  readonly skipped: number;
  /** True if all blocks on SSD survive a power loss. */
  readonly durable: boolean;
}

/** Blocks examined before the event loop is yielded to. */
const LOOKS_A_SLICE = 2_048;
/**
 * Maximum number of blocks awaiting a copy that are examined per periodic run, and per writer that
 * needs room in RAM.
 */
const PENDING_A_TICK = 1_024;
const PENDING_AT_ONCE = 64;

interface CopiesOptions {
  readonly writer: BlockWriter;
  readonly hang: HangDetector;
  /** Returns whether blocks are written to SSD at present. */
  takesBlocks(): boolean;
  /**
   * Queues a block for writing. Returns true if it is queued, now or already; false if it is
   * refused.
   */
  write(node: NodeId): boolean;
}

/**
 * Makes the copies on SSD that do not depend on the write policy: of pinned and leased blocks as
 * soon as possible, so that they survive and may leave RAM; of blocks that a command makes durable;
 * and of all blocks in RAM at shutdown. Never copies transient blocks.
 */
export class Copies {
  readonly #parts: SsdParts;
  readonly #options: CopiesOptions;
  /**
   * Pinned and leased blocks that await a copy because only RAM had them, with the generations of
   * their nodes. Some may have been written since.
   */
  readonly #pending = new Map<NodeId, number>();

  constructor(parts: SsdParts, options: CopiesOptions) {
    this.#parts = parts;
    this.#options = options;
    const { table } = parts;
    // Queue copies of the blocks that were pinned before the SSD tier was opened, except those that
    // recovery found on SSD.
    if (table.keptInRamAloneBytes === 0) return;
    let node = table.nextOn(NO_NODE, Tier.ram);
    for (; node !== NO_NODE; node = table.nextOn(node, Tier.ram)) this.addPending(node);
  }

  /**
   * Adds a pinned or leased block that is in RAM and not on SSD to the blocks awaiting a copy. Does
   * not change the table.
   */
  addPending(node: NodeId): void {
    this.#pending.set(node, this.#parts.table.generationOf(node));
  }

  /** Queues blocks awaiting a copy until the writer refuses one. Called periodically. */
  queuePending(): void {
    this.#queuePending(PENDING_A_TICK);
  }

  /** Queues a few blocks awaiting a copy. Called for a writer that needs room in RAM. */
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
      // Move the block to the end of the list. It stays listed until it is written, since a write
      // may fail.
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
   * Writes these blocks and their pinned ancestors to SSD. Returns one entry per block: true if the
   * block is on SSD; false if it is transient, not in RAM, or refused. Waits for room in the queue,
   * but not for a hung disk and not after `signal` has fired. Call `makeDurable` afterwards so that
   * the blocks survive a power loss.
   */
  async secure(nodes: readonly NodeId[], signal?: AbortSignal): Promise<boolean[]> {
    const { table } = this.#parts;
    const { writer } = this.#options;
    const wanted = [...nodes, ...this.#pendingAncestors(nodes)];
    const generations = wanted.map((node) => table.generationOf(node));
    const isThere = (i: number) =>
      table.isLive(wanted[i], generations[i]) && table.isResident(wanted[i], Tier.ssd);
    const aborted = Promise.withResolvers<false>();
    const onAbort = () => aborted.resolve(false);
    signal?.addEventListener("abort", onAbort);
    if (signal?.aborted === true) onAbort();
    const wait: Wait = (work) => Promise.race([this.#orHung(work), aborted.promise]);
    for (let i = 0; i < wanted.length && signal?.aborted !== true; i++) {
      if (!isThere(i)) await this.#queue(wanted[i], generations[i], wait);
      if (i % LOOKS_A_SLICE === LOOKS_A_SLICE - 1) await yieldToLoop();
    }
    const queued = wanted.filter((node, i) => !isThere(i) && writer.isQueued(node));
    await wait(Promise.all(queued.map((node) => writer.over(node))));
    signal?.removeEventListener("abort", onAbort);
    return nodes.map((_, i) => isThere(i));
  }

  /** Returns the ancestors of `nodes` that are pinned, in RAM only and not among `nodes`. */
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
   * Writes all blocks that are in RAM at the call to SSD, except transient ones. Returns the number
   * of blocks that were refused. Does not wait for a hung disk.
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

  /** Queues the block if it still needs a copy. Returns false if it is refused. */
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

/**
 * Waits for `work`. Resolves to false if the wait was given up, for example because the disk hangs.
 */
type Wait = (work: Promise<unknown>) => Promise<boolean>;
