import type { WorkerId } from "../../core/index.ts";
import type { ResidencyChange } from "../../observability/activity/index.ts";
import type { PrefixIndex } from "../prefix-index.ts";
import type { Target, WorkerTable } from "../workers.ts";
import type { ResidencyIngest } from "./residency-ingest.ts";

export interface EngineTargetOptions {
  readonly worker: WorkerId;
  readonly rank: number;
  readonly table: WorkerTable;
  readonly index: PrefixIndex;
  readonly ingest: ResidencyIngest;
}

/**
 * Applies the events of one engine rank that the router receives directly, without an agent. The
 * caller supplies the events in order and without gaps. The worker must be in the table. While this
 * object exists, events of an agent with the same name are ignored.
 */
export class EngineTarget implements Disposable {
  readonly #options: EngineTargetOptions;
  #isOver = false;

  constructor(options: EngineTargetOptions) {
    this.#options = options;
    options.ingest.claim(options.worker, options.rank);
  }

  apply(changes: readonly ResidencyChange[]): void {
    const target = this.#target;
    if (target === null) return;
    const { index, ingest } = this.#options;
    index.apply(changes.map((change) => ({ target: target.id, change })));
    ingest.counts.batches++;
    ingest.counts.changes += changes.length;
  }

  /** Drops the blocks of the engine's previous run. Call when the engine has restarted. */
  restart(): void {
    const target = this.#target;
    if (target === null) return;
    this.#options.index.drop(target.id);
    this.setKnown(false);
    this.#options.ingest.counts.incarnations++;
  }

  /**
   * Sets the engine's block size. Call before applying the first changes with blocks of that size.
   */
  setBlockTokens(blockTokens: number): void {
    const target = this.#target;
    if (target === null) return;
    const spaces = target.spaces.map((space) =>
      space.kind === "tokens" ? { ...space, blockTokens } : space,
    );
    this.#options.table.put({ ...target, spaces });
  }

  /** Sets whether the router knows all blocks that the engine has cached. */
  setKnown(isKnown: boolean): void {
    const target = this.#target;
    if (target !== null) this.#options.table.setKnown(target.id, isKnown);
  }

  /** Sets whether the engine's events can be received. If not, the worker is marked `stale`. */
  setHeard(isHeard: boolean): void {
    const target = this.#target;
    const [from, to] = isHeard ? (["stale", "live"] as const) : (["live", "stale"] as const);
    if (target?.state === from) this.#options.table.setState(target.id, to);
  }

  /** Drops the engine's blocks from the index. The worker stays in the table. */
  [Symbol.dispose](): void {
    if (this.#isOver) return;
    const target = this.#target;
    const { index, ingest, worker, rank } = this.#options;
    if (target !== null) index.drop(target.id);
    this.setKnown(false);
    this.#isOver = true;
    ingest.release(worker, rank);
  }

  get #target(): Target | null {
    const { table, worker, rank } = this.#options;
    return this.#isOver ? null : table.find(worker, rank);
  }
}
