import { expect } from "bun:test";
import { existsSync } from "node:fs";
import { LAYER_ALL } from "../../../src/core/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { purgeBlocks } from "../../../src/store/index.ts";
import { type BlockName, chain, digestOf } from "../names.ts";
import { flood, keyOf, load, names, pin, RAM, SSD, tiersOf } from "./pin-kit.ts";
import { FILE_BYTES } from "./ssd-kit.ts";
import { describeSsd } from "./use-kit.ts";

const WRITE_POLICIES = ["write_through", "write_through_selective", "write_back"] as const;

describeSsd("PIN behavior with tier transitions", (it) => {
  it("a pinned block moves from GPU to RAM to SSD to RAM, byte for byte", {
    slots: 4,
    capacityBytes: 8 * FILE_BYTES,
    writePolicy: "write_back",
  }, async ({ kit }) => {
    const engine = kit.engine();
    engine.gpuStored("a");
    await engine.put("a");
    using _pin = pin(kit, "a");
    engine.gpuEvicted("a");
    expect(engine.match(["a"])).toEqual([1, RAM]);
    await flood(kit, 12);
    expect(engine.match(["a"])).toEqual([1, SSD]);
    expect(await load(kit, "a")).toEqual(["ok"]);
    expect(engine.match(["a"])).toEqual([1, RAM]);
    await flood(kit, 12, "again");
    expect(engine.match(["a"])).toEqual([1, SSD]);
    expect(await load(kit, "a")).toEqual(["ok"]);
  });

  for (const writePolicy of WRITE_POLICIES) {
    it(`${writePolicy}: a pinned path survives a flood of three times all tiers`, {
      slots: 8,
      capacityBytes: 16 * FILE_BYTES,
      writePolicy,
    }, async ({ kit }) => {
      const engine = kit.engine();
      const path = chain("a/b/c/d");
      await engine.put(...path);
      await engine.put("a/other", "unpinned");
      // Pins the last block only; its ancestors are needed to find it.
      using _pin = pin(kit, "a/b/c/d");
      // One tick is enough for the copies.
      await flood(kit, 4, "first");
      await flood(kit, 3 * 24);
      expect(path.map((name) => tiersOf(kit, name))).toEqual([SSD, SSD, SSD, SSD]);
      expect(tiersOf(kit, "a/other")).toBe(0);
      expect(tiersOf(kit, "unpinned")).toBe(0);
      expect(await load(kit, ...path)).toEqual(["ok", "ok", "ok", "ok"]);
      expect(kit.store.table.keptBytes).toBe(4 * 5_000);
      expect(kit.allocatedBytes()).toBeLessThanOrEqual(16 * FILE_BYTES);
    });
  }

  it("a learning eviction order keeps pinned blocks too", {
    slots: 8,
    capacityBytes: 16 * FILE_BYTES,
    policy: "hearth",
  }, async ({ kit }) => {
    await kit.engine().put(...chain("a/b/c"));
    using _pin = pin(kit, "a/b/c");
    for (let round = 0; round < 4; round++) {
      await flood(kit, 3 * 24, `round${round}.`);
      expect(await load(kit, ...chain("a/b/c"))).toEqual(["ok", "ok", "ok"]);
    }
  });

  it("a pinned block is copied in the background under every policy", {
    writePolicy: "write_back",
  }, async ({ kit }) => {
    await kit.engine().put(...chain("a/b"), "c");
    using _pin = pin(kit, "a/b");
    expect(kit.store.table.keptInRamAloneBytes).toBe(2 * 5_000);
    await kit.until(() => kit.ssdHolds("a") && kit.ssdHolds("a/b"), "copies");
    expect([kit.ssdHolds("a"), kit.ssdHolds("a/b"), kit.ssdHolds("c")]).toEqual([
      true,
      true,
      false,
    ]);
    expect(kit.store.table.keptInRamAloneBytes).toBe(0);
    // The block may leave RAM now, and only the pin keeps it on SSD.
    expect(kit.store.table.isProtected(kit.nodeOf("a"), Tier.ram)).toBe(false);
    expect(kit.store.table.isProtected(kit.nodeOf("a"), Tier.ssd)).toBe(true);
    expect(kit.store.table.isKept(kit.nodeOf("c"))).toBe(false);
  });

  it("a block pinned before it is stored in RAM is written to SSD when it arrives", {
    writePolicy: "write_back",
  }, async ({ kit }) => {
    const engine = kit.engine();
    engine.gpuStored("a");
    using _pin = pin(kit, "a");
    await engine.put("a");
    await kit.settled();
    expect(kit.ssdHolds("a")).toBe(true);
    engine.gpuEvicted("a");
  });

  it("a pin of a block that is only on SSD keeps it there", {
    slots: 4,
    capacityBytes: 8 * FILE_BYTES,
  }, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    kit.leaveRam();
    using _pin = pin(kit, "a");
    await flood(kit, 36);
    expect(tiersOf(kit, "a")).toBe(SSD);
    expect(await load(kit, "a")).toEqual(["ok"]);
  });

  it("an unpinned block is evicted like any other", {
    slots: 4,
    capacityBytes: 8 * FILE_BYTES,
  }, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a");
    const pinned = pin(kit, "a");
    await flood(kit, 36);
    expect(tiersOf(kit, "a")).toBe(SSD);
    pinned[Symbol.dispose]();
    await flood(kit, 36, "more");
    expect(engine.get("a")).toEqual(["miss"]);
    const departure = kit.store.departures.find(keyOf(kit, "a"), 0);
    expect(departure).toMatchObject({ reason: "evicted", tier: "ssd", by: null });
  });

  it("a time to live does not end a pin", { ttlMs: 60_000 }, async ({ kit }) => {
    await kit.engine().put("a", "b");
    await kit.settled();
    kit.leaveRam();
    using _pin = pin(kit, "a");
    await kit.pass(61_500);
    expect([tiersOf(kit, "a"), tiersOf(kit, "b")]).toEqual([SSD, 0]);
    expect(kit.store.departures.find(keyOf(kit, "b"), 0)).toMatchObject({ reason: "expired" });
  });

  it("a pinned transient block stays in RAM and is never written", {
    slots: 4,
  }, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put({ name: "a", transient: true });
    using _pin = pin(kit, "a");
    expect(await kit.ssd.secure([kit.nodeOf("a")])).toEqual([false]);
    await kit.pass(1_000);
    await flood(kit, 12);
    expect(tiersOf(kit, "a")).toBe(RAM);
    expect(existsSync(kit.fileOf("a"))).toBe(false);
    expect(engine.get("a")).toEqual(["ok"]);
  });

  it("a purge keeps pinned blocks and their ancestors", {}, async ({ kit }) => {
    await kit.engine().put(...chain("a/b"));
    await kit.settled();
    const address = (name: BlockName) => ({ digest: digestOf(name), layer: LAYER_ALL });
    const pinned = pin(kit, "a/b");
    kit.leaveRam();
    expect(await purgeBlocks(kit.store, ["a/b", "a"].map(address))).toEqual(["held", "held"]);
    pinned[Symbol.dispose]();
    const cause = { reason: "pruned", by: "operator/7" } as const;
    expect(await purgeBlocks(kit.store, ["a/b", "a"].map(address), cause)).toEqual([
      "done",
      "done",
    ]);
    expect(kit.store.departures.find(keyOf(kit, "a"), 0)).toMatchObject(cause);
  });
});

describeSsd("blocks that a command makes durable", (it) => {
  it("are on SSD when secure answers, also through a queue of one", {
    writePolicy: "write_back",
    writeQueueBytes: 5_000,
    slots: 16,
  }, async ({ kit, reopen }) => {
    const blocks = names(12);
    await kit.engine().put(...blocks);
    const nodes = blocks.map((name) => kit.nodeOf(name));
    expect(await kit.ssd.secure(nodes)).toEqual(blocks.map(() => true));
    expect(await kit.ssd.secure(nodes)).toEqual(blocks.map(() => true));
    expect(kit.files()).toHaveLength(12);
    expect(await kit.ssd.makeDurable()).toBe(true);
    const next = await reopen();
    expect(await next.engine().load(...blocks)).toEqual(blocks.map(() => "ok"));
  });

  it("include the retained ancestors", {
    writePolicy: "write_back",
  }, async ({ kit }) => {
    await kit.engine().put(...chain("a/b/c"), "a/other");
    expect(await kit.ssd.secure([kit.nodeOf("a/other")])).toEqual([true]);
    expect(kit.files()).toHaveLength(1);
    using _pin = pin(kit, "a/b/c");
    expect(await kit.ssd.secure([kit.nodeOf("a/b/c")])).toEqual([true]);
    expect(chain("a/b/c").map((name) => kit.ssdHolds(name))).toEqual([true, true, true]);
  });

  it("wait for the disk until the signal fires", {
    writePolicy: "write_back",
  }, async ({ kit, faults }) => {
    await kit.engine().put("a", "b");
    faults("store.write:1+:freeze");
    const stop = new AbortController();
    const secured = kit.ssd.secure([kit.nodeOf("a"), kit.nodeOf("b")], stop.signal);
    await kit.clock.advanceAsync(1_000, 250);
    stop.abort();
    expect(await secured).toEqual([false, false]);
    expect(await kit.ssd.secure([kit.nodeOf("a")], stop.signal)).toEqual([false]);
    faults("");
    await kit.settled();
    expect(kit.ssdHolds("a")).toBe(true);
  });

  it("are reported as absent if they are removed meanwhile", {
    writePolicy: "write_back",
    writeQueueBytes: 5_000,
  }, async ({ kit, faults }) => {
    await kit.engine().put("a", "b");
    faults("store.write:1:freeze");
    const nodes = [kit.nodeOf("a"), kit.nodeOf("b")];
    const secured = kit.ssd.secure(nodes);
    kit.store.ram.drop(nodes[1]!);
    faults("");
    expect(await secured).toEqual([true, false]);
  });
});
