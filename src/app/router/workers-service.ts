import { join } from "node:path";
import type { RouterConfig } from "../../config/index.ts";
import type { Clock, Random } from "../../core/index.ts";
import { DROP_REASONS } from "../../events/index.ts";
import type { Native } from "../../native/index.ts";
import { RESIDENCY_TIERS } from "../../observability/activity/index.ts";
import {
  ENGINE_BLOCKS,
  type Health,
  type Logger,
  type MetricRegistry,
} from "../../observability/index.ts";
import type { IndexSync, PrefixIndex, Target, WorkerTable } from "../../router/index.ts";
import { EngineDiscovery } from "./engine-discovery.ts";
import type { EngineReport } from "./engine-link.ts";
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

  write(registry: MetricRegistry): void {
    const { table, index } = this.#parts;
    writeHeldBlocks(registry, table, index);
    writeEngines(registry, this.engines.reports);
    registry.clear("routerWorkerReached");
    for (const { worker, isReached } of this.registry.reached) {
      registry.set("routerWorkerReached", isReached ? 1 : 0, { worker });
    }
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

/** Writes the number of blocks per worker. Series of removed workers are deleted. */
function writeHeldBlocks(
  registry: MetricRegistry,
  { targets }: Pick<WorkerTable, "targets">,
  index: Pick<PrefixIndex, "digests">,
): void {
  registry.clear("routerWorkerBlocks");
  registry.clear("routerWorkerKnown");
  for (const { id, worker, rank, isKnown } of targets) {
    const labels = { worker, rank: `${rank}` };
    registry.set("routerWorkerKnown", isKnown ? 1 : 0, labels);
    index.digests(id)?.forEach(({ blocks }, place) => {
      registry.set("routerWorkerBlocks", blocks, { ...labels, tier: RESIDENCY_TIERS[place]! });
    });
  }
}

/** Writes the counters of engines followed without an agent. */
function writeEngines(registry: MetricRegistry, reports: readonly EngineReport[]): void {
  for (const metric of [
    "routerEngineReached",
    "routerEngineBlockTokens",
    "routerEngineEvents",
    "routerEngineBlocks",
    "routerEngineDropped",
    "routerEngineResyncs",
  ] as const) {
    registry.clear(metric);
  }
  for (const report of reports) {
    const { worker, counts } = report;
    const labels = { worker, rank: `${report.rank}` };
    registry.set("routerEngineReached", report.isReached ? 1 : 0, labels);
    const sizes = { engine: report.blockTokens, configured: report.configuredBlockTokens };
    for (const [source, size] of Object.entries(sizes)) {
      if (size !== null) registry.set("routerEngineBlockTokens", size, { ...labels, source });
    }
    registry.set("routerEngineEvents", counts.events, labels);
    for (const kind of ENGINE_BLOCKS) {
      registry.set("routerEngineBlocks", counts[kind], { ...labels, kind });
    }
    for (const reason of DROP_REASONS) {
      registry.set("routerEngineDropped", counts.dropped[reason], { ...labels, reason });
    }
    const resyncs = { gap: counts.gaps, replay: counts.replays, restart: counts.restarts };
    for (const [kind, count] of Object.entries({ ...resyncs, lost_batch: counts.lostBatches })) {
      registry.set("routerEngineResyncs", count, { ...labels, kind });
    }
  }
}
