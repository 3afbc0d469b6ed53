import { expect, test } from "bun:test";
import { describeNative, faultCounts, waitFor } from "../../support/index.ts";
import { chain } from "../names.ts";
import { openStoreKit, PAGE } from "../store-kit.ts";
import { Life, named, outcomes, useLife } from "./lifecycle-kit.ts";

const many = (count: number, prefix = "x") => Array.from({ length: count }, (_, i) => prefix + i);

describeNative("Pin flow", () => {
  const it = useLife();

  it("a RAM-only block is durable on SSD when the pin is done", {
    writePolicy: "write_back",
  }, async ({ kit, life, where, restart }) => {
    await kit.engine().put(...chain("a/b/c"));
    expect(where("a", "a/b", "a/b/c")).toEqual(["ram", "ram", "ram"]);
    const report = await life.pin("o", "a/b");
    expect(outcomes(report.results)).toEqual(["done"]);
    expect(report).toMatchObject({ durable: true, bytes: 5_000, counts: { done: 1 } });
    expect(kit.ssdHolds("a/b")).toBe(true);
    const next = await restart();
    expect(next.life.holds.list({ kind: "pin", owner: null, after: 0, max: 9 }).holds).toHaveLength(
      1,
    );
    expect(await next.kit.engine().load("a/b")).toEqual(["ok"]);
    next.life.letGoAll();
  });

  it("sticky eviction: a pinned prefix survives a flood, byte for byte", {
    slots: 8,
    capacityBytes: 20 * 12_288,
  }, async ({ kit, life }) => {
    const engine = kit.engine();
    await engine.put(...chain("a/b/c"), ...chain("z/y"));
    await kit.settled();
    expect(outcomes((await life.pin("o", "a/b/c")).results)).toEqual(["done"]);
    for (const name of many(60)) {
      await engine.put(name);
      await kit.settled();
    }
    expect(await engine.load(...chain("a/b/c"))).toEqual(["ok", "ok", "ok"]);
    expect(await engine.load("z", "z/y")).toEqual(["miss", "miss"]);
  });

  it("a pin of a durable block on SSD costs no sync of the disk", {}, async ({
    host,
    kit,
    life,
    faults,
  }) => {
    await kit.engine().put("a", "b");
    await kit.settled();
    await life.pin("o", "a");
    faults("count");
    const report = await life.pin("o", "a", "b");
    expect(report).toMatchObject({ durable: true, counts: { done: 2 } });
    expect(faultCounts(host.native)["sync.sync"]).toBeUndefined();
  });

  it("a pin of a block written since the last sync costs one sync, counting its ancestors", {
    writePolicy: "write_back",
  }, async ({ host, kit, life, faults }) => {
    const engine = kit.engine();
    await engine.put("a", "a/b", "old");
    await kit.ssd.persist();
    await life.pin("o", "old");
    await engine.put("n");
    faults("count");
    await kit.ssd.secure([kit.nodeOf("n")]);
    const syncs = () => faultCounts(host.native)["sync.sync"] ?? 0;
    expect((await life.pin("o", "old", "a/b")).durable).toBe(true);
    expect(syncs()).toBe(0);
    expect((await life.pin("o", "n")).durable).toBe(true);
    expect(syncs()).toBe(1);
    // The block is on SSD; its parent was stored again in RAM only.
    await kit.ssd.room.drop(kit.nodeOf("a"));
    expect(kit.ssdHolds("a")).toBe(false);
    expect((await life.pin("o", "a/b")).durable).toBe(true);
    expect(kit.ssdHolds("a")).toBe(true);
    expect(syncs()).toBe(2);
  });

  it("concurrent pins share the syncs that they need", {
    writePolicy: "write_back",
  }, async (t) => {
    const { kit, life, host, faults } = t;
    const names = many(8);
    await kit.engine().put(...names);
    faults("count");
    const reports = await Promise.all(names.map((name) => life.pin("o", name)));
    expect(reports.flatMap(({ results }) => outcomes(results))).toEqual(names.map(() => "done"));
    expect(faultCounts(host.native)["sync.sync"]!).toBeLessThanOrEqual(3);
  });

  it("a pin of an unknown block is missing and changes nothing", {}, async ({ life }) => {
    let told = 0;
    const remember = () => told++;
    const report = await life.own.pin([named("a")], { owner: "o", ttlMs: null, remember });
    expect(report).toMatchObject({ counts: { missing: 1 }, durable: false });
    expect(life.holds.counts().pin).toMatchObject({ holds: 0, blocks: 0 });
    expect(told).toBe(0);
  });

  it("a block that is only on SSD can be pinned", {}, async ({ kit, life, where }) => {
    await kit.engine().put("a");
    await kit.settled();
    kit.leaveRam();
    expect(outcomes((await life.pin("o", "a")).results)).toEqual(["done"]);
    expect(where("a")).toEqual(["ssd"]);
  });

  it("pins are counted by owner, and a block named twice in one command counts once", {}, async ({
    kit,
    life,
  }) => {
    await kit.engine().put("a");
    await kit.settled();
    await life.pin("o", "a", "a");
    await life.pin("p", "a");
    expect(outcomes((await life.unpin("o", "a")).results)).toEqual(["done"]);
    expect(outcomes((await life.unpin("o", "a")).results)).toEqual(["already"]);
    expect(kit.store.table.pinsOf(kit.nodeOf("a"))).toBe(1);
    expect(outcomes((await life.unpin("p", "a", "none")).results)).toEqual(["done", "missing"]);
    expect(kit.store.table.isKept(kit.nodeOf("a"))).toBe(false);
  });

  it("an unpinned block is evictable again", { slots: 4 }, async ({ kit, life }) => {
    const engine = kit.engine();
    await engine.put("a");
    await life.pin("o", "a");
    await life.unpin("o", "a");
    await kit.settled();
    kit.ssd.room.setCapacity(0);
    kit.ssd.room.trim();
    kit.leaveRam();
    expect(await engine.load("a")).toEqual(["miss"]);
  });

  it("on a full disk the pin is taken, and its copy is reported as outstanding", {
    writePolicy: "write_back",
  }, async ({ kit, life, faults, where }) => {
    await kit.engine().put("a");
    faults("store.write:1+:ENOSPC");
    const report = await life.pin("o", "a");
    expect(outcomes(report.results)).toEqual(["deferred ssd"]);
    expect(where("a")).toEqual(["ram"]);
    kit.leaveRam();
    expect(where("a")).toEqual(["ram"]);
    faults("");
    await kit.until(() => kit.ssdHolds("a"), "the copy");
    expect(outcomes((await life.pin("o", "a")).results)).toEqual(["done"]);
  });

  it("a pin does not wait for a hung disk", { writePolicy: "write_back" }, async (t) => {
    const { kit, life, faults } = t;
    await kit.engine().put("a");
    faults("store.write:1+:freeze");
    let isOver = false;
    const pinned = life.pin("o", "a").finally(() => {
      isOver = true;
    });
    // The write, and with it the hang, starts after the bytes were hashed.
    await waitFor(async () => {
      await kit.clock.advanceAsync(250, 250);
      return isOver;
    });
    const report = await pinned;
    expect(outcomes(report.results)).toEqual(["deferred ssd"]);
    expect(report.durable).toBe(false);
    faults("");
    await kit.settled();
  });

  it("a pin whose sync fails is taken, and reported as not durable", {
    writePolicy: "write_back",
  }, async (t) => {
    const { kit, life, faults } = t;
    await kit.engine().put("a");
    faults("sync.sync:1+:EIO");
    expect(outcomes((await life.pin("o", "a")).results)).toEqual(["deferred durable"]);
    faults("");
    expect(outcomes((await life.pin("o", "a")).results)).toEqual(["done"]);
  });

  it("a pinned transient block stays in RAM and is never copied", {}, async ({
    kit,
    life,
    where,
  }) => {
    await kit.engine().put({ name: "a", transient: true });
    expect(outcomes((await life.pin("o", "a")).results)).toEqual(["deferred transient"]);
    kit.leaveRam();
    await kit.settled();
    expect(where("a")).toEqual(["ram"]);
  });

  it("a pin is aborted at shutdown, and reports the pins taken so far", {
    writePolicy: "write_back",
  }, async ({ kit, life, faults }) => {
    await kit.engine().put("a");
    faults("store.write:1+:freeze");
    const pinned = life.pin("o", "a");
    life.stop.abort();
    expect(outcomes((await pinned).results)).toEqual(["deferred ssd"]);
    faults("");
    await kit.settled();
  });

  it("a pin above the budget is rejected with figures", {
    life: { capacityBytes: 7_000 },
  }, async ({ kit, life }) => {
    await kit.engine().put("a", "b");
    await kit.settled();
    const report = await life.pin("o", "a", "b");
    expect(outcomes(report.results)).toEqual(["done", "rejected budget"]);
    expect(report.figures).toMatchObject({ hostBudgetBytes: 7_000 });
  });

  it("the record is written before the pin waits for anything", {
    writePolicy: "write_back",
  }, async (t) => {
    const { kit, life } = t;
    await kit.engine().put("a", "b");
    await kit.ssd.persist();
    await kit.engine().put("c");
    const told: string[][] = [];
    const remember = (results: Parameters<typeof outcomes>[0]) => told.push(outcomes(results));
    const options = { owner: "o", ttlMs: null, remember };
    const pinned = life.own.pin(["a", "c", "none"].map(named), options);
    expect(told).toEqual([["done", "deferred ssd", "missing"]]);
    expect(outcomes((await pinned).results)).toEqual(["done", "done", "missing"]);
    void life.own.unpin([named("a")], { owner: "o", remember });
    void life.own.retain([named("b")], { owner: "o", priority: 3, idleMs: null, remember });
    expect(told.slice(1)).toEqual([["done"], ["done"]]);
    await life.holds.commit();
  });

  it("an owner has one soft pin per block, the last one set", {}, async ({ kit, life }) => {
    await kit.engine().put("a");
    await kit.settled();
    const retain = (priority: number) =>
      life.own.retain([named("a")], { owner: "o", priority, idleMs: 1_000 });
    await retain(5);
    expect(outcomes((await retain(80)).results)).toEqual(["done"]);
    const { holds } = life.holds.list({ kind: "retain", owner: "o", after: 0, max: 9 });
    expect(holds.map(({ priority }) => priority)).toEqual([80]);
    expect(outcomes((await retain(0)).results)).toEqual(["done"]);
    expect(outcomes((await retain(0)).results)).toEqual(["already"]);
    expect(kit.store.table.isKept(kit.nodeOf("a"))).toBe(false);
  });

  test("without an SSD tier a pinned block stays in RAM", async () => {
    await using kit = openStoreKit({ arenaBytes: 4 * 2 * PAGE });
    await using life = new Life(kit.store, kit.clock, null);
    const engine = kit.engine();
    await engine.put("a", "b");
    const report = await life.pin("o", "a");
    expect(outcomes(report.results)).toEqual(["done"]);
    expect(report.durable).toBe(false);
    for (const name of many(12)) await engine.put(name);
    expect(engine.get("a", "b")).toEqual(["ok", "miss"]);
  });
});
