import { expect } from "bun:test";
import { describeNative, faultCounts } from "../../support/index.ts";
import { chain } from "../names.ts";
import { hexOf } from "../store-engine.ts";
import { FILE_BYTES, type SsdKit } from "./ssd-kit.ts";
import { useSsdKit } from "./use-kit.ts";

const RAM = 2;
const SSD = 4;
const names = (count: number, prefix = "x") => Array.from({ length: count }, (_, i) => prefix + i);

describeNative("SSD tier: writing", () => {
  const it = useSsdKit();

  it("write_through: every block is written after its commit", {}, async ({ kit }) => {
    const engine = kit.engine();
    expect(await engine.put(...chain("a/b/c"))).toEqual(["ok", "ok", "ok"]);
    await kit.settled();
    expect(kit.files()).toHaveLength(3);
    expect(kit.ssd.room.usedBytes).toBe(3 * FILE_BYTES);
    expect(kit.allocatedBytes()).toBe(3 * FILE_BYTES);
    kit.leaveRam();
    expect(engine.match(chain("a/b/c"))).toEqual([3, SSD, SSD, SSD]);
    expect(engine.match(["a"], RAM)).toEqual([0, 0]);
    expect(await engine.load(...chain("a/b/c"))).toEqual(["ok", "ok", "ok"]);
    expect(engine.match(chain("a/b/c"))).toEqual([3, RAM, RAM, RAM]);
  });

  it("a RAM hit evicts no block from a full SSD", {
    slots: 4,
    capacityBytes: 2 * FILE_BYTES,
  }, async ({ kit }) => {
    const engine = kit.engine();
    for (const name of ["a", "b", "c", "d"]) {
      await engine.put(name);
      await kit.settled();
    }
    const written = kit.store.ssdStats.writtenBlocks;
    for (let round = 0; round < 3; round++) engine.get("a", "b");
    await kit.settled();
    expect(kit.store.ssdStats.writtenBlocks).toBe(written);
    expect(engine.match(["c"], SSD)).toEqual([1, SSD]);
  });

  it("write_through_selective: a block is written when it is requested a second time", {
    writePolicy: "write_through_selective",
  }, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a", "b");
    await kit.settled();
    expect(kit.files()).toEqual([]);
    engine.get("a");
    await kit.settled();
    expect(kit.files()).toHaveLength(1);
    kit.leaveRam();
    expect(await engine.load("a", "b")).toEqual(["ok", "miss"]);
  });

  it("write_back: a block is written when it leaves RAM, and not before", {
    writePolicy: "write_back",
    slots: 4,
  }, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a", "b", "c", "d");
    engine.get("a", "b", "c", "d");
    await kit.settled();
    expect(kit.files()).toEqual([]);
    // All four blocks are queued for writing; no slot is free before one is written.
    expect(engine.reserve("e")[0]!.outcome).toBe("full");
    await kit.settled();
    expect(kit.files()).toHaveLength(4);
    expect(await engine.put("e")).toEqual(["ok"]);
    expect(await engine.load("a", "b", "c")).toEqual(["ok", "ok", "ok"]);
  });

  it("many small blocks are evicted for a large one, in slices", {
    slots: 512,
    capacityBytes: 300 * FILE_BYTES,
  }, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put(...names(300));
    await kit.settled();
    kit.leaveRam();
    const bytes = 299 * FILE_BYTES - 4_096;
    const [large] = engine.reserve({ name: "large", bytes });
    engine.write([large!]);
    expect(await engine.commit([large!])).toEqual(["ok"]);
    expect(kit.store.ssdStats.evictedBlocks).toBe(256);
    await kit.settled();
    expect(kit.ssdHolds("large")).toBe(true);
    expect(kit.store.ssdStats.evictedBlocks).toBe(299);
  });

  it("write_back: a block used again while it is written stays in RAM", {
    writePolicy: "write_back",
    slots: 4,
  }, async ({ kit, faults }) => {
    const engine = kit.engine();
    await engine.put("a", "b", "c", "d");
    faults("store.write:1+:freeze");
    expect(engine.reserve("e")[0]!.outcome).toBe("full");
    expect(engine.get("b")).toEqual(["ok"]);
    faults("");
    await kit.settled();
    expect(engine.match(["a"])).toEqual([1, SSD]);
    expect(engine.match(["b"])).toEqual([1, RAM]);
    expect(kit.ssdHolds("b")).toBe(true);
  });

  for (const writePolicy of ["write_through", "write_through_selective", "write_back"] as const) {
    it(`${writePolicy}: a transient block is never written`, { writePolicy }, async ({ kit }) => {
      const engine = kit.engine();
      await engine.put({ name: "a", transient: true });
      engine.get("a");
      engine.get("a");
      await engine.put(...names(20));
      expect((await kit.ssd.persist()).durable).toBe(true);
      await kit.settled();
      expect(kit.ssdHolds("a")).toBe(false);
      kit.leaveRam();
      expect(await engine.load("a")).toEqual(["miss"]);
    });
  }

  it("blocks beyond the queue's bound stay in RAM only", {
    writeQueueBytes: 10_000,
  }, async (t) => {
    const { kit } = t;
    t.faults("store.write:1+:freeze");
    const engine = kit.engine();
    await engine.put("a", "b", "c");
    expect(kit.ssd.writer.queuedBytes).toBe(10_000);
    expect(kit.store.ssdStats.skippedBlocks).toBe(1);
    t.faults("");
    await kit.settled();
    expect(["a", "b", "c"].map((name) => kit.ssdHolds(name))).toEqual([true, true, false]);
    // The next use queues the block again.
    engine.get("c");
    await kit.settled();
    expect(kit.ssdHolds("c")).toBe(true);
  });

  it("persist: all of RAM is durable on SSD", { writePolicy: "write_back" }, async ({
    kit,
    reopen,
  }) => {
    const engine = kit.engine();
    await engine.put(...names(6));
    expect(await kit.ssd.persist()).toEqual({ written: 6, skipped: 0, durable: true });
    expect(await kit.ssd.persist()).toEqual({ written: 0, skipped: 0, durable: true });
    const next = await reopen();
    expect(await next.engine().load(...names(6))).toEqual(Array(6).fill("ok"));
  });

  it("persist: writes more blocks than the queue takes at once", {
    writePolicy: "write_back",
    writeQueueBytes: 10_000,
  }, async ({ kit }) => {
    await kit.engine().put(...names(8));
    expect(await kit.ssd.persist()).toEqual({ written: 8, skipped: 0, durable: true });
  });

  it("persist: does not wait for later blocks", { depth: 2 }, async ({ kit, faults }) => {
    const engine = kit.engine();
    // Writes have one I/O slot: the second begins when the first has ended.
    faults("store.write:1:delay=200;store.write:2+:freeze");
    await engine.put("a");
    const persisted = kit.ssd.persist();
    await kit.clock.advanceAsync(0);
    await engine.put("b");
    expect(await persisted).toEqual({ written: 1, skipped: 0, durable: true });
    expect(kit.ssdHolds("b")).toBe(false);
  });

  it("persist: reports blocks that could not be written, and that they are not durable", {
    writePolicy: "write_back",
  }, async ({ kit, faults }) => {
    await kit.engine().put("a", "b");
    faults("store.write:1+:ENOSPC;sync.sync:1+:EIO");
    const report = await kit.ssd.persist();
    expect(report).toMatchObject({ written: 0, durable: false });
    expect(kit.files()).toEqual([]);
    faults("");
    await reopenGate(kit);
    expect(await kit.ssd.persist()).toMatchObject({ written: 2, durable: true });
  });

  it("a file's header contains the parent", {}, async ({ kit, reopen }) => {
    await kit.engine().put("a", "a/b");
    await kit.settled();
    const next = await reopen();
    const engine = next.engine();
    expect(engine.match(["a", "a/b"])).toEqual([2, SSD, SSD]);
    const { table } = next.store;
    expect(table.parentOf(next.nodeOf("a/b"))).toBe(next.nodeOf("a"));
  });
});

/** Makes a trial due, which closes the circuit breaker. */
async function reopenGate(kit: SsdKit): Promise<void> {
  await kit.clock.advanceAsync(2_000, 250);
  await kit.until(() => kit.ssd.takesBlocks);
}

describeNative("SSD tier: reading", () => {
  const it = useSsdKit();

  it("many readers of one block share one read", {}, async ({ kit, host, faults }) => {
    const engines = Array.from({ length: 12 }, () => kit.engine());
    await engines[0]!.put("a");
    await kit.settled();
    kit.leaveRam();
    faults("count");
    const read = await Promise.all(engines.map((engine) => engine.load("a")));
    expect(read).toEqual(Array(12).fill(["ok"]));
    expect(faultCounts(host.native)["load.open"]).toBe(1);
    expect(kit.store.ssdStats).toMatchObject({ readBlocks: 1, sharedReads: 11 });
    expect(kit.store.snapshot().slotsUsed).toBe(1);
  });

  it("a block named twice in one request is read once", {}, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    kit.leaveRam();
    expect(await engine.load("a", "a")).toEqual(["ok", "ok"]);
    expect(kit.store.ssdStats.readBlocks).toBe(1);
  });

  it("SSD is read only if the requested tiers include it", {}, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    kit.leaveRam();
    expect(engine.acquire(["a"], { tiers: RAM })[0]!.outcome).toBe("miss");
    expect((await engine.fetch(["a"], { tiers: SSD }))[0]!.outcome).toBe("ok");
  });

  it("a block read from SSD is evicted from RAM like any other", { slots: 4 }, async ({ kit }) => {
    const engine = kit.engine();
    for (const name of names(12)) {
      expect(await engine.put(name)).toEqual(["ok"]);
      await kit.settled();
    }
    for (let round = 0; round < 3; round++) {
      for (const name of names(12)) expect(await engine.load(name)).toEqual(["ok"]);
    }
    expect(await engine.put(...names(4, "y"))).toEqual(Array(4).fill("ok"));
  });

  it("another namespace finds no block", {}, async ({ kit }) => {
    await kit.engine(1).put("a");
    await kit.settled();
    kit.leaveRam();
    const stranger = kit.engine(2);
    expect(stranger.match(["a"])).toEqual([0, 0]);
    expect(await stranger.load("a")).toEqual(["miss"]);
    expect(stranger.reserve("a")[0]!.outcome).toBe("full");
    expect(await kit.engine(1).load("a")).toEqual(["ok"]);
  });

  it("reserve of a block on SSD is `present`, and counts as a use", { slots: 2 }, async ({
    kit,
  }) => {
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    await kit.clock.advanceAsync(5_000);
    kit.leaveRam();
    expect(engine.reserve("a")[0]!.outcome).toBe("present");
    expect(engine.holder.held).toBe(0);
    const { table } = kit.store;
    expect(table.lastUsedOf(kit.nodeOf("a"))).toBe(kit.store.nowSeconds());
    expect(table.usesOf(kit.nodeOf("a"))).toBe(2);
  });

  it("commit of other bytes replaces the file on SSD", {}, async ({ kit, reopen }) => {
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    kit.leaveRam();
    const [longer] = engine.reserve({ name: "a", bytes: 7_000 });
    expect(longer!.outcome).toBe("ok");
    expect(engine.match(["a"])).toEqual([0, 0]);
    engine.write([longer!]);
    expect(await engine.commit([longer!])).toEqual(["ok"]);
    await kit.settled();
    expect(kit.files()).toHaveLength(1);
    kit.leaveRam();
    const [read] = await engine.fetch(["a"]);
    expect(read).toMatchObject({ outcome: "ok", bytes: 7_000 });
    expect(engine.proves(read!)).toBe(true);
    engine.release([read!]);
    const next = await reopen();
    expect((await next.engine().fetch(["a"]))[0]).toMatchObject({ outcome: "ok", bytes: 7_000 });
  });

  it("aliases of a block are restored with it", {}, async ({ kit, reopen }) => {
    const engine = kit.engine();
    await engine.put({ name: "a", alias: 7n }, "b");
    await kit.settled();
    expect(engine.alias("b", 9n)).toBe("ok");
    const next = await reopen();
    const reader = next.engine();
    expect(reader.resolve(7n, 0xffff_ffff)).not.toBeNull();
    expect(reader.resolve(9n, 0xffff_ffff)).toBe(hexOf("b"));
  });
});
