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
  /** `Authorization` header to send to engines. Null: send none. */
  readonly authorization: string | null;
}

/** Interval at which the router saves the state of each engine. */
const STATE_EVERY_MS = 30_000;
/** Subfolder of `events.state_dir` for the saved state of engines. */
const SAVES_FOLDER = "engines";

/** Workers known to the router, and its connections to engines on hosts without an agent. */
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
      // With NATS, a worker may have an agent, whose events are more complete than the engine's
      // own.
      followsFound: config.nats.url === null && config.router.kvEvents,
    });
  }

  /** Returns one line for each worker or engine that the router never reached. */
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

  /** True if the router knows workers but never reached any of them. */
  get isCutOff(): boolean {
    const { targets } = this.#parts.table;
    const isUnreached = ({ worker, rank, state }: Target) => {
      const engine = this.engines.find(worker, rank);
      if (engine !== null) return !engine.wasReached;
      // A worker whose agent sends heartbeats is `live`, so it counts as reached.
      return state === "stale" && !this.registry.isReached(worker);
    };
    return this.unreached.length > 0 && targets.every(isUnreached);
  }

  /** True if the router has reached each worker, and each engine's replay is complete. */
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
