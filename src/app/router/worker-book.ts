import { isDeepStrictEqual } from "node:util";
import type { ListedWorker } from "../../config/index.ts";
import type { Clock, WorkerId } from "../../core/index.ts";
import type { Target, WorkerTable } from "../../router/index.ts";
import { type EngineFacts, NO_FACTS, withFacts } from "./engine-discovery.ts";
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
  readonly clock: Pick<Clock, "monotonicMs">;
}

/** A worker with a `url` whose API has not answered so far. */
export interface UnreachedWorker {
  readonly listed: ListedWorker;
  readonly sinceMs: number;
  readonly why: string;
}

const SERVER_ERROR = 500;

/**
 * Workers that the file lists and those who were registered: they stay while they are silent. One
 * whose `url` never answered is `stale`.
 */
export class WorkerBook {
  readonly #parts: WorkerBookParts;
  readonly #listed = new Map<WorkerId, ListedWorker>();
  readonly #registered = new Map<WorkerId, ListedWorker>();
  readonly #facts = new Map<WorkerId, EngineFacts>();
  /** Statuses of APIs that do not say how their engines are set up. */
  readonly #refusals = new Map<WorkerId, number>();
  readonly #sinceMs = new Map<WorkerId, number>();

  constructor(parts: WorkerBookParts) {
    this.#parts = parts;
  }

  has(worker: WorkerId, rank: number): boolean {
    const known = this.#find(worker);
    return known !== undefined && rank < this.#whole(known).ranks;
  }

  /** Whether its API has answered since it has this URL; workers without one have none. */
  isReached(worker: WorkerId): boolean {
    const known = this.#find(worker);
    return known === undefined || this.#isReached(known);
  }

  /** Whether its API has said how its engine is set up, its model among it. */
  isKnown(worker: WorkerId): boolean {
    const known = this.#find(worker);
    return known !== undefined && this.#facts.has(worker) && this.#whole(known).model !== null;
  }

  /** Workers with a `url`, and whether each was reached. */
  get reached(): readonly { readonly worker: WorkerId; readonly isReached: boolean }[] {
    return [...this.#all.values()]
      .filter(({ url }) => url !== null)
      .map((listed) => ({ worker: listed.name as WorkerId, isReached: this.#isReached(listed) }));
  }

  get unreached(): readonly UnreachedWorker[] {
    return [...this.#all.values()]
      .filter((listed) => !this.#isReached(listed))
      .map((listed) => {
        const worker = listed.name as WorkerId;
        const sinceMs = this.#sinceMs.get(worker) ?? 0;
        return { listed, sinceMs, why: this.#whyUnreached(worker) };
      });
  }

  /** Workers that are in no table, because no model is known of them. */
  get pending(): readonly ListedWorker[] {
    return [...this.#all.values()].filter((listed) => this.#whole(listed).model === null);
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
    const isPending = this.pending.some(({ name }) => name === worker);
    this.#registered.delete(worker);
    this.#listed.delete(worker);
    const ranks = this.#forget(worker);
    return isPending ? 1 : ranks;
  }

  /** What the engine of a worker says; whether that is news. Throws ROUTER_FULL. */
  found(worker: WorkerId, facts: EngineFacts): boolean {
    const known = this.#find(worker);
    if (known === undefined || isDeepStrictEqual(this.#facts.get(worker), facts)) return false;
    this.#facts.set(worker, facts);
    this.#refusals.delete(worker);
    this.#enter(known);
    return true;
  }

  /** Its API answered with a status that is no success. */
  refused(worker: WorkerId, status: number): void {
    const known = this.#find(worker);
    if (known === undefined || this.#facts.has(worker)) return;
    this.#refusals.set(worker, status);
    this.#mark(known);
  }

  /** Its engine left, came back or is another run, perhaps with other settings. */
  askAgain(worker: WorkerId): void {
    const url = this.#find(worker)?.url ?? null;
    if (url !== null) this.#parts.asking.ask(worker, url);
  }

  get #all(): ReadonlyMap<WorkerId, ListedWorker> {
    return new Map([...this.#listed, ...this.#registered]);
  }

  #whyUnreached(worker: WorkerId): string {
    const status = this.#refusals.get(worker);
    if (status !== undefined) return `answered ${status} to GET /v1/models`;
    return this.#facts.has(worker) ? "names no model" : "was never reached";
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
    if (before === undefined || before.url !== listed.url) {
      this.#facts.delete(name);
      this.#refusals.delete(name);
      this.#sinceMs.set(name, this.#parts.clock.monotonicMs());
    }
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
    this.#mark(listed);
    return targets.map(({ id }) => table.get(id)!);
  }

  #isReached({ name, url, ...listed }: ListedWorker): boolean {
    const worker = name as WorkerId;
    if (url === null) return true;
    if ((listed.model ?? this.#facts.get(worker)?.model ?? null) === null) return false;
    // Some servers have no such path, or have it for clients with a key alone.
    return this.#facts.has(worker) || (this.#refusals.get(worker) ?? SERVER_ERROR) < SERVER_ERROR;
  }

  /** Stale until its API answers, unless its events are followed: they say more. */
  #mark(listed: ListedWorker): void {
    if (listed.url === null || this.#whole(listed).events !== null) return;
    const { table } = this.#parts;
    const [from, to] = this.#isReached(listed)
      ? (["stale", "live"] as const)
      : (["live", "stale"] as const);
    for (const { worker, id, state } of table.targets) {
      if (worker === listed.name && state === from) table.setState(id, to);
    }
  }

  #forget(worker: WorkerId): number {
    const { asking, engines } = this.#parts;
    asking.stop(worker);
    for (const kept of [this.#facts, this.#refusals, this.#sinceMs]) kept.delete(worker);
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
