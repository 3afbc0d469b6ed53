import { RouterMetrics, type RouterSources } from "../../api/index.ts";
import type { Bus } from "../../bus/index.ts";
import { diffRouterReload, type RouterConfig } from "../../config/index.ts";
import { type Clock, loopTurns, type Random } from "../../core/index.ts";
import type { Native } from "../../native/index.ts";
import { Health, type Logger, type LoopLag, watchLoopLag } from "../../observability/index.ts";
import {
  type ActiveLoad,
  INGEST_DEFAULTS,
  NativeIndex,
  type PolicyMarks,
  type PrefixIndex,
  RouteCounts,
  Router,
  WorkerTable,
} from "../../router/index.ts";
import { IndexSyncService } from "./index-sync-service.ts";
import { PoliciesService } from "./policies-service.ts";
import { engineAuthorization, ProxyService } from "./proxy-service.ts";
import { routerSettings } from "./router-settings.ts";
import { WorkersService } from "./workers-service.ts";

export interface RouterServiceParts {
  readonly config: RouterConfig;
  readonly native: Native;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly version: string;
  readonly commit: string;
  /**
   * Bus to use instead of NATS, for routers without a network. The caller owns it and closes it.
   */
  readonly bus?: Bus;
}

/** Lifecycle state of the router. It only moves forward, in this order. */
export type RouterServiceState = "starting" | "ready" | "draining" | "stopped";

const LOOK_MS = 250;
/**
 * Time in ms after the start at which `/readyz` reports ready even if some workers have not
 * reported their blocks.
 */
const COMPLETE_WITHIN_MS = 10_000;

/** A router. It starts its parts in order and stops them in reverse order. */
export class RouterService {
  readonly table: WorkerTable;
  readonly index: PrefixIndex;
  readonly load: ActiveLoad;
  /** Routing decisions, used by the HTTP API, the proxy and embedding programs. */
  readonly router: Router;
  /** Known workers, and connections to engines on hosts without an agent. */
  readonly workers: WorkersService;
  readonly metrics = new RouterMetrics();
  readonly health: Health;
  readonly lag: LoopLag;
  readonly #parts: RouterServiceParts;
  readonly #counts: RouteCounts;
  readonly #indexSync: IndexSyncService;
  readonly #policies: PoliciesService;
  readonly #watch: Disposable;
  readonly #startedMs: number;
  #config: RouterConfig;
  #proxy: ProxyService | null = null;
  #state: RouterServiceState = "starting";
  #isComplete = false;

  private constructor(parts: RouterServiceParts, authorization: string | null) {
    const { config, native, clock, random, logger } = parts;
    this.#parts = parts;
    this.#config = config;
    this.#startedMs = clock.monotonicMs();
    const settings = routerSettings(config);
    this.health = new Health({ clock, log: logger });
    this.#counts = new RouteCounts(clock, this.metrics.observeSeconds);
    loopTurns.measureCpu(() => native.threadCpuMs());
    this.lag = watchLoopLag(clock);
    this.table = new WorkerTable({ targetsMax: INGEST_DEFAULTS.targetsMax });
    this.index = new NativeIndex({ native, random, bytesMax: config.events.indexBytes });
    const { table, index, health } = this;
    const counts = this.#counts;
    this.#indexSync = new IndexSyncService({
      ...{ ...parts, table, index, health },
      load: { requestExpiryMs: settings.requestExpiryMs, seed: random.u32() },
      isConfigured: (worker, rank) => this.workers.registry.has(worker, rank),
      applyThresholds: (model, thresholds) => this.router.applyThresholds(model, thresholds),
    });
    const { load } = this.#indexSync.sync;
    this.load = load;
    this.router = new Router({
      clock,
      random,
      native,
      settings,
      table,
      index,
      load,
      metrics: counts,
    });
    const { sync } = this.#indexSync;
    this.workers = new WorkersService({
      ...{ ...parts, table, index, health, sync, authorization },
    });
    const { router } = this;
    router.listen({
      prompted: (request) => this.workers.engines.prompted(request),
      thresholdsSet: (model, thresholds) => sync.publishThresholds(model, thresholds),
    });
    this.#policies = new PoliciesService({ ...parts, router, table, bus: this.#indexSync.bus });
    this.#watch = clock.every(LOOK_MS, () => this.#look());
  }

  /**
   * Starts a router. Resolves when it answers requests. Throws if a configured resource is
   * unavailable.
   */
  static async start(parts: RouterServiceParts): Promise<RouterService> {
    const service = new RouterService(parts, engineAuthorization(parts.config.proxy));
    try {
      await service.#indexSync.begin();
      service.workers.registry.replaceListed(parts.config.workers);
      const { router, table, health } = service;
      const { policies } = service.#policies;
      service.#proxy = await ProxyService.open({
        ...{ ...parts, health, router, table, policies },
        onBack: (worker) => service.workers.registry.askAgain(worker),
      });
    } catch (error) {
      await service.#stopParts();
      throw error;
    }
    service.#state = "ready";
    service.#look();
    return service;
  }

  /** Accepts client reports for the policies, such as cache marks and ends of sessions. */
  get marks(): PolicyMarks {
    return this.#policies.policies.marks;
  }

  get state(): RouterServiceState {
    return this.#state;
  }

  get config(): RouterConfig {
    return this.#config;
  }

  /** Returns the reasons why the router is not ready. Empty if it is ready. */
  get notReady(): string[] {
    if (this.#state !== "ready") return [`the router is ${this.#state}`];
    if (this.#isComplete && !this.workers.isCutOff) return [];
    const { unreached } = this.workers;
    if (unreached.length > 0) return [...unreached];
    return ["not all known workers have reported their blocks yet"];
  }

  /**
   * Applies the settings of a new configuration that a reload can change. Reports the changed
   * settings that need a restart.
   */
  async reload(next: RouterConfig): Promise<void> {
    const { logger } = this.#parts;
    const { changed, needsRestart, effective } = diffRouterReload(this.#config, next);
    for (const { key, from, to } of needsRestart) {
      logger.warn("configuration key needs a restart, keeping its old value", { key, from, to });
    }
    this.#config = effective;
    this.workers.registry.replaceListed(effective.workers);
    this.#policies.configure(effective);
    await this.#proxy?.reload(effective);
    logger.setLevel(effective.log.level);
    const keys = changed.map(({ key }) => key);
    logger.info("configuration reloaded", { changed: keys.join(" ") || "nothing" });
  }

  /**
   * Announces the shutdown, waits for requests in progress, then closes all parts. If `forceStop`
   * fires, stops waiting immediately.
   */
  async stop(forceStop: AbortSignal): Promise<void> {
    if (this.#state === "draining" || this.#state === "stopped") return;
    this.#state = "draining";
    await this.#proxy?.stop(forceStop);
    this.#proxy = null;
    await this.#stopParts();
    this.#state = "stopped";
  }

  #look(): void {
    const { clock } = this.#parts;
    const hasWaited = clock.monotonicMs() - this.#startedMs >= COMPLETE_WITHIN_MS;
    // Once complete, stay complete: a worker that joins later must not make the router unready.
    this.#isComplete ||= hasWaited || (this.#indexSync.isComplete && this.workers.isSettled);
    if (!this.#isComplete) return;
    const isAlone = this.table.targets.length === 0;
    const why = "no worker is configured, registered or heard from";
    this.health.report("ROUTER_NO_WORKERS", isAlone ? why : null);
  }

  /** Returns the router's current state, for status and metrics. */
  get sources(): Omit<RouterSources, "refusals"> {
    const { version, commit, clock, logger } = this.#parts;
    const { health, lag, index } = this;
    const { sync } = this.#indexSync;
    return {
      ...{ version, commit, clock, logger, health, lag, index },
      startedMs: this.#startedMs,
      counts: this.#counts,
      activeRequests: this.load.requests,
      targets: this.table.targets,
      ingest: sync.ingest.stats(),
      replicas: sync.group?.stats ?? null,
      snapshotsTaken: sync.fromReplicas.taken,
      locate: sync.locate?.stats ?? null,
      saves: sync.snapshots?.stats ?? null,
      reached: this.workers.registry.reached,
      engines: this.workers.engines.reports,
      policies: this.#policies.policies.counts,
      proxy: this.#proxy?.proxy.snapshot() ?? null,
    };
  }

  async #stopParts(): Promise<void> {
    this.#watch[Symbol.dispose]();
    await this.#proxy?.stop(AbortSignal.abort());
    await this.#policies[Symbol.asyncDispose]();
    await this.workers[Symbol.asyncDispose]();
    await this.#indexSync[Symbol.asyncDispose]();
    this.router[Symbol.dispose]();
    this.index[Symbol.dispose]();
    this.lag[Symbol.dispose]();
    this.health[Symbol.dispose]();
  }
}
