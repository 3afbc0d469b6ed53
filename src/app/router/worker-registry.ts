import { isDeepStrictEqual } from "node:util";
import type { ListedWorker } from "../../config/index.ts";
import type { Clock, WorkerId } from "../../core/index.ts";
import type { Target, WorkerTable } from "../../router/index.ts";
import { type EngineDiscovery, type EngineFacts, NO_FACTS, withFacts } from "./engine-discovery.ts";
import type { EnginesService } from "./engines-service.ts";
import { specsOf } from "./router-settings.ts";

export interface WorkerRegistryParts {
  readonly table: WorkerTable;
  readonly engines: Pick<EnginesService, "listen" | "leave" | "forget">;
  readonly asking: Pick<EngineDiscovery, "ask" | "stop">;
  /**
   * If true, the router also receives events of engines that report where they publish but have no
   * `events` setting.
   */
  readonly followsFound: boolean;
  readonly clock: Pick<Clock, "monotonicMs">;
}

/** A worker with a `url` whose API has never answered. */
export interface UnreachedWorker {
  readonly listed: ListedWorker;
  readonly sinceMs: number;
  readonly why: string;
}

const SERVER_ERROR = 500;

/**
 * Configured and registered workers. Silent workers stay in the worker table. A worker is `stale`
 * there until its API has answered at its `url`.
 */
export class WorkerRegistry {
  readonly #parts: WorkerRegistryParts;
  readonly #listed = new Map<WorkerId, ListedWorker>();
  readonly #registered = new Map<WorkerId, ListedWorker>();
  readonly #facts = new Map<WorkerId, EngineFacts>();
  /** HTTP error status of each API that does not report its engine's settings. */
  readonly #refusals = new Map<WorkerId, number>();
  readonly #sinceMs = new Map<WorkerId, number>();

  constructor(parts: WorkerRegistryParts) {
    this.#parts = parts;
  }

  has(worker: WorkerId, rank: number): boolean {
    const known = this.#find(worker);
    return known !== undefined && rank < this.#whole(known).ranks;
  }

  /**
   * True if the worker's API answered and its model is known. Also true for workers without a URL.
   */
  isReached(worker: WorkerId): boolean {
    const known = this.#find(worker);
    return known === undefined || this.#isReached(known);
  }

  /** True if the worker's API reported the engine's settings, and the worker's model is known. */
  isKnown(worker: WorkerId): boolean {
    const known = this.#find(worker);
    return known !== undefined && this.#facts.has(worker) && this.#whole(known).model !== null;
  }

  /** Workers with a `url`, each with whether its API answered. */
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

  /** Workers that are not in the worker table, because their model is unknown. */
  get pending(): readonly ListedWorker[] {
    return [...this.#all.values()].filter((listed) => this.#whole(listed).model === null);
  }

  /**
   * Replaces the configured workers. Removes workers that are no longer configured, unless they
   * registered over HTTP. Throws ROUTER_FULL.
   */
  replaceListed(workers: readonly ListedWorker[]): void {
    const names = new Set(workers.map(({ name }) => name as WorkerId));
    for (const worker of [...this.#listed.keys()]) {
      if (names.has(worker)) continue;
      this.#listed.delete(worker);
      if (!this.#registered.has(worker)) this.#forget(worker);
    }
    for (const worker of workers) {
      const name = worker.name as WorkerId;
      // Leave an unchanged worker alone: replacing it would lose facts learned from its events,
      // which the engine may not report again soon.
      const isSame = isDeepStrictEqual(this.#listed.get(name), worker);
      if (!isSame && !this.#registered.has(name)) this.#put(worker);
      this.#listed.set(name, worker);
    }
  }

  /**
   * Registers a worker over HTTP. It overrides a configured worker of that name. Throws
   * ROUTER_FULL.
   */
  register(worker: ListedWorker): Target[] {
    const targets = this.#put(worker);
    this.#registered.set(worker.name as WorkerId, worker);
    return targets;
  }

  /** Removes a worker. Returns the number of ranks removed. */
  unregister(worker: WorkerId): number {
    const isPending = this.pending.some(({ name }) => name === worker);
    this.#registered.delete(worker);
    this.#listed.delete(worker);
    const ranks = this.#forget(worker);
    return isPending ? 1 : ranks;
  }

  /**
   * Stores the settings that a worker's engine reports. Returns true if they are new. Throws
   * ROUTER_FULL.
   */
  found(worker: WorkerId, facts: EngineFacts): boolean {
    const known = this.#find(worker);
    if (known === undefined || isDeepStrictEqual(this.#facts.get(worker), facts)) return false;
    this.#facts.set(worker, facts);
    this.#refusals.delete(worker);
    this.#enter(known);
    return true;
  }

  /** Stores an HTTP error status returned by the worker's API. */
  refused(worker: WorkerId, status: number): void {
    const known = this.#find(worker);
    if (known === undefined || this.#facts.has(worker)) return;
    this.#refusals.set(worker, status);
    this.#mark(known);
  }

  /**
   * Queries the worker's settings again, because its engine disconnected, reconnected or restarted.
   */
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
      // Undo the ranks already added: a worker is added with all its ranks or not at all.
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
    // Some servers lack the queried path or require a key for it. A 4xx status still proves that
    // the API is reachable.
    return this.#facts.has(worker) || (this.#refusals.get(worker) ?? SERVER_ERROR) < SERVER_ERROR;
  }

  /**
   * Marks a worker `stale` until its API answers, then `live`. Ignores workers whose events are
   * received, because events show their state more precisely.
   */
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
