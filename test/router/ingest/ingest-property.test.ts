import { expect, test } from "bun:test";
import fc from "fast-check";
import { seededRandom } from "../../../src/core/index.ts";
import type { ResidencyTier } from "../../../src/observability/activity/index.ts";
import { WorkerTable } from "../../../src/router/index.ts";
import {
  INGEST_DEFAULTS,
  type RangeAnswer,
  type ResidencyArchive,
  ResidencyIngest,
  type SnapshotAnswer,
  sameDigests,
} from "../../../src/router/ingest/index.ts";
import { ManualClock } from "../../support/index.ts";
import { ReferenceIndex } from "../prefix-index/reference-index.ts";
import { LiteralWorker } from "./literal-worker.ts";

type Step =
  | { readonly kind: "store" | "remove"; readonly tier: ResidencyTier; readonly hash: number }
  | { readonly kind: "clear" | "send" | "lose" | "double" | "beat" | "restart" }
  /** Batches in flight arrive in another order. */
  | { readonly kind: "shuffle"; readonly seed: number }
  | { readonly kind: "wait"; readonly ms: number };

const tier = fc.constantFrom<ResidencyTier>("device", "host", "disk");
const hash = fc.integer({ min: 1, max: 12 });
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ kind: fc.constant("store" as const), tier, hash }) },
  { weight: 3, arbitrary: fc.record({ kind: fc.constant("remove" as const), tier, hash }) },
  {
    weight: 6,
    arbitrary: fc
      .constantFrom("clear", "send", "send", "lose", "double", "beat", "restart")
      .map((kind) => ({ kind }) as Step),
  },
  {
    weight: 1,
    arbitrary: fc.record({ kind: fc.constant("shuffle" as const), seed: fc.nat(1_000) }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant("wait" as const),
      ms: fc.integer({ min: 1, max: 60 }),
    }),
  },
);

/** Answers from what the worker is by then, as an asker over a network gets it: later. */
class LiteralArchive implements ResidencyArchive {
  readonly #workers: readonly LiteralWorker[];
  constructor(workers: readonly LiteralWorker[]) {
    this.#workers = workers;
  }
  async range(...[source, from]: Parameters<ResidencyArchive["range"]>): Promise<RangeAnswer> {
    await Promise.resolve();
    return this.#of(source.worker).range(source.incarnation, from);
  }
  async snapshot(...[source]: Parameters<ResidencyArchive["snapshot"]>): Promise<SnapshotAnswer> {
    await Promise.resolve();
    const snapshot = this.#of(source.worker).snapshot();
    // Between its making and its arrival more may happen.
    await Promise.resolve();
    return { kind: "snapshot", snapshot };
  }
  #of(worker: string): LiteralWorker {
    return this.#workers.find(({ source }) => source.worker === worker)!;
  }
}

async function carryOut(script: readonly (readonly [number, Step])[]): Promise<void> {
  const clock = new ManualClock();
  const workers = ["a", "b"].map((name) => new LiteralWorker(name));
  const [index, table] = [new ReferenceIndex(), new WorkerTable()];
  const ingest = new ResidencyIngest({
    ...{ clock, index, table, random: seededRandom(1), log: () => undefined },
    archive: new LiteralArchive(workers),
    settings: { ...INGEST_DEFAULTS, goneBeats: 1e9 },
    isHearing: () => true,
  });
  for (const [at, { kind, ...of }] of script) {
    const worker = workers[at]!;
    const random = seededRandom("seed" in of ? of.seed : 0);
    if (kind === "store" || kind === "remove" || kind === "clear") worker.change({ kind, ...of });
    else if (kind === "shuffle") worker.wire.sort(() => random.u32() - 2 ** 31);
    else if (kind === "wait") await clock.advanceAsync("ms" in of ? of.ms : 0, 10);
    else if (kind === "beat") ingest.heartbeat(worker.heartbeat());
    else if (kind === "restart") worker.restart();
    else worker.carry(kind, (batch) => ingest.batch(batch));
  }
  for (const worker of workers) {
    while (worker.wire.length > 0) worker.carry("send", (batch) => ingest.batch(batch));
  }
  // The last heartbeats come, and nothing more; what failed is tried again.
  for (let beats = 0; beats < 4; beats++) {
    for (const worker of workers) ingest.heartbeat(worker.heartbeat());
    await clock.advanceAsync(500, 20);
  }
  for (const worker of workers) {
    const target = table.find(worker.source.worker, 0)!;
    expect(target.isKnown).toBe(true);
    expect(sameDigests(index.digests(target.id), worker.heartbeat().digests)).toBe(true);
  }
  expect(ingest.stats().pendingHashes).toBe(0);
  await ingest[Symbol.asyncDispose]();
}

test("whatever is lost, doubled, overtaken or restarted: the index ends right", async () => {
  const script = fc.array(fc.tuple(fc.nat(1), step), { maxLength: 80, size: "max" });
  await fc.assert(fc.asyncProperty(script, carryOut), { numRuns: 400 });
});
