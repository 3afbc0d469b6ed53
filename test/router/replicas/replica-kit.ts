import { type Bus, createLocalBus, type LocalHub } from "../../../src/bus/index.ts";
import { seededRandom, systemClock, systemRandom, type WorkerId } from "../../../src/core/index.ts";
import type { ResidencySource } from "../../../src/observability/activity/index.ts";
import { type BusyThresholds, type PrefixIndex, WorkerTable } from "../../../src/router/index.ts";
import {
  BusArchive,
  FirstArchive,
  listenOnBus,
  ResidencyIngest,
  requestSubject,
  sameDigests,
} from "../../../src/router/ingest/index.ts";
import {
  newRouterId,
  REPLICA_DEFAULTS,
  ReplicaGroup,
  type ReplicaSettings,
  ReplicaTable,
  replicaSubjects,
} from "../../../src/router/replicas/index.ts";
import { QUICK } from "../ingest/ingest-kit.ts";
import { CLUSTER, type ScriptedWorker, SPACE } from "../ingest/scripted-worker.ts";
import { ReferenceIndex } from "../prefix-index/reference-index.ts";

export const SOON: ReplicaSettings = {
  ...REPLICA_DEFAULTS,
  everyMs: 25,
  outputMs: 5,
  orphanMs: 50,
  answerMs: 500,
};
export const basics = { clock: systemClock, random: seededRandom(1) };

/** A router without its decisions: intake, load and replicas. */
export class TestRouter implements AsyncDisposable {
  readonly bus: Bus;
  readonly index: PrefixIndex = new ReferenceIndex();
  readonly table = new WorkerTable();
  readonly members = new ReplicaTable();
  readonly ingest: ResidencyIngest;
  readonly group: ReplicaGroup;
  readonly archive: FirstArchive;
  readonly thresholds = new Map<string, BusyThresholds>();
  readonly #listening: Disposable;

  constructor(hub: LocalHub, settings: Partial<ReplicaSettings> = {}) {
    this.bus = createLocalBus(hub, { ...basics, limits: { retryMinMs: 5, retryMaxMs: 20 } });
    const { bus, table, index, members } = this;
    const archiveAt = (subjectOf: (source: ResidencySource) => string) =>
      new BusArchive({ bus, subjectOf, answerMs: 500, snapshotBlocksMax: 1e6 });
    const { snapshotOf } = replicaSubjects(CLUSTER);
    this.archive = new FirstArchive(
      (source) => {
        const router = members.holderOf(source);
        return router && archiveAt(({ worker, rank }) => snapshotOf(router, worker, rank));
      },
      archiveAt(requestSubject(CLUSTER)),
    );
    this.ingest = new ResidencyIngest({
      ...{ ...basics, index, table, archive: this.archive, settings: QUICK },
      log: () => undefined,
      isHearing: () => bus.state.status === "connected",
    });
    this.#listening = listenOnBus(bus, CLUSTER, this.ingest, () => undefined);
    const load = { clock: systemClock, blockTokens: 16, requestExpiryMs: 300_000 };
    this.group = new ReplicaGroup({
      ...{ bus, ...basics, cluster: CLUSTER, index, table, members, load },
      ...{ ingest: this.ingest, self: newRouterId(systemRandom), log: () => undefined },
      settings: { ...SOON, ...settings },
      applyThresholds: (model, thresholds) => {
        const isKnown = table.targets.some((target) => target.model === model);
        if (isKnown) this.thresholds.set(model, thresholds);
        return isKnown;
      },
    });
  }

  async ready(): Promise<this> {
    await this.bus.connected(1_000);
    return this;
  }

  put(worker: string): number {
    return this.table.put({
      ...{ worker: worker as WorkerId, rank: 0, model: "m", role: "both", spaces: [SPACE] },
      ...{ url: null, totalBlocks: null, batchTokensMax: null },
    }).id;
  }

  route(id: string, worker: string, blocks = 4, prefillTokens = blocks * 16): void {
    const target = this.table.find(worker as WorkerId, 0)!.id;
    const hashes = BigUint64Array.from({ length: blocks }, (_, at) => BigInt(at + 1));
    const of = { id, target, hashes, promptTokens: blocks * 16, prefillTokens };
    this.group.load.add({ ...of, expectedOutputTokens: null });
  }

  loadOf(worker: string): string {
    const { id } = this.table.find(worker as WorkerId, 0)!;
    const { activeBlocks, activePrefillTokens, activeRequests } = this.group.load.of(id);
    return `${activeRequests} requests, ${activeBlocks} blocks, ${activePrefillTokens} tokens`;
  }

  agrees(worker: ScriptedWorker): boolean {
    const target = this.table.find(worker.source.worker, worker.source.rank);
    if (target?.isKnown !== true) return false;
    return sameDigests(this.index.digests(target.id)!, worker.digests());
  }

  /** Without a word, as by SIGKILL. */
  async die(): Promise<void> {
    this.#listening[Symbol.dispose]();
    await this.bus.close(0);
    await this.group[Symbol.asyncDispose]();
    await this.ingest[Symbol.asyncDispose]();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#listening[Symbol.dispose]();
    await this.group[Symbol.asyncDispose]();
    await this.ingest[Symbol.asyncDispose]();
    await this.bus.close(100);
  }
}
