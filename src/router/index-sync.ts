import type { Bus, BusLog, Consumption } from "../bus/index.ts";
import type { Clock, Random, WorkerId } from "../core/index.ts";
import type { ResidencySource } from "../observability/activity/index.ts";
import { ActiveLoad, type ActiveLoadOptions } from "./active-load.ts";
import {
  BusArchive,
  EngineTarget,
  FirstArchive,
  forgetStream,
  type IngestSettings,
  listenOnBus,
  listenOnStream,
  type ResidencyArchive,
  ResidencyIngest,
  requestSubject,
  StoredSnapshots,
} from "./ingest/index.ts";
import { LocateService } from "./locate.ts";
import type { PrefixIndex } from "./prefix-index.ts";
import {
  newRouterId,
  ReplicaGroup,
  type ReplicaSettings,
  ReplicaTable,
  replicaSubjects,
} from "./replicas/index.ts";
import type { BusyThresholds } from "./route.ts";
import { type RestoreOutcome, SnapshotStore } from "./snapshot-store.ts";
import type { WorkerTable } from "./workers.ts";

export interface IndexSyncOptions {
  /** Bus to receive events and send queries on. The caller closes it. */
  readonly bus: Bus;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: BusLog;
  readonly cluster: string;
  readonly index: PrefixIndex;
  readonly table: WorkerTable;
  /** Options for counting the load of this router's own requests. */
  readonly load: Omit<ActiveLoadOptions, "clock" | "blockTokens">;
  readonly blockTokens: number;
  readonly ingest: IngestSettings;
  readonly isConfigured: (worker: WorkerId, rank: number) => boolean;
  /** Settings for exchanging state with other routers. Null: this router exchanges none. */
  readonly replicas: ReplicaSettings | null;
  /**
   * Applies busy thresholds that were set at another router. Returns false if this router knows no
   * worker of that model yet.
   */
  readonly applyThresholds: (model: string, thresholds: BusyThresholds) => boolean;
  /**
   * Where and how often to save snapshots of the index. Null: the index does not survive a restart.
   */
  readonly keep: {
    readonly folder: string;
    readonly everyMs: number;
    readonly snapshotThreshold: number;
  } | null;
  /** Name of the durable NATS consumer that reads the event stream. Null: no stream is used. */
  readonly streamConsumer: string | null;
  /** If true, `begin` discards saved snapshots and the state that the broker keeps. */
  readonly resetStates: boolean;
}

/**
 * Keeps a router's worker table, index and load up to date from events, other routers and saved
 * snapshots, and answers block lookups. Routing must use its `load`. It subscribes only in `begin`.
 */
export class IndexSync implements AsyncDisposable {
  readonly ingest: ResidencyIngest;
  readonly load: ActiveLoad;
  readonly group: ReplicaGroup | null;
  readonly snapshots: SnapshotStore | null;
  readonly fromReplicas: FirstArchive;
  readonly fromStore: FirstArchive;
  readonly #options: IndexSyncOptions;
  #listening: Disposable | null = null;
  #stream: Consumption | null = null;
  #locate: LocateService | null = null;

  constructor(options: IndexSyncOptions) {
    const { bus, clock, random, log, cluster, index, table, blockTokens } = options;
    const load = { ...options.load, clock, blockTokens };
    this.#options = options;
    const members = new ReplicaTable();
    const { answerMs, snapshotBlocksMax } = options.ingest;
    const archiveAt = (subjectOf: (source: ResidencySource) => string): ResidencyArchive =>
      new BusArchive({ bus, subjectOf, answerMs, snapshotBlocksMax });
    const { durable } = bus;
    const isDurable = durable !== null && options.streamConsumer !== null;
    const stored = isDurable ? new StoredSnapshots(durable, cluster, snapshotBlocksMax) : null;
    this.fromStore = new FirstArchive(() => stored, archiveAt(requestSubject(cluster)));
    const { snapshotOf } = replicaSubjects(cluster);
    this.fromReplicas = new FirstArchive((source) => {
      const router = members.holderOf(source);
      if (router === null) return null;
      return archiveAt(({ worker, rank }) => snapshotOf(router, worker, rank));
    }, this.fromStore);
    this.ingest = new ResidencyIngest({
      ...{ clock, random, log, index, table, archive: this.fromReplicas },
      settings: options.ingest,
      isHearing: () => bus.state.status === "connected",
      isConfigured: options.isConfigured,
    });
    this.group =
      options.replicas === null
        ? null
        : new ReplicaGroup({
            ...{ bus, clock, random, log, cluster, index, table, load, members },
            ...{ ingest: this.ingest, self: newRouterId(random), settings: options.replicas },
            applyThresholds: options.applyThresholds,
          });
    this.load = this.group?.load ?? new ActiveLoad(load);
    const { ingest } = this;
    const { keep } = options;
    this.snapshots =
      keep === null ? null : new SnapshotStore({ ...keep, clock, log, index, table, ingest });
  }

  /**
   * Restores the saved snapshot into an empty table and index, then subscribes to events. Returns
   * whether a snapshot was restored.
   */
  async begin(): Promise<RestoreOutcome> {
    const { bus, cluster, clock, index, table, streamConsumer, resetStates } = this.#options;
    if (resetStates) await this.#reset();
    const nothing: RestoreOutcome = { kind: "none", why: "snapshots are disabled" };
    const outcome = (await this.snapshots?.restore()) ?? nothing;
    const { ingest, load } = this;
    const onRefused = () => void ingest.counts.refused++;
    this.#listening = listenOnBus(bus, cluster, ingest, onRefused);
    if (bus.durable !== null && streamConsumer !== null) {
      const { durable } = bus;
      this.#stream = listenOnStream(durable, cluster, streamConsumer, ingest, onRefused);
    }
    this.#locate = new LocateService({ bus, clock, cluster, index, table, load });
    return outcome;
  }

  get locate(): LocateService | null {
    return this.#locate;
  }
  get stream(): Consumption | null {
    return this.#stream;
  }

  /**
   * Returns the ingest target for a worker in the table whose engine sends its events directly to
   * this router, without an agent.
   */
  engine(worker: WorkerId, rank: number): EngineTarget {
    const { table, index } = this.#options;
    return new EngineTarget({ worker, rank, table, index, ingest: this.ingest });
  }

  /** Publishes thresholds that were set at this router to the other routers. */
  publishThresholds(model: string, thresholds: BusyThresholds): void {
    this.group?.publishThresholds(model, thresholds);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#listening?.[Symbol.dispose]();
    this.#locate?.[Symbol.dispose]();
    await this.#stream?.[Symbol.asyncDispose]();
    await this.group?.[Symbol.asyncDispose]();
    await this.snapshots?.[Symbol.asyncDispose]();
    await this.ingest[Symbol.asyncDispose]();
  }

  async #reset(): Promise<void> {
    const { bus, cluster, streamConsumer, log } = this.#options;
    this.snapshots?.reset();
    if (bus.durable === null || streamConsumer === null) return;
    const isDone = await forgetStream(bus.durable, cluster);
    if (!isDone) log("warn", "event stream reset failed", { cluster });
  }
}
