import type { WorkerId } from "../../core/index.ts";
import type { ResidencyChange } from "../../observability/activity/index.ts";
import type { PrefixIndex } from "../prefix-index.ts";
import type { Target, WorkerTable } from "../workers.ts";
import type { ResidencyIntake } from "./residency-ingest.ts";

export interface EngineTargetOptions {
  readonly worker: WorkerId;
  readonly rank: number;
  readonly table: WorkerTable;
  readonly index: PrefixIndex;
  readonly intake: ResidencyIntake;
}

/**
 * One rank whose engine is listened to directly, without an agent. Whoever reads its events gives
 * them here, in order and with the holes mended. The worker is in the table already; what an agent
 * under its name publishes counts for nothing meanwhile.
 */
export class EngineTarget implements Disposable {
  readonly #options: EngineTargetOptions;
  #isOver = false;

  constructor(options: EngineTargetOptions) {
    this.#options = options;
    options.intake.claim(options.worker, options.rank);
  }

  apply(changes: readonly ResidencyChange[]): void {
    const target = this.#target;
    if (target === null) return;
    const { index, intake } = this.#options;
    index.apply(changes.map((change) => ({ target: target.id, change })));
    intake.counts.batches++;
    intake.counts.changes += changes.length;
  }

  /** Another run of the engine: nothing of the run before is held. */
  restart(): void {
    const target = this.#target;
    if (target === null) return;
    this.#options.index.drop(target.id);
    this.setKnown(false);
    this.#options.intake.counts.incarnations++;
  }

  /** The size of its engine's blocks, before the first changes of blocks of that size. */
  setBlockTokens(blockTokens: number): void {
    const target = this.#target;
    if (target === null) return;
    const spaces = target.spaces.map((space) =>
      space.kind === "tokens" ? { ...space, blockTokens } : space,
    );
    this.#options.table.put({ ...target, spaces });
  }

  /** Whether all that it holds is known. */
  setKnown(isKnown: boolean): void {
    const target = this.#target;
    if (target !== null) this.#options.table.setKnown(target.id, isKnown);
  }

  /** Whether its events can be heard. */
  setHeard(isHeard: boolean): void {
    const target = this.#target;
    const [from, to] = isHeard ? (["stale", "live"] as const) : (["live", "stale"] as const);
    if (target?.state === from) this.#options.table.setState(target.id, to);
  }

  /** What it had is forgotten; the worker stays in the table. */
  [Symbol.dispose](): void {
    if (this.#isOver) return;
    const target = this.#target;
    const { index, intake, worker, rank } = this.#options;
    if (target !== null) index.drop(target.id);
    this.setKnown(false);
    this.#isOver = true;
    intake.release(worker, rank);
  }

  get #target(): Target | null {
    const { table, worker, rank } = this.#options;
    return this.#isOver ? null : table.find(worker, rank);
  }
}
