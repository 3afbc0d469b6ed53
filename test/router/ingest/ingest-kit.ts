import { createLocalBus, LocalHub } from "../../../src/bus/index.ts";
import { seededRandom, systemClock, type WorkerId } from "../../../src/core/index.ts";
import { type PrefixIndex, type Target, WorkerTable } from "../../../src/router/index.ts";
import {
  BusArchive,
  INGEST_DEFAULTS,
  type IngestOptions,
  type IngestSettings,
  listenOnBus,
  ResidencyIngest,
  requestSubject,
  sameDigests,
} from "../../../src/router/ingest/index.ts";
import { ReferenceIndex } from "../prefix-index/reference-index.ts";
import { CLUSTER, type ScriptedOptions, ScriptedWorker } from "./scripted-worker.ts";

export const QUICK: IngestSettings = {
  ...INGEST_DEFAULTS,
  reorderMs: 5,
  answerMs: 300,
  recovery: { atOnceMax: 8, retryMinMs: 20, retryMaxMs: 100 },
};

/** An intake with the literal index, and workers, over a bus inside the process. */
export class IntakeRoom implements AsyncDisposable {
  readonly hub = new LocalHub();
  readonly #basics = { clock: systemClock, random: seededRandom(1) };
  readonly bus = createLocalBus(this.hub, this.#basics);
  readonly workerBus = createLocalBus(this.hub, this.#basics);
  readonly index: PrefixIndex = new ReferenceIndex();
  readonly table = new WorkerTable();
  readonly logged: string[] = [];
  readonly ingest: ResidencyIngest;
  readonly #listening: Disposable;
  readonly #workers: ScriptedWorker[] = [];

  constructor(settings: Partial<IngestSettings> = {}, options: Partial<IngestOptions> = {}) {
    const all = { ...QUICK, ...settings };
    const { answerMs, snapshotBlocksMax } = all;
    const { bus, index, table } = this;
    this.ingest = new ResidencyIngest({
      ...{ index, table, settings: all, ...this.#basics },
      log: (_level, message) => void this.logged.push(message),
      archive: new BusArchive({
        bus,
        subjectOf: requestSubject(CLUSTER),
        answerMs,
        snapshotBlocksMax,
      }),
      isHearing: () => bus.state.status === "connected",
      ...options,
    });
    const refused = () => void this.ingest.counts.refused++;
    this.#listening = listenOnBus(bus, CLUSTER, this.ingest, refused);
  }

  async ready(): Promise<this> {
    await this.bus.connected(1_000);
    await this.workerBus.connected(1_000);
    return this;
  }

  worker(options: ScriptedOptions): ScriptedWorker {
    const worker = new ScriptedWorker(this.workerBus, options);
    this.#workers.push(worker);
    return worker;
  }

  target(worker: string, rank = 0): Target | null {
    return this.table.find(worker as WorkerId, rank);
  }

  /** Its target is known, and the index has exactly the blocks of the worker. */
  agrees(worker: ScriptedWorker): boolean {
    const { worker: name, rank } = worker.source;
    const target = this.target(name, rank);
    if (target?.isKnown !== true) return false;
    return sameDigests(this.index.digests(target.id)!, worker.digests());
  }

  /** Delivers all that was published so far. */
  async settle(): Promise<void> {
    await this.workerBus.flush(1_000);
    await this.bus.flush(1_000);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#listening[Symbol.dispose]();
    await this.ingest[Symbol.asyncDispose]();
    for (const worker of this.#workers) worker[Symbol.dispose]();
    await this.bus.close(100);
    await this.workerBus.close(100);
  }
}
