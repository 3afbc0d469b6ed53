import { expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { LAYER_ALL, type NamespaceIndex, type NodeId } from "../../../src/core/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { createAddressBatch, type TieredStore } from "../../../src/store/index.ts";
import { describeNative } from "../../support/index.ts";
import { verifyTable } from "../blocks/verify-table.ts";
import { chain, digestOf } from "../names.ts";
import { openStoreKit, PAGE } from "../store-kit.ts";
import { verifyStore } from "../verify-store.ts";
import { Life, named, ORIGIN, outcomes, useLife } from "./lifecycle-kit.ts";

describeNative("Prune flow", () => {
  const it = useLife();

  it("a block that an engine is writing stays, and is reported", {}, async ({
    kit,
    life,
    where,
  }) => {
    const engine = kit.engine();
    await engine.put("a");
    const writes = engine.reserve("a/b");
    const report = await life.own.prune(named("a"), ORIGIN);
    expect(report.held).toMatchObject([{ outcome: "held", by: [{ kind: "engine" }] }]);
    engine.write(writes);
    expect(await engine.commit(writes)).toEqual(["ok"]);
    expect(where("a/b")).not.toEqual([""]);
  });

  it("all descendants are removed from RAM and SSD, and the block stays", {}, async (t) => {
    const { kit, life, where, restart } = t;
    const engine = kit.engine();
    await engine.put(...chain("a/b/c"), "a/b/d", "a/e", "z");
    await kit.settled();
    const file = kit.fileOf("a/b/c");
    const report = await life.prune("a");
    expect(outcomes(report.results)).toEqual(["done"]);
    expect(report).toMatchObject({ counts: { done: 4, held: 0 }, bytes: 20_000, durable: true });
    expect(existsSync(file)).toBe(false);
    expect(where("a", "a/b", "a/b/c", "a/b/d", "a/e", "z")).toEqual([
      "ram+ssd",
      "",
      "",
      "",
      "",
      "ram+ssd",
    ]);
    expect(await engine.load(...chain("a/b/c"), "z")).toEqual(["ok", "miss", "miss", "ok"]);
    expect(outcomes((await life.prune("a")).results)).toEqual(["already"]);
    const next = await restart();
    expect(await next.kit.engine().load("a", "a/b", "a/e", "z")).toEqual([
      "ok",
      "miss",
      "miss",
      "ok",
    ]);
  });

  it("the issuer of a prune is recorded", {}, async ({ kit, life }) => {
    await kit.engine().put("a", "a/b");
    await life.prune("a");
    const batch = createAddressBatch(1);
    batch.count = 1;
    batch.layer = LAYER_ALL;
    batch.digests.set(digestOf("a/b"));
    kit.store.deriveKeys(batch, false);
    expect(kit.store.departures.find(batch.keys, 0)).toMatchObject({
      reason: "pruned",
      by: "router c-1",
    });
  });

  it("an unknown block is missing, unless it is known as a parent", {}, async (t) => {
    await t.kit.engine().put("a/b");
    expect(outcomes((await t.life.prune("x")).results)).toEqual(["missing"]);
    expect((await t.life.prune("a")).counts.done).toBe(1);
    expect(t.where("a/b")).toEqual([""]);
  });

  it("a hash is resolved in every namespace", {}, async ({ kit, life, where }) => {
    await kit.engine(1).put({ name: "a", alias: 7n }, "a/b");
    await kit.engine(2).put({ name: "x", alias: 7n }, "x/y");
    const name = { kind: "hash", given: 7, lo: 7, hi: 0 } as const;
    expect((await life.own.prune(name, ORIGIN)).counts.done).toBe(2);
    expect(where("a", "a/b", "x", "x/y").map((tiers) => tiers !== "")).toEqual([
      true,
      false,
      true,
      false,
    ]);
    await kit.settled();
  });

  it("protected descendants stay with their ancestors, and are reported", {
    slots: 16,
  }, async (t) => {
    const { kit, life, where } = t;
    const engine = kit.engine();
    await engine.put(...chain("a/pin/x/y"), ...chain("a/lease/l"), "a/session", "a/read", "a/go");
    await kit.settled();
    await life.pin("o", "a/pin/x");
    await life.pause("nap", "a/lease");
    engine.sessionCommit(9n, "a/session");
    const held = await engine.fetch(["a/read"]);
    const report = await life.prune("a");
    expect(outcomes(report.results)).toEqual(["held"]);
    expect(report.counts).toMatchObject({ done: 3, held: 5 });
    const by = new Map(report.held.map((block) => [block.digest, block.by]));
    const holderOf = (name: string) => by.get(digestOf(name).toHex());
    expect(holderOf("a/pin/x")).toEqual([{ kind: "pin", owner: "o" }]);
    expect(holderOf("a/pin")).toEqual([{ kind: "descendants" }]);
    expect(holderOf("a/lease")).toEqual([{ kind: "lease", owner: "o", name: "nap" }]);
    expect(holderOf("a/session")).toEqual([{ kind: "session", name: "9" }]);
    expect(holderOf("a/read")).toEqual([{ kind: "engine" }]);
    expect(where("a/pin/x/y", "a/lease/l", "a/go")).toEqual(["", "", ""]);
    expect(await engine.load("a", "a/pin", "a/pin/x", "a/lease", "a/session", "a/read")).toEqual(
      Array(6).fill("ok"),
    );
    engine.release(held);
    engine.sessionRelease(9n);
  });

  it("blocks only on a GPU stay with their engine", {}, async ({ kit, life }) => {
    const engine = kit.engine();
    await engine.put("a");
    engine.gpuStored("a/b", "a/b/c");
    await engine.put("a/b");
    const report = await life.prune("a");
    expect(report.counts).toMatchObject({ done: 1, held: 1 });
    expect(report.held[0]!.by).toEqual([{ kind: "gpu" }]);
    expect(engine.match(["a/b"])).toEqual([1, Tier.gpu]);
  });

  it("a receipt reports copies of removed blocks in GPU memory", {}, async ({ kit, life }) => {
    const engine = kit.engine();
    await engine.put(...chain("a/b/c"));
    engine.gpuStored("a/b", "a/b/c");
    const report = await life.prune("a");
    expect(report.counts).toMatchObject({ done: 2, held: 0 });
    expect(report.results).toEqual([
      {
        outcome: "done",
        reason: "gpu: an engine has 2 of the removed blocks in GPU memory until it evicts them",
      },
    ]);
    expect(engine.match(["a/b", "a/b/c"])).toEqual([2, Tier.gpu, Tier.gpu]);
  });

  it("writes to SSD are cancelled", { writePolicy: "write_back" }, async (t) => {
    const { kit, life, where, faults } = t;
    await kit.engine().put(...chain("a/b/c"));
    faults("store.write:1+:delay=50");
    const persisted = kit.ssd.persist();
    const report = await life.prune("a");
    expect(report.counts).toMatchObject({ done: 2, held: 0 });
    await persisted;
    await kit.settled();
    expect(where("a", "a/b", "a/b/c")).toEqual(["ram+ssd", "", ""]);
    expect(kit.files()).toHaveLength(1);
  });

  it("on a hung disk the prune ends, and reports that it is incomplete", {}, async ({
    kit,
    life,
    faults,
  }) => {
    const engine = kit.engine();
    await engine.put("a", "a/b", "a/c");
    await kit.settled();
    faults("remove.unlink:1+:freeze");
    const pruned = life.prune("a");
    const report = await kit.clock.advanceUntil(pruned, 250);
    expect(outcomes(report.results)).toEqual(["deferred durable"]);
    expect(report).toMatchObject({ counts: { done: 0, deferred: 2 }, durable: false });
    expect(engine.get("a/b")).toEqual(["miss"]);
    faults("");
    await kit.until(() => kit.files().length === 1, "the removals");
  });

  it("a file that cannot be removed is reported", {}, async ({ kit, life, faults }) => {
    await kit.engine().put("a", "a/b", "a/c");
    await kit.settled();
    faults("remove.unlink:1:EIO");
    const report = await life.prune("a");
    expect(outcomes(report.results)).toEqual(["deferred ssd"]);
    expect(report.counts).toMatchObject({ done: 1, deferred: 1 });
    faults("");
    await kit.until(() => kit.files().length === 1);
  });

  it("a prune whose sync fails is reported as not durable", {}, async ({ kit, life, faults }) => {
    await kit.engine().put("a", "a/b");
    await kit.settled();
    faults("sync.sync:1:EIO");
    expect(outcomes((await life.prune("a")).results)).toEqual(["deferred durable"]);
    expect(outcomes((await life.prune("a")).results)).toEqual(["already"]);
  });

  it("blocks that engines write into the subtree meanwhile are complete", {
    slots: 64,
  }, async (t) => {
    const { kit, life } = t;
    const engine = kit.engine();
    for (let round = 0; round < 12; round++) {
      const names = Array.from({ length: 12 }, (_, i) => `a/b/${round}-${i}`);
      const [first, ...rest] = ["a", "a/b", ...names];
      await engine.put(first!);
      const [pruned] = await Promise.all([life.prune("a"), engine.put(...rest)]);
      expect(["done", "already", "held"]).toContain(pruned!.results[0]!.outcome);
      for (const read of await engine.load(...names)) expect(["ok", "miss"]).toContain(read);
      // Every remaining block can be found from the root.
      for (const name of names) {
        if (kit.nodeOf(name) !== 0) expect(kit.nodeOf("a/b")).not.toBe(0);
      }
      verifyStore(kit.store);
    }
    await kit.settled();
    expect((await life.prune("a")).results[0]!.outcome).not.toBe("held");
    expect(kit.store.table.nodeCount).toBe(1);
  });

  it("a prune ends at shutdown, and when its caller has gone", {}, async ({ kit, life }) => {
    await kit.engine().put("a", "a/b");
    const signal = AbortSignal.abort();
    const report = await life.own.prune(named("a"), ORIGIN, { signal });
    expect(outcomes(report.results)).toEqual(["deferred aborted"]);
  });

  test("a prune of 200,000 blocks yields to the event loop many times", async () => {
    const BLOCKS = 200_000;
    await using kit = openStoreKit({ arenaBytes: (BLOCKS + 512) * PAGE, blocksMax: BLOCKS + 9 });
    await using life = new Life(kit.store, kit.clock, null);
    plant(kit.store, BLOCKS);
    let turns = 0;
    let told = 0;
    const ticking = setInterval(() => kit.clock.advance(1), 0);
    const counting = () => {
      turns++;
      if (told >= 0) setImmediate(counting);
    };
    setImmediate(counting);
    const progress: number[] = [];
    const report = await life.own.prune(named("root"), ORIGIN, {
      onProgress: ({ doneBlocks }) => progress.push(doneBlocks),
    });
    told = -1;
    clearInterval(ticking);
    expect(report.counts).toMatchObject({ done: BLOCKS, held: 0 });
    expect(kit.store.table.nodeCount).toBe(1);
    expect(turns).toBeGreaterThan(BLOCKS / 4_096 / 2);
    verifyTable(kit.store.table);
  });
});

/** Stores chains of 50 blocks below one root in RAM, without contents. */
function plant(store: TieredStore, blocks: number): void {
  const { table, slots, ram } = store;
  const batch = createAddressBatch(1);
  const put = (digests: Uint8Array, n: number) => {
    digests.fill(0);
    if (n === 0) digests.set(digestOf("root"));
    else new DataView(digests.buffer, digests.byteOffset).setUint32(0, n);
  };
  for (let n = 0; n <= blocks; n++) {
    batch.count = 1;
    batch.layer = LAYER_ALL;
    batch.bytes[0] = PAGE;
    put(batch.digests, n);
    put(batch.parents, n % 50 === 1 ? 0 : n - 1);
    store.deriveKeys(batch, true);
    const node = table.insertResident(batch, 0, 1 as NamespaceIndex, n > 0, Tier.ram) as NodeId;
    const slot = slots.reserve(PAGE);
    table.setSlot(node, slot, slots.generationOf(slot));
    slots.setNode(slot, node);
    slots.publish(slot);
    ram.touch([node], "stored");
  }
}
