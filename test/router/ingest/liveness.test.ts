import { expect, test } from "bun:test";
import { seededRandom, type WorkerId } from "../../../src/core/index.ts";
import { WorkerTable } from "../../../src/router/index.ts";
import {
  INGEST_DEFAULTS,
  type IngestOptions,
  type IngestSettings,
  ResidencyIngest,
  type SnapshotAnswer,
} from "../../../src/router/ingest/index.ts";
import { ManualClock } from "../../support/index.ts";
import { ReferenceIndex } from "../prefix-index/reference-index.ts";
import { LiteralWorker } from "./literal-worker.ts";
import { SPACE } from "./scripted-worker.ts";

/** An intake on a clock that stands still, with workers that are called directly. */
function room(settings: Partial<IngestSettings> = {}, options: Partial<IngestOptions> = {}) {
  const clock = new ManualClock();
  const [index, table] = [new ReferenceIndex(), new WorkerTable()];
  const asked: string[] = [];
  const state = { isHearing: true, answer: null as SnapshotAnswer | null };
  const workers = new Map<string, LiteralWorker>();
  const ingest = new ResidencyIngest({
    ...{ clock, index, table, random: seededRandom(1), log: () => undefined },
    archive: {
      range: async ({ worker, incarnation }, from) => {
        asked.push(`range ${worker}`);
        return workers.get(worker)!.range(incarnation, from);
      },
      snapshot: async ({ worker }) => {
        asked.push(`picture ${worker}`);
        const snapshot = workers.get(worker)!.snapshot();
        return state.answer ?? { kind: "snapshot", snapshot };
      },
    },
    settings: { ...INGEST_DEFAULTS, ...settings },
    isHearing: () => state.isHearing,
    ...options,
  });
  const worker = (name: string) => {
    const literal = new LiteralWorker(name);
    workers.set(name, literal);
    return literal;
  };
  const target = (name: string) => table.find(name as WorkerId, 0);
  return { clock, index, table, ingest, asked, state, worker, target };
}

test("who is silent becomes stale, then gone, and is live again with a word", () => {
  const { clock, index, ingest, table, worker, target } = room();
  const a = worker("a");
  ingest.heartbeat(a.heartbeat());
  a.change({ kind: "store", tier: "host", hash: 1 });
  a.carry("send", (batch) => ingest.batch(batch));
  clock.advance(2_900);
  expect(target("a")?.state).toBe("live");
  clock.advance(400);
  expect(target("a")?.state).toBe("stale");
  ingest.heartbeat(a.heartbeat());
  expect(target("a")?.state).toBe("live");
  clock.advance(15_500);
  expect(table.targets).toEqual([]);
  expect(index.stats.blocks).toBe(0);
  expect(ingest.stats().sources).toBe(0);
  ingest.heartbeat(a.heartbeat());
  expect(target("a")?.state).toBe("live");
});

test("no worker counts as silent while the bus is disconnected", () => {
  const { clock, ingest, state, worker, target } = room();
  ingest.heartbeat(worker("a").heartbeat());
  clock.advance(1_000);
  state.isHearing = false;
  clock.advance(3_600_000);
  expect(target("a")?.state).toBe("live");
  state.isHearing = true;
  clock.advance(2_500);
  expect(target("a")?.state).toBe("live");
  clock.advance(1_500);
  expect(target("a")?.state).toBe("stale");
});

test("who stood still does not take all others for silent", () => {
  const { clock, ingest, worker, target } = room();
  ingest.heartbeat(worker("a").heartbeat());
  clock.advance(1_000);
  clock.stall(60_000);
  clock.advance(2_000);
  expect(target("a")?.state).toBe("live");
});

test("configured and announced properties of a worker are merged", () => {
  const { ingest, table, worker, target } = room({}, { isConfigured: () => true });
  const a = worker("a");
  const listed = { kind: "tokens", model: "served", blockTokens: 32 } as const;
  const spec = {
    ...{ worker: a.source.worker, rank: 0, model: "served", role: "decode" as const },
    ...{ url: "http://a", totalBlocks: 9, batchTokensMax: null, spaces: [listed] },
  };
  table.put(spec);
  ingest.heartbeat(a.heartbeat());
  const both = { model: "served", role: "decode", url: "http://a", spaces: [listed, SPACE] };
  expect(target("a")).toMatchObject(both);
  table.put(spec);
  ingest.heartbeat(a.heartbeat());
  expect(target("a")).toMatchObject(both);
  const other = { ...SPACE, blockTokens: 64 };
  ingest.heartbeat({ ...a.heartbeat(), spaces: [other] });
  expect(target("a")?.spaces).toEqual([listed, other]);
});

test("a silent configured worker stays in the table as not known", () => {
  const { clock, ingest, index, worker, target } = room({}, { isConfigured: () => true });
  const a = worker("a");
  ingest.heartbeat(a.heartbeat());
  a.change({ kind: "store", tier: "host", hash: 1 });
  a.carry("send", (batch) => ingest.batch(batch));
  clock.advance(20_000);
  expect(target("a")).toMatchObject({ state: "stale", isKnown: false });
  expect(index.stats.blocks).toBe(0);
});

test("a worker removed from the table is no longer followed", () => {
  const { ingest, table, worker, target } = room();
  ingest.heartbeat(worker("a").heartbeat());
  table.remove(target("a")!.id);
  expect(ingest.stats().sources).toBe(0);
});

test("workers that are new at once are asked a few at a time", async () => {
  const { clock, ingest, asked, worker } = room({
    recovery: { ...INGEST_DEFAULTS.recovery, atOnceMax: 3 },
  });
  for (let at = 0; at < 20; at++) {
    const one = worker(`w${at}`);
    one.change({ kind: "store", tier: "host", hash: at });
    ingest.heartbeat(one.heartbeat());
  }
  expect(ingest.stats().recoveriesRunning).toBe(3);
  expect(asked.length).toBe(3);
  for (let turn = 0; turn < 100; turn++) {
    expect(ingest.stats().recoveriesRunning).toBeLessThanOrEqual(3);
    await Promise.resolve();
  }
  await clock.advanceAsync(10);
  expect(ingest.stats()).toMatchObject({ known: 20, recoveriesWaiting: 0 });
  expect(asked.length).toBe(20);
});

test("one that does not answer is asked less and less often", async () => {
  const { clock, ingest, asked, state, worker } = room();
  state.answer = { kind: "failed", why: "timeout" };
  const a = worker("a");
  a.change({ kind: "store", tier: "host", hash: 1 });
  const beats = async (seconds: number) => {
    const before = asked.length;
    for (let second = 0; second < seconds; second++) {
      ingest.heartbeat(a.heartbeat());
      await clock.advanceAsync(1_000, 100);
    }
    return asked.length - before;
  };
  expect(await beats(60)).toBeLessThan(12);
  expect(await beats(60)).toBeLessThan(5);
  state.answer = null;
  await beats(31);
  expect(ingest.stats().known).toBe(1);
});

test("a worker whose snapshots never agree with its digests is asked less and less often", async () => {
  const { clock, ingest, asked, worker, target } = room();
  const a = worker("a");
  a.change({ kind: "store", tier: "host", hash: 1 });
  const lie = [0, 1, 2].map(() => ({ blocks: 7, mix: 7n }));
  for (let second = 0; second < 120; second++) {
    ingest.heartbeat({ ...a.heartbeat(), digests: lie });
    await clock.advanceAsync(1_000, 100);
  }
  expect(asked.length).toBeLessThan(20);
  for (let second = 0; second < 70; second++) {
    ingest.heartbeat(a.heartbeat());
    await clock.advanceAsync(1_000, 100);
  }
  expect(target("a")?.isKnown).toBe(true);
});

test("a router that claims unknown changes triggers one request, no more", async () => {
  const { clock, ingest, asked, worker, target } = room();
  const a = worker("a");
  ingest.heartbeat(a.heartbeat());
  const { digests } = a.heartbeat();
  for (let second = 0; second < 10; second++) {
    ingest.compare(a.source, 1_000_000, digests);
    await clock.advanceAsync(1_000, 50);
    expect(target("a")?.isKnown).toBe(true);
    ingest.heartbeat(a.heartbeat());
  }
  expect(asked.length).toBe(10);
});

test("batches that wait for a gap to close are bounded, and those without room are requested again", async () => {
  const pending = { hashesMax: 10, batchesPerSourceMax: 100 };
  const { clock, index, ingest, worker, target } = room({ pending });
  const a = worker("a");
  ingest.heartbeat(a.heartbeat());
  for (let hash = 1; hash < 40; hash++) a.change({ kind: "store", tier: "host", hash });
  a.carry("lose", () => undefined);
  while (a.wire.length > 0) a.carry("send", (batch) => ingest.batch(batch));
  expect(ingest.stats().pendingHashes).toBeLessThanOrEqual(10);
  expect(ingest.stats().pendingDropped).toBeGreaterThan(0);
  await clock.advanceAsync(1_000, 100);
  expect(target("a")?.isKnown).toBe(true);
  expect(index.stats.blocks).toBe(39);
});
