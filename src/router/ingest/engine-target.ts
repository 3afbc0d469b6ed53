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
 * Ingest target of one rank whose engine is followed directly, without an agent. The caller
 * supplies its events in order and without gaps. The worker must be in the table; events that an
 * agent publishes under the same name are ignored meanwhile.
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

  /** The engine restarted: drop the blocks of the previous run. */
  restart(): void {
    const target = this.#target;
    if (target === null) return;
    this.#options.index.drop(target.id);
    this.setKnown(false);
    this.#options.ingest.counts.incarnations++;
  }

  /** Sets the engine's block size. Must precede the first changes with blocks of that size. */
  setBlockTokens(blockTokens: number): void {
    const target = this.#target;
    if (target === null) return;
    const spaces = target.spaces.map((space) =>
      space.kind === "tokens" ? { ...space, blockTokens } : space,
    );
    this.#options.table.put({ ...target, spaces });
  }

  /** Sets whether all blocks it holds are known. */
  setKnown(isKnown: boolean): void {
    const target = this.#target;
    if (target !== null) this.#options.table.setKnown(target.id, isKnown);
  }

  /** Sets whether its events can be received. */
  setHeard(isHeard: boolean): void {
    const target = this.#target;
    const [from, to] = isHeard ? (["stale", "live"] as const) : (["live", "stale"] as const);
    if (target?.state === from) this.#options.table.setState(target.id, to);
  }

  /** Drops its blocks. The worker stays in the table. */
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
