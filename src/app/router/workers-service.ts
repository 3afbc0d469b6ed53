import { join } from "node:path";
import type { RouterConfig } from "../../config/index.ts";
import type { Clock, Random } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import type { Health, Logger } from "../../observability/index.ts";
import type { IndexSync, PrefixIndex, Target, WorkerTable } from "../../router/index.ts";
import { EngineDiscovery } from "./engine-discovery.ts";
import { EngineStateStore, EnginesService } from "./engines-service.ts";
import { WorkerRegistry } from "./worker-registry.ts";

export interface WorkersParts {
  readonly config: RouterConfig;
  readonly native: Native;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly health: Health;
  readonly table: WorkerTable;
  readonly index: PrefixIndex;
  readonly sync: Pick<IndexSync, "engine">;
  /** The `Authorization` header for engines. Null: none. */
  readonly authorization: string | null;
}

/** Interval at which the state of each engine is written. */
const STATE_EVERY_MS = 30_000;
/** Subfolder for engine state in the router's snapshot folder. */
const SAVES_FOLDER = "engines";

/** Workers known to the router, and the engines it follows without an agent. */
export class WorkersService implements AsyncDisposable {
  readonly registry: WorkerRegistry;
  readonly engines: EnginesService;
  readonly #discovery: EngineDiscovery;
  readonly #parts: WorkersParts;

  constructor(parts: WorkersParts) {
    const { config, clock, logger, table } = parts;
    this.#parts = parts;
    const saves = savesOf(parts);
    if (config.replicas.resetStates) saves?.reset();
    this.engines = new EnginesService({
      ...{ ...parts, saves },
      onChanged: (worker) => this.registry.askAgain(worker),
      lostApis: (ms) => this.#lostApis(ms),
    });
    this.#discovery = new EngineDiscovery({
      ...{ clock, logger, authorization: parts.authorization },
      isSettled: (worker) => this.registry.isKnown(worker) && this.engines.isHeard(worker),
      onFacts: (worker, facts) => {
        if (!this.registry.found(worker, facts)) return false;
        const { model, events, replay, ranks, blockTokens } = facts;
        const fields = { worker, model, events, replay, ranks, block_tokens: blockTokens };
        logger.info("worker API reported its settings", fields);
        return true;
      },
      onRefused: (worker, status) => this.registry.refused(worker, status),
    });
    this.registry = new WorkerRegistry({
      ...{ table, clock, engines: this.engines, asking: this.#discovery },
      // With NATS, a worker may have an agent, whose events are more complete than its engine's.
      followsFound: config.nats.url === null && config.router.kvEvents,
    });
  }

  /** Workers that were never reached, one line each. */
  get unreached(): readonly string[] {
    const engines = this.engines.reports
      .filter(({ wasReached }) => !wasReached)
      .map(({ worker, rank, endpoint }) => `worker ${worker} rank ${rank}: ${endpoint}`);
    return [
      ...this.registry.unreached.map(
        ({ listed, why }) => `worker ${listed.name}: ${listed.url} ${why}`,
      ),
      ...engines.map((line) => `${line} was never reached`),
    ];
  }

  /** True if there are workers and none of them was ever reached. */
  get isCutOff(): boolean {
    const { targets } = this.#parts.table;
    const isUnreached = ({ worker, rank, state }: Target) => {
      const engine = this.engines.find(worker, rank);
      if (engine !== null) return !engine.wasReached;
      // An agent with that name may send heartbeats.
      return state === "stale" && !this.registry.isReached(worker);
    };
    return this.unreached.length > 0 && targets.every(isUnreached);
  }

  /** True if each worker was reached and has reported what it can. */
  get isSettled(): boolean {
    return this.registry.unreached.length === 0 && this.engines.isSettled;
  }

  #lostApis(ms: number): string[] {
    const latestMs = this.#parts.clock.monotonicMs() - ms;
    return this.registry.unreached
      .filter(({ sinceMs }) => sinceMs <= latestMs)
      .map(({ listed, why }) => `${listed.name}: ${listed.url} ${why}`);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#discovery[Symbol.asyncDispose]();
    await this.engines[Symbol.asyncDispose]();
  }
}

function savesOf({ config, logger }: WorkersParts): EngineStateStore | null {
  const { stateDir } = config.events;
  if (stateDir === null) return null;
  return new EngineStateStore({
    folder: join(stateDir, SAVES_FOLDER),
    everyMs: STATE_EVERY_MS,
    logger,
  });
}
