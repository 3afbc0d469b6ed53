import { isDeepStrictEqual } from "node:util";
import type { ListedWorker } from "../../config/index.ts";
import type { WorkerId } from "../../core/index.ts";
import type { Target, WorkerTable } from "../../router/index.ts";
import { type EngineFacts, NO_FACTS, withFacts } from "./engine-facts.ts";
import { specsOf } from "./router-settings.ts";

/** Follows the engines of workers whose events are to be listened to. */
export interface EngineListening {
  listen(worker: ListedWorker, facts: EngineFacts): void;
  /** Not listened to any more; it may be again. */
  leave(worker: WorkerId): void;
  /** The worker is gone: nothing is kept of its engine. */
  forget(worker: WorkerId): void;
}

/** Asks engines how they are set up. */
export interface EngineAsking {
  ask(worker: WorkerId, url: string): void;
  stop(worker: WorkerId): void;
}

export interface WorkerBookParts {
  readonly table: WorkerTable;
  readonly engines: EngineListening;
  readonly asking: EngineAsking;
  /** Whether engines are followed that say where they publish, without a line in the file. */
  readonly followsFound: boolean;
}

/** Workers that the file lists and those who were registered: they stay while they are silent. */
export class WorkerBook {
  readonly #parts: WorkerBookParts;
  readonly #listed = new Map<WorkerId, ListedWorker>();
  readonly #registered = new Map<WorkerId, ListedWorker>();
  readonly #facts = new Map<WorkerId, EngineFacts>();

  constructor(parts: WorkerBookParts) {
    this.#parts = parts;
  }

  has(worker: WorkerId, rank: number): boolean {
    const known = this.#find(worker);
    return known !== undefined && rank < this.#whole(known).ranks;
  }

  /** Workers whose model is not known, because their API was not reached. */
  get unreached(): readonly ListedWorker[] {
    const all = new Map([...this.#listed, ...this.#registered]);
    return [...all.values()].filter((worker) => this.#whole(worker).model === null);
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

  /** What the engine of a worker says. Throws ROUTER_FULL. */
  found(worker: WorkerId, facts: EngineFacts): void {
    const known = this.#find(worker);
    if (known === undefined || isDeepStrictEqual(this.#facts.get(worker), facts)) return;
    this.#facts.set(worker, facts);
    this.#enter(known);
  }

  /** Its engine is another run, perhaps with other settings. */
  askAgain(worker: WorkerId): void {
    const url = this.#find(worker)?.url ?? null;
    if (url !== null) this.#parts.asking.ask(worker, url);
  }

  #find(worker: WorkerId): ListedWorker | undefined {
    return this.#registered.get(worker) ?? this.#listed.get(worker);
  }

  #whole(listed: ListedWorker): ListedWorker {
    const facts = this.#facts.get(listed.name as WorkerId) ?? NO_FACTS;
    const whole = withFacts(listed, facts);
    if (this.#parts.followsFound || listed.events !== null) return whole;
    return { ...listed, model: whole.model };
  }

  #put(listed: ListedWorker): Target[] {
    const name = listed.name as WorkerId;
    const before = this.#find(name);
    if (before?.url !== listed.url) this.#facts.delete(name);
    const targets = this.#enter(listed);
    if (listed.url === null) this.#parts.asking.stop(name);
    else this.#parts.asking.ask(name, listed.url);
    return targets;
  }

  #enter(listed: ListedWorker): Target[] {
    const { table, engines } = this.#parts;
    const whole = this.#whole(listed);
    const name = whole.name as WorkerId;
    const facts = this.#facts.get(name) ?? NO_FACTS;
    const ranksBefore = this.#ranksOf(name);
    let targets: Target[];
    try {
      targets = specsOf(whole, facts).map((spec) => table.put(spec));
    } catch (error) {
      // All of its ranks or none that is new.
      this.#forgetRanks(name, ranksBefore);
      throw error;
    }
    this.#forgetRanks(name, targets.length);
    if (whole.events === null) engines.leave(name);
    else engines.listen(whole, facts);
    return targets;
  }

  #forget(worker: WorkerId): number {
    const { asking, engines } = this.#parts;
    asking.stop(worker);
    this.#facts.delete(worker);
    engines.forget(worker);
    return this.#forgetRanks(worker, 0);
  }

  #ranksOf(worker: WorkerId): number {
    const ranks = this.#parts.table.targets.filter((target) => target.worker === worker);
    return Math.max(0, ...ranks.map(({ rank }) => rank + 1));
  }

  #forgetRanks(worker: WorkerId, from: number): number {
    const { table } = this.#parts;
    const gone = table.targets.filter((target) => target.worker === worker && target.rank >= from);
    for (const { id } of gone) {
      table.setState(id, "gone");
      table.remove(id);
    }
    return gone.length;
  }
}
