import { describe, expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { createLocalBus, LocalHub } from "../../../src/bus/index.ts";
import { systemClock, systemRandom, type WorkerId } from "../../../src/core/index.ts";
import {
  IndexSync,
  type IndexSyncOptions,
  type PrefixIndex,
  WorkerTable,
} from "../../../src/router/index.ts";
import { sameDigests } from "../../../src/router/ingest/index.ts";
import { tempDir, waitFor } from "../../support/index.ts";
import { QUICK } from "../ingest/ingest-kit.ts";
import { CLUSTER, ScriptedWorker } from "../ingest/scripted-worker.ts";
import { ReferenceIndex } from "../prefix-index/reference-index.ts";
import { basics } from "../replicas/replica-kit.ts";

const HOUR_MS = 3_600_000;
const ROOT = tempDir();
let folders = 0;

/** One life of a router that stores its snapshot in `folder`. */
class Life implements AsyncDisposable {
  readonly index: PrefixIndex = new ReferenceIndex();
  readonly table = new WorkerTable();
  readonly bus: ReturnType<typeof createLocalBus>;
  readonly sync: IndexSync;
  readonly logged: string[] = [];

  constructor(hub: LocalHub, folder: string, changed: Partial<IndexSyncOptions> = {}) {
    this.bus = createLocalBus(hub, basics);
    const { bus, index, table } = this;
    this.sync = new IndexSync({
      ...{ bus, index, table, clock: systemClock, random: systemRandom, cluster: CLUSTER },
      log: (_level, message) => void this.logged.push(message),
      load: { requestExpiryMs: HOUR_MS },
      ...{ blockTokens: 16, ingest: QUICK, isConfigured: () => false, replicas: null },
      applyThresholds: () => true,
      keep: { folder, everyMs: HOUR_MS, snapshotThreshold: 1_000_000 },
      ...{ streamConsumer: null, resetStates: false },
      ...changed,
    });
  }

  async begin() {
    await this.bus.connected(1_000);
    return await this.sync.begin();
  }

  agrees(worker: ScriptedWorker): boolean {
    const target = this.table.find(worker.source.worker, worker.source.rank);
    if (target?.isKnown !== true) return false;
    return sameDigests(this.index.digests(target.id)!, worker.digests());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.sync[Symbol.asyncDispose]();
    await this.bus.close(0);
  }
}

function room() {
  const hub = new LocalHub();
  const folder = join(ROOT, String(folders++));
  const bus = createLocalBus(hub, basics);
  const workers = ["a", "b", "c"].map((worker) => new ScriptedWorker(bus, { worker, ring: 3 }));
  return { hub, folder, bus, workers };
}

/** A life in which all workers joined and sent events; its snapshot is saved. */
async function firstLife(hub: LocalHub, folder: string, workers: readonly ScriptedWorker[]) {
  const life = new Life(hub, folder);
  await life.begin();
  for (const [at, worker] of workers.entries()) {
    worker.beat();
    worker.send(worker.store("device", 1n, BigInt(at + 10)));
    worker.send(worker.store("disk", 5n));
  }
  await waitFor(() => workers.every((worker) => life.agrees(worker)));
  expect(await life.sync.snapshots!.save()).toBe(true);
  return life;
}

describe("a restart", () => {
  test("a restarted router restores its index snapshot, and requests only the missing changes", async () => {
    const { hub, folder, bus, workers } = room();
    const before = await firstLife(hub, folder, workers);
    // As by SIGKILL: later events are not saved.
    await before.bus.close(0);
    const [a, b, c] = workers;
    a!.store("host", 77n);
    for (let hash = 100n; hash < 110n; hash++) b!.store("host", hash);
    await using life = new Life(hub, folder);
    expect(await life.begin()).toMatchObject({ kind: "restored", sources: 3 });
    expect(life.agrees(c!)).toBe(true);
    expect(life.table.targets.every(({ isKnown }) => isKnown)).toBe(true);
    for (const worker of workers) {
      worker.questions.length = 0;
      worker.beat();
    }
    await waitFor(() => workers.every((worker) => life.agrees(worker)));
    expect(c!.questions).toEqual([]);
    expect(a!.questions.map(({ kind }) => kind)).toEqual(["range"]);
    expect(b!.questions.map(({ kind }) => kind)).toContain("snapshot");
    await before.sync.snapshots![Symbol.asyncDispose]();
    await bus.close(0);
  });

  test("target ids survive a restart, also if others joined and left", async () => {
    const { hub, folder, bus, workers } = room();
    const before = await firstLife(hub, folder, workers);
    workers[0]!.beat({ isClosing: true });
    await waitFor(() => before.table.targets.length === 2);
    const numbers = before.table.targets.map(({ id, worker }) => [worker, id]);
    await before[Symbol.asyncDispose]();
    await using life = new Life(hub, folder);
    expect(await life.begin()).toMatchObject({ kind: "restored", sources: 2 });
    expect(life.table.targets.map(({ id, worker }) => [worker, id])).toEqual(numbers);
    expect(workers.slice(1).every((worker) => life.agrees(worker))).toBe(true);
    await bus.close(0);
  });

  test("a taken target id discards only that worker's snapshot", async () => {
    const { hub, folder, bus, workers } = room();
    await (await firstLife(hub, folder, workers))[Symbol.asyncDispose]();
    await using life = new Life(hub, folder);
    const { id } = life.table.put({
      ...{ worker: "other" as WorkerId, rank: 0, model: "m", role: "both", spaces: [] },
      ...{ url: null, totalBlocks: null, batchTokensMax: null },
    });
    expect(await life.begin()).toMatchObject({ kind: "restored", sources: 2 });
    expect([...life.index.dump(id)]).toEqual([]);
    for (const worker of workers) worker.beat();
    await waitFor(() => workers.every((worker) => life.agrees(worker)));
    await bus.close(0);
  });

  test("a worker that was not there any more is forgotten", async () => {
    const { hub, folder, bus, workers } = room();
    await (await firstLife(hub, folder, workers))[Symbol.asyncDispose]();
    const ingest = { ...QUICK, goneBeats: 0.1, staleBeats: 0.05 };
    await using life = new Life(hub, folder, { ingest });
    await life.begin();
    await waitFor(() => life.table.targets.length === 0);
    expect(life.index.stats.blocks).toBe(0);
    await bus.close(0);
  });
});

describe("a saved snapshot", () => {
  test("a snapshot damaged in any byte is rejected, and the router starts without it", async () => {
    const { hub, folder, bus, workers } = room();
    await (await firstLife(hub, folder, workers))[Symbol.asyncDispose]();
    const state = join(folder, "state.json");
    const sound = readFileSync(state);
    for (let at = 0; at < sound.length; at += 7) {
      const bad = Uint8Array.from(sound);
      bad[at]! ^= 4;
      writeFileSync(state, bad);
      await using life = new Life(hub, folder, { resetStates: false });
      expect((await life.begin()).kind).toBe("none");
      expect(life.table.targets).toEqual([]);
      // Its end would save anew.
      Object.assign(life.sync, { snapshots: null });
    }
    writeFileSync(state, sound);
    await using life = new Life(hub, folder);
    expect((await life.begin()).kind).toBe("restored");
    await bus.close(0);
  });

  test("is replaced as a whole; a save that fails leaves the one before", async () => {
    const { hub, folder, bus, workers } = room();
    const life = await firstLife(hub, folder, workers);
    const files = () => readdirSync(folder).sort();
    const before = files();
    expect(before.length).toBe(2);
    Object.assign(life.index, { save: () => Promise.reject(new Error("no space left")) });
    expect(await life.sync.snapshots!.save()).toBe(false);
    expect(files()).toEqual(before);
    expect(life.logged).toContain("saving the index snapshot failed");
    Reflect.deleteProperty(life.index, "save");
    expect(await life.sync.snapshots!.save()).toBe(true);
    expect(files().length).toBe(2);
    expect(files()).not.toEqual(before);
    await life[Symbol.asyncDispose]();
    await bus.close(0);
  });

  test("a snapshot is saved early after enough changes", async () => {
    const { hub, folder, bus, workers } = room();
    const keep = { folder, everyMs: HOUR_MS, snapshotThreshold: 2 };
    await using life = new Life(hub, folder, { keep });
    await life.begin();
    workers[0]!.beat();
    await waitFor(() => life.agrees(workers[0]!));
    expect(existsSync(join(folder, "state.json"))).toBe(false);
    for (let hash = 1n; hash < 5n; hash++) workers[0]!.send(workers[0]!.store("host", hash));
    await waitFor(() => existsSync(join(folder, "state.json")));
    await bus.close(0);
  });

  test("resetStates discards the snapshot", async () => {
    const { hub, folder, bus, workers } = room();
    await (await firstLife(hub, folder, workers))[Symbol.asyncDispose]();
    await using life = new Life(hub, folder, { resetStates: true });
    expect((await life.begin()).kind).toBe("none");
    expect(readdirSync(folder)).toEqual([]);
    await bus.close(0);
  });
});
