import { expect, test } from "bun:test";
import { seededRandom, yieldToLoop } from "../../../src/core/index.ts";
import { ChangeRing, EngineBlockSet, Snapshots } from "../../../src/events/publishing/index.ts";
import type { ResidencyChange } from "../../../src/observability/activity/index.ts";
import { applyAll, applyChange } from "../../store/residency/follower.ts";
import { ManualClock } from "../../support/index.ts";
import { Blocks, digestsOf, emptySets, feedsOf, TOKENS } from "./publishing-kit.ts";

const stored = (from: number, count: number, parent: bigint | null = null): ResidencyChange => ({
  kind: "stored",
  tier: "device",
  parent,
  hashes: BigUint64Array.from({ length: count }, (_, i) => BigInt(from + i)),
  tokenHashes: null,
});

test("a ring keeps the latest changes within its limits", () => {
  const ring = new ChangeRing({ changesMax: 100, blocksMax: 1_000 });
  expect([ring.first, ring.last, ring.size]).toEqual([1, 0, 0]);
  for (let i = 1; i <= 1_000; i++) {
    ring.push(stored(i, 5));
    expect(ring.size).toBeLessThanOrEqual(100);
    expect(ring.last).toBe(i);
    expect(ring.last - ring.first + 1).toBe(ring.size);
  }
  const kept = ring.slice(ring.first, ring.last);
  expect(kept.map((change) => change.kind === "stored" && change.hashes[0])).toEqual(
    Array.from({ length: 100 }, (_, i) => BigInt(901 + i)),
  );
  expect(ring.slice(950, 951)).toEqual([stored(950, 5), stored(951, 5)]);
  ring.push(stored(1, 990));
  expect([ring.size, ring.blocks]).toEqual([3, 1_000]);
  ring.push(stored(1, 2_000));
  expect([ring.size, ring.blocks]).toEqual([1, 2_000]);
});

for (const seed of [1, 2, 3]) {
  test(`a snapshot is what the changes up to its number made (${seed})`, async () => {
    const blocks = new Blocks(20_000, seed);
    using feeds = feedsOf(blocks);
    const [residency] = feeds.logs;
    const all: ResidencyChange[] = [];
    residency!.listen(({ firstSequence, changes }) => {
      expect(firstSequence).toBe(all.length + 1);
      all.push(...changes);
    });
    const snapshots = new Snapshots({
      residency: residency!,
      clock: new ManualClock(),
      partBytesMax: () => 4_096,
    });
    blocks.churn(15_000, 12_000);
    const random = seededRandom(seed);
    for (let round = 0; round < 3; round++) {
      let isOver = false;
      const taking = snapshots.take().finally(() => {
        isOver = true;
      });
      while (!isOver) {
        blocks.churn(20, 12_000);
        const engine = stored(random.u32() % 1_000, 10);
        if (random.u32() % 3 === 0) feeds.engineChanged(0, TOKENS, [engine]);
        if (random.u32() % 20 === 0) {
          feeds.engineChanged(0, TOKENS, [{ kind: "cleared", tier: null }]);
        }
        await yieldToLoop();
      }
      const snapshot = await taking;
      const expected = emptySets();
      for (const change of all.slice(0, snapshot!.sequence)) applyChange(expected, change);
      const got = emptySets();
      for (const { tier, hashes } of snapshot!.parts.flat()) {
        for (const hash of hashes) {
          expect(got[tier].has(hash)).toBe(false);
          got[tier].add(hash);
        }
      }
      expect(got).toEqual(expected);
      expect(snapshot!.parts.length).toBeGreaterThan(1);
      expect(all.length).toBeGreaterThan(snapshot!.sequence - 1);
    }
    // The reported end state equals the result of the changes.
    const beat = residency!.heartbeat();
    const final = emptySets();
    for (const change of all) applyChange(final, change);
    expect(beat.lastSequence).toBe(all.length);
    expect(beat.digests).toEqual(digestsOf(final));
  });
}

test("one snapshot serves all queries while the ring has the changes after it", async () => {
  const clock = new ManualClock();
  const blocks = new Blocks();
  using feeds = feedsOf(blocks, { ring: { changesMax: 8, blocksMax: 1_000 } });
  const [residency] = feeds.logs;
  const snapshots = new Snapshots({ residency: residency!, clock, partBytesMax: () => 65_536 });
  blocks.chain(1, 50, "host");
  const [first, second] = await Promise.all([snapshots.take(), snapshots.take()]);
  expect(first).toBe(second!);
  expect(await snapshots.take()).toBe(first!);
  for (let i = 0; i < 20; i++) {
    blocks.store(1_000 + i, null, "disk");
    residency!.flush();
  }
  const third = await snapshots.take();
  expect(third!.sequence).toBeGreaterThan(first!.sequence);
  expect(snapshots.find(first!.id)).toBe(first!);
  clock.advance(3_000);
  const fourth = await snapshots.take();
  expect(fourth!.id).toBe(third!.id + 1n);
  expect(snapshots.find(first!.id)).toBeNull();
  clock.advance(31_000);
  expect(snapshots.find(fourth!.id)).toBeNull();
  expect(snapshots.made).toBe(3);
});

test("an engine's blocks are bounded, and evictions are published", () => {
  const chains = new EngineBlockSet(10);
  const sets = emptySets();
  const told: string[] = [];
  const apply = (...changes: ResidencyChange[]) => {
    for (const change of chains.apply(changes)) {
      told.push(change.kind);
      applyChange(sets, change);
    }
    expect(chains.digests).toEqual(digestsOf(sets));
    expect(chains.blocks).toBeLessThanOrEqual(10);
  };
  apply(stored(1, 8), stored(1, 8));
  apply(stored(100, 5));
  expect(chains.forgotten).toBe(3);
  apply({ kind: "removed", tier: "device", hashes: BigUint64Array.of(100n, 999n) });
  apply({ kind: "cleared", tier: "host" });
  apply(stored(500, 20));
  expect(sets.device.size).toBe(10);
  apply({ kind: "cleared", tier: null });
  expect(sets.device.size).toBe(0);
  expect(told).not.toContain("cleared");
  expect(told).toEqual([
    ...["stored", "stored", "removed", "removed", "stored", "removed", "removed"],
  ]);
});

test("blocks known from engines stay when the store starts over", async () => {
  const blocks = new Blocks();
  using feeds = feedsOf(blocks);
  const [residency] = feeds.logs;
  const sets = emptySets();
  residency!.listen(({ changes }) => applyAll(sets, changes));
  blocks.chain(1, 10, "host");
  feeds.engineChanged(0, TOKENS, [stored(7, 3)]);
  residency!.flush();
  blocks.residency.restart();
  const { digests } = residency!.heartbeat();
  expect(sets.device).toEqual(new Set([7n, 8n, 9n]));
  expect(digests).toEqual(digestsOf(sets));
});

test("ranks share RAM and SSD; each has the blocks of its own engine", () => {
  const blocks = new Blocks();
  using feeds = feedsOf(blocks, { ranks: [0, 1] });
  const all = feeds.logs.map((residency) => {
    const sets = emptySets();
    residency.listen(({ changes }) => applyAll(sets, changes));
    return { residency, sets };
  });
  blocks.chain(1, 4, "host");
  blocks.chain(1, 2, "disk");
  blocks.chain(1, 3, "device");
  feeds.engineChanged(1, TOKENS, [stored(7, 3)]);
  feeds.engineChanged(9, TOKENS, [stored(7, 3)]);
  const sizes = all.map(({ residency, sets }) => {
    expect(residency.heartbeat().digests).toEqual(digestsOf(sets));
    return [sets.device.size, sets.host.size, sets.disk.size];
  });
  expect(sizes).toEqual([
    [0, 4, 2],
    [3, 4, 2],
  ]);
  expect(feeds.logs.map((residency) => residency.heartbeat().spaces.length)).toEqual([1, 2]);
});
