import { type Bus, type BusLog, createLocalBus, LocalHub } from "../../bus/index.ts";
import type { RouterConfig } from "../../config/index.ts";
import type { Clock, Random, WorkerId } from "../../core/index.ts";
import type { Health, Logger } from "../../observability/index.ts";
import {
  type BusyThresholds,
  INGEST_DEFAULTS,
  IndexSync,
  type IndexSyncOptions,
  type PrefixIndex,
  REPLICA_DEFAULTS,
  type WorkerTable,
} from "../../router/index.ts";
import { openConfiguredBus } from "../credentials.ts";

interface IndexSyncServiceParts {
  readonly config: RouterConfig;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly health: Health;
  readonly table: WorkerTable;
  readonly index: PrefixIndex;
  readonly load: IndexSyncOptions["load"];
  /** Bus to use instead of the configured NATS server. The caller owns it and closes it. */
  readonly bus?: Bus;
  isConfigured(worker: WorkerId, rank: number): boolean;
  applyThresholds(model: string, thresholds: BusyThresholds): boolean;
}

/**
 * Time after connecting in which every running agent sends a heartbeat. Default heartbeat interval:
 * 1 s.
 */
const HEARD_MS = 2_000;
/** Maximum time, at shutdown, to send queued messages. */
const CLOSE_MS = 1_000;
/** Interval at which the router saves the index to `events.state_dir`. */
const STATE_EVERY_MS = 30_000;

/** Owns the bus, and keeps the worker table, the index and the load up to date over it. */
export class IndexSyncService implements AsyncDisposable {
  readonly bus: Bus;
  readonly sync: IndexSync;
  readonly #parts: IndexSyncServiceParts;
  readonly #status: Disposable;
  #connectedMs: number | null = null;

  /** Opens the bus without waiting until it is connected. */
  constructor(parts: IndexSyncServiceParts) {
    const { config, clock, random, table, index, load } = parts;
    const { router, events, replicas } = config;
    this.#parts = parts;
    const log: BusLog = (level, message, fields) => parts.logger.log(level, message, fields);
    const name = `hearth router ${router.id}`;
    const basics = { clock, random, log };
    // Without a NATS server the router still works with engine events and predictions.
    this.bus =
      parts.bus ??
      openConfiguredBus(config.nats, name, basics) ??
      createLocalBus(new LocalHub(), basics);
    this.sync = new IndexSync({
      ...{ bus: this.bus, clock, random, log, table, index, load },
      cluster: events.cluster,
      blockTokens: router.blockTokens,
      ingest: INGEST_DEFAULTS,
      isConfigured: parts.isConfigured,
      replicas: replicas.sync ? REPLICA_DEFAULTS : null,
      applyThresholds: parts.applyThresholds,
      keep:
        events.stateDir === null
          ? null
          : {
              folder: events.stateDir,
              everyMs: STATE_EVERY_MS,
              snapshotThreshold: replicas.snapshotThreshold,
            },
      streamConsumer: events.stream ? router.id : null,
      resetStates: replicas.resetStates,
    });
    this.#status = this.bus.onStatus(() => this.#look());
    this.#look();
  }

  /**
   * Restores the saved index, then subscribes. Call it before other workers are added to the table,
   * so that saved workers keep their ids.
   */
  async begin(): Promise<void> {
    const { logger } = this.#parts;
    const outcome = await this.sync.begin();
    if (outcome.kind === "none") return;
    const { sources, ageMs } = outcome;
    logger.info("restored index snapshot", { agents: sources, age_ms: ageMs });
  }

  /**
   * True if the router is connected long enough to know all running agents, and no agent's blocks
   * are known only in part.
   */
  get isComplete(): boolean {
    const { config, clock } = this.#parts;
    const waitMs = config.nats.url === null || !config.router.kvEvents ? 0 : HEARD_MS;
    const sinceMs = this.#connectedMs;
    if (sinceMs === null || clock.monotonicMs() - sinceMs < waitMs) return false;
    return this.sync.ingest.stats().stalled === 0;
  }

  #look(): void {
    const { config, clock, health } = this.#parts;
    const { status, why } = this.bus.state;
    this.#connectedMs = status === "connected" ? clock.monotonicMs() : null;
    if (status === "connected" || status === "closed") health.clear("ROUTER_NATS");
    else if (config.nats.url !== null) health.raise("ROUTER_NATS", why ?? "not connected yet");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#status[Symbol.dispose]();
    await this.sync[Symbol.asyncDispose]();
    if (this.#parts.bus === undefined) await this.bus.close(CLOSE_MS);
  }
}
