import { type Bus, type BusLog, createLocalBus, LocalHub, openBus } from "../../bus/index.ts";
import type { RouterConfig } from "../../config/index.ts";
import type { Clock, Random, WorkerId } from "../../core/index.ts";
import type { Health, Logger, RouterSnapshot } from "../../observability/index.ts";
import {
  type ActiveLoad,
  type BusyThresholds,
  INGEST_DEFAULTS,
  IndexSync,
  type PrefixIndex,
  REPLICA_DEFAULTS,
  type WorkerTable,
} from "../../router/index.ts";
import { natsFilesOf } from "../credentials.ts";

interface IndexSyncServiceParts {
  readonly config: RouterConfig;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly health: Health;
  readonly table: WorkerTable;
  readonly index: PrefixIndex;
  readonly load: ActiveLoad;
  /** Replaces the configured NATS. Owned by the caller. */
  readonly bus?: Bus;
  isConfigured(worker: WorkerId, rank: number): boolean;
  applyThresholds(model: string, thresholds: BusyThresholds): boolean;
}

/** Wait for heartbeats of agents at start: they send one per second by default. */
const HEARD_MS = 2_000;
/** Time allowed at shutdown for queued messages to be sent. */
const CLOSE_MS = 1_000;
/** Interval at which the index is written to `events.state_dir`. */
const STATE_EVERY_MS = 30_000;

/** Owns the bus and the index sync over it: table, index and load. */
export class IndexSyncService implements AsyncDisposable {
  readonly bus: Bus;
  readonly sync: IndexSync;
  readonly #parts: IndexSyncServiceParts;
  readonly #status: Disposable;
  #connectedMs: number | null = null;

  /** Returns without waiting for a connection. */
  constructor(parts: IndexSyncServiceParts) {
    const { config, clock, random, table, index, load } = parts;
    const { router, events, replicas } = config;
    this.#parts = parts;
    const log: BusLog = (level, message, fields) => parts.logger.log(level, message, fields);
    this.bus = parts.bus ?? openRouterBus(parts, log);
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

  /** Must run before other workers are added to the table, so that saved workers keep their ids. */
  async begin(): Promise<void> {
    const { logger } = this.#parts;
    const outcome = await this.sync.begin();
    if (outcome.kind === "none") return;
    const { sources, ageMs } = outcome;
    logger.info("restored index snapshot", { agents: sources, age_ms: ageMs });
  }

  /** True if all present sources were heard, and the blocks of each are completely known. */
  get isComplete(): boolean {
    const { config, clock } = this.#parts;
    const waitMs = config.nats.url === null || !config.router.kvEvents ? 0 : HEARD_MS;
    const sinceMs = this.#connectedMs;
    if (sinceMs === null || clock.monotonicMs() - sinceMs < waitMs) return false;
    return this.sync.ingest.stats().stalled === 0;
  }

  snapshot(): NonNullable<RouterSnapshot["events"]> {
    const stats = this.sync.ingest.stats();
    return {
      kinds: {
        batch: stats.batches,
        change: stats.changes,
        heartbeat: stats.heartbeats,
        duplicate: stats.duplicates,
        early: stats.early,
        stale: stats.stale,
        unannounced: stats.unannounced,
        refused: stats.refused,
        overfull: stats.overfull,
        pending_dropped: stats.pendingDropped,
      },
      resyncs: {
        gap: stats.gaps,
        incarnation: stats.incarnations,
        range: stats.ranges,
        picture: stats.snapshots,
        picture_failed: stats.snapshotsFailed,
        mismatch: stats.mismatches,
        doubt: stats.doubts,
      },
    };
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

/**
 * Without a NATS server, creates an in-process bus: engine events and predictions need no broker.
 */
function openRouterBus({ config, clock, random }: IndexSyncServiceParts, log: BusLog): Bus {
  const { nats, router } = config;
  const basics = { clock, random, log };
  if (nats.url === null) return createLocalBus(new LocalHub(), basics);
  const name = `hearth router ${router.id}`;
  const { inboxPrefix, replyPrefixes } = nats;
  const inboxes = { inboxPrefix, replyPrefixes };
  return openBus({ url: nats.url, name, ...natsFilesOf(nats), ...inboxes, ...basics });
}
