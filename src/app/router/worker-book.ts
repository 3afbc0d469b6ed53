import { isDeepStrictEqual } from "node:util";
import type { ListedWorker } from "../../config/index.ts";
import type { WorkerId } from "../../core/index.ts";
import type { Target, WorkerTable } from "../../router/index.ts";
import { specsOf } from "./router-settings.ts";

/** Told of workers with engines whose events are to be listened to. */
export interface EngineListening {
  listen(worker: ListedWorker): void;
  leave(worker: WorkerId): void;
}

/** Workers that the file lists and those who were registered: they stay while they are silent. */
export class WorkerBook {
  readonly #table: WorkerTable;
  readonly #engines: EngineListening;
  readonly #listed = new Map<WorkerId, ListedWorker>();
  readonly #registered = new Map<WorkerId, ListedWorker>();

  constructor(table: WorkerTable, engines: EngineListening) {
    this.#table = table;
    this.#engines = engines;
  }

  has(worker: WorkerId, rank: number): boolean {
    const known = this.#registered.get(worker) ?? this.#listed.get(worker);
    return known !== undefined && rank < known.ranks;
  }

  /** From the file: those that stand there no more are forgotten. Throws ROUTER_FULL. */
  replaceListed(workers: readonly ListedWorker[]): void {
    const names = new Set(workers.map(({ name }) => name as WorkerId));
    for (const worker of [...this.#listed.keys()]) {
      if (names.has(worker)) continue;
      this.#listed.delete(worker);
      if (!this.#registered.has(worker)) this.#forget(worker);
    }
    for (const worker of workers) {
      const name = worker.name as WorkerId;
      // What events said of one that stands there as before is not said again so soon.
      const isSame = isDeepStrictEqual(this.#listed.get(name), worker);
      if (!isSame && !this.#registered.has(name)) this.#put(worker);
      this.#listed.set(name, worker);
    }
  }

  /** Over HTTP: stands above the file. Throws ROUTER_FULL. */
  register(worker: ListedWorker): Target[] {
    const targets = this.#put(worker);
    this.#registered.set(worker.name as WorkerId, worker);
    return targets;
  }

  /** How many ranks of it there were. */
  unregister(worker: WorkerId): number {
    this.#registered.delete(worker);
    this.#listed.delete(worker);
    return this.#forget(worker);
  }

  #put(listed: ListedWorker): Target[] {
    const name = listed.name as WorkerId;
    const ranksBefore = this.#ranksOf(name);
    let targets: Target[];
    try {
      targets = specsOf(listed).map((spec) => this.#table.put(spec));
    } catch (error) {
      // All of its ranks or none that is new.
      this.#forgetRanks(name, ranksBefore);
      throw error;
    }
    this.#forgetRanks(name, listed.ranks);
    if (listed.events === null) this.#engines.leave(name);
    else this.#engines.listen(listed);
    return targets;
  }

  #forget(worker: WorkerId): number {
    this.#engines.leave(worker);
    return this.#forgetRanks(worker, 0);
  }

  #ranksOf(worker: WorkerId): number {
    const ranks = this.#table.targets.filter((target) => target.worker === worker);
    return Math.max(0, ...ranks.map(({ rank }) => rank + 1));
  }

  #forgetRanks(worker: WorkerId, from: number): number {
    const gone = this.#table.targets.filter(
      (target) => target.worker === worker && target.rank >= from,
    );
    for (const { id } of gone) {
      this.#table.setState(id, "gone");
      this.#table.remove(id);
    }
    return gone.length;
  }
}
