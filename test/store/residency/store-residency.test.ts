import { afterAll, afterEach, expect, test } from "bun:test";
import {
  LAYER_ALL,
  type NamespaceIndex,
  type NodeId,
  type Random,
  randomBelow,
  seededRandom,
} from "../../../src/core/index.ts";
import { setFaults } from "../../../src/native/index.ts";
import { BlockTable, Tier } from "../../../src/store/blocks/index.ts";
import { createAddressBatch, StoreResidency } from "../../../src/store/index.ts";
import { describeNative, withTempDir } from "../../support/index.ts";
import { type BlockName, batchOf, chain, digestOf } from "../names.ts";
import { SsdHost } from "../ssd/ssd-kit.ts";
import { pick, Traffic } from "../ssd/traffic.ts";
import { openStoreKit, PAGE, type StoreKit } from "../store-kit.ts";
import { Follower } from "./follower.ts";

const STEPS = 200;

function prompt(random: Random): BlockName[] {
  const words = Array.from({ length: 1 + randomBelow(random, 4) }, () => pick(random, [..."abcd"]));
  return chain(words.join("/"));
}

/** One random step of engines with RAM and GPUs. */
async function step(kit: StoreKit, random: Random): Promise<void> {
  const engine = kit.engine(1 + randomBelow(random, 2));
  const names = prompt(random);
  const dice = randomBelow(random, 12);
  if (dice < 5) await engine.put(...names);
  else if (dice < 8) engine.gpuStored(...names);
  else if (dice < 9) engine.gpuEvicted(...names);
  else if (dice < 10) engine.abort(engine.reserve(...names));
  else engine.reserve(...names);
  // The engine's GPU blocks and reserved slots are removed with it.
  if (randomBelow(random, 3) === 0) engine.die();
}

describeNative("residency changes", () => {
  const host = new SsdHost();
  const seen = new Set<string>();
  afterEach(() => setFaults(host.native, ""));
  afterAll(() => host[Symbol.asyncDispose]());

  test("have one change per committed chain, and none for reserved blocks", async () => {
    await using kit = openStoreKit({ arenaBytes: 64 * PAGE });
    const follower = new Follower(kit.store);
    follower.check();
    const engine = kit.engine();
    engine.reserve("x", "x/y");
    await engine.put(...chain("a/b/c/d"));
    await engine.put("a/b/e");
    follower.check();
    const runs = follower.changes.map((change) => {
      return change.kind === "cleared" ? 0 : change.hashes.length;
    });
    expect(runs).toEqual([4, 1]);
    const [first, second] = follower.changes;
    if (first?.kind !== "stored" || second?.kind !== "stored") throw new Error("not stored");
    expect(first.parent).toBeNull();
    expect(second.parent).toBe(first.hashes[1]!);
    engine.die();
  });

  test("omit blocks of single layers", async () => {
    await using kit = openStoreKit({ arenaBytes: 64 * PAGE, gpuWindowBlocks: 8 });
    const follower = new Follower(kit.store);
    const batch = batchOf(chain("a/b"), 3);
    kit.store.deriveKeys(batch, true);
    const out = { outcome: new Uint8Array(2) } as never;
    kit.engine().holder.gpuStored(batch, Object.assign(out, { count: 0 }));
    expect(kit.store.table.residentBlocks(Tier.gpu)).toBe(2);
    follower.check();
    expect(follower.changes).toEqual([]);
  });

  for (const seed of [1, 2, 3, 4]) {
    test(`RAM and GPU: the published set equals the table (${seed})`, async () => {
      const small = { blocksMax: 48, gpuWindowBlocks: 10 };
      await using kit = openStoreKit({ arenaBytes: 24 * PAGE, ...small });
      const random = seededRandom(seed);
      const follower = new Follower(kit.store);
      for (let i = 0; i < STEPS; i++) {
        await step(kit, random);
        if (randomBelow(random, 3) === 0) follower.check();
        if (i % 50 === 49) kit.store.residency.restart();
      }
      follower.check();
      for (const { kind, tier } of follower.changes) seen.add(`${kind} ${tier}`);
    });
  }

  test("have covered every kind of event in some run", () => {
    expect([...seen].sort()).toEqual([
      ...["cleared null", "removed device", "removed host", "stored device", "stored host"],
    ]);
  });

  for (const seed of [21, 22, 23]) {
    test(
      `SSD, with faults, restarts and purges: the published set equals the table (${seed})`,
      () =>
        withTempDir(async (dir) => {
          const random = seededRandom(seed);
          const ageing = { ttlMs: 20_000, scrubBytesPerS: 20_000, policy: "hearth" } as const;
          const traffic = new Traffic(host, { dir, slots: 6, depth: 4, ...ageing }, random);
          await traffic.open();
          let { kit } = traffic;
          let follower = new Follower(kit.store);
          const plans = [
            "load.read:1+:flip",
            "*:3+:EIO",
            "store.write:2:short",
            "load.read:3+:EIO",
          ];
          for (let i = 0; i < STEPS; i++) {
            if (i % 30 === 15) setFaults(host.native, pick(random, plans));
            if (i % 30 === 0) setFaults(host.native, "");
            await traffic.step(i % 30 < 15);
            if (traffic.kit !== kit) {
              kit = traffic.kit;
              follower = new Follower(kit.store);
            }
            follower.check();
          }
          setFaults(host.native, "");
          await traffic.end();
        }),
      30_000,
    );
  }
});

/** A table with a chain of blocks on the GPU, without a store. */
function longChain(blocks: number, blocksMax: number) {
  const table = new BlockTable({
    nodesMax: blocks,
    random: seededRandom(1),
    onResidency: (node, tier, on) => residency.noted(node, tier, on),
  });
  const residency = new StoreResidency(table, blocksMax);
  const batch = createAddressBatch(blocks);
  batch.count = blocks;
  batch.layer = LAYER_ALL;
  for (let i = 0; i < blocks; i++) {
    batch.keys.set(new Uint32Array(Uint8Array.from(digestOf(`${i}`)).buffer), i * 8);
    if (i > 0) batch.parentKeys.set(batch.keys.subarray((i - 1) * 8, i * 8), i * 8);
  }
  const store = (i: number) =>
    table.insertResident(batch, i, 1 as NamespaceIndex, i > 0, Tier.gpu) as NodeId;
  return { table, residency, store };
}

test("beyond the bound are replaced by a restart that announces each block once, in slices", () => {
  const blocks = 20_000;
  const { table, residency, store } = longChain(blocks, 15_000);
  residency.start(() => undefined);
  const nodes = Array.from({ length: blocks }, (_, i) => store(i));
  const first = residency.drain();
  expect(residency.restarts).toBe(1);
  expect(first[0]).toEqual({ kind: "cleared", tier: null });
  const told = new Set<bigint>();
  const tell = (changes: typeof first) => {
    for (const change of changes) {
      if (change.kind !== "stored") continue;
      expect(change.hashes.length).toBeLessThanOrEqual(4_096);
      for (const hash of change.hashes) {
        expect(told.has(hash)).toBe(false);
        told.add(hash);
      }
    }
  };
  tell(first);
  let slices = 1;
  for (; residency.isAnnouncing; slices++) tell(residency.drain());
  expect(told.size).toBe(blocks);
  expect(slices).toBeGreaterThan(3);
  // Later changes are published normally.
  table.removeGpuHolder(nodes.at(-1)!);
  expect(residency.drain()).toHaveLength(1);
  expect(residency.digests[0]!.blocks).toBe(blocks - 1);
});
