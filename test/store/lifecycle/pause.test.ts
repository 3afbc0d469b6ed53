import { expect, spyOn, test } from "bun:test";
import { describeNative } from "../../support/index.ts";
import { chain } from "../names.ts";
import { openStoreKit } from "../store-kit.ts";
import { GRANTED, Life, named, ORIGIN, outcomes, useLife } from "./lifecycle-kit.ts";

const many = (count: number, prefix = "x") => Array.from({ length: count }, (_, i) => prefix + i);

describeNative("Pause flow", () => {
  const it = useLife();

  it("moves blocks from RAM to SSD under a lease that survives a restart", {
    writePolicy: "write_back",
  }, async ({ kit, life, where, restart }) => {
    const engine = kit.engine();
    const path = chain("a/b/c");
    await engine.put(...path);
    engine.sessionCommit(5n, "a/b/c");
    const report = await life.pause("nap", ...path);
    expect(outcomes(report.results)).toEqual(["done", "done", "done"]);
    expect(report).toMatchObject({ durable: true, bytes: 15_000, ttlMs: 60_000 });
    expect(where(...path)).toEqual(["ssd", "ssd", "ssd"]);
    expect(kit.store.sessions.size).toBe(0);
    const next = await restart();
    expect(next.life.holds.lease("nap")).toMatchObject({ blocks: 3, kind: "lease" });
    expect(await next.kit.engine().load(...path)).toEqual(["ok", "ok", "ok"]);
    next.life.letGoAll();
  });

  it("writes the ancestors of a paused block to SSD too; a transient ancestor is reported", {
    writePolicy: "write_back",
  }, async ({ kit, life, where }) => {
    const engine = kit.engine();
    await engine.put(...chain("a/b/c"));
    expect(outcomes((await life.pause("nap", "a/b/c")).results)).toEqual(["done"]);
    expect(where(...chain("a/b/c"))).toEqual(["ram+ssd", "ram+ssd", "ssd"]);
    await engine.put({ name: "x", transient: true }, "x/y");
    const report = await life.pause("other", "x/y");
    expect(outcomes(report.results)).toEqual(["deferred ssd"]);
    expect(where("x", "x/y")).toEqual(["ram", "ssd"]);
  });

  it("restores paused blocks from SSD after other traffic", {
    slots: 8,
    capacityBytes: 20 * 12_288,
  }, async ({ kit, life }) => {
    const engine = kit.engine();
    await engine.put(...chain("a/b/c"));
    await life.pause("nap", ...chain("a/b/c"));
    for (const name of many(60)) {
      await engine.put(name);
      await kit.settled();
    }
    expect(await engine.load(...chain("a/b/c"))).toEqual(["ok", "ok", "ok"]);
  });

  it("accepts blocks in any order", {}, async ({ kit, life, where }) => {
    await kit.engine().put(...chain("a/b/c"), ...chain("x/y/z"));
    await life.pause("nap", ...chain("a/b/c").reverse());
    await life.pause("nap", "x/y", "x", "x/y/z", "x");
    expect(where(...chain("a/b/c"), ...chain("x/y/z"))).toEqual(Array(6).fill("ssd"));
    expect(life.holds.lease("nap")).toMatchObject({ blocks: 6 });
  });

  it("keeps a prefix in RAM that others use there", {}, async ({ kit, life, where }) => {
    const engine = kit.engine();
    await engine.put(...chain("a/b/c"), "a/d");
    const read = await engine.fetch(["a/b"]);
    expect(outcomes((await life.pause("nap", ...chain("a/b/c"))).results)).toEqual([
      "done",
      "done",
      "done",
    ]);
    await kit.settled();
    expect(where("a", "a/b", "a/b/c", "a/d")).toEqual(["ram+ssd", "ram+ssd", "ssd", "ram+ssd"]);
    engine.release(read);
  });

  it("does not lease blocks that are missing, transient, or cannot be written", {
    writePolicy: "write_back",
  }, async ({ kit, life, where, faults }) => {
    await kit.engine().put("a");
    await kit.ssd.persist();
    await kit.engine().put("b", { name: "t", transient: true });
    faults("store.write:1+:ENOSPC");
    const report = await life.pause("nap", "a", "b", "t", "no");
    expect(outcomes(report.results)).toEqual([
      "done",
      "rejected ssd",
      "rejected transient",
      "missing",
    ]);
    expect(life.holds.lease("nap")).toMatchObject({ blocks: 1 });
    expect(where("b", "t")).toEqual(["ram", "ram"]);
    faults("");
    await kit.until(() => kit.ssd.takesBlocks);
    expect(outcomes((await life.pause("nap", "b")).results)).toEqual(["done"]);
    expect(life.holds.lease("nap")).toMatchObject({ blocks: 2 });
  });

  it("does not wait for a hung disk", { writePolicy: "write_back" }, async (t) => {
    const { kit, life, faults, where } = t;
    await kit.engine().put("a");
    faults("store.write:1+:freeze");
    const paused = life.pause("nap", "a");
    const report = await kit.clock.advanceUntil(paused, 250);
    expect(outcomes(report.results)).toEqual(["rejected ssd"]);
    expect(life.holds.lease("nap")).toBeNull();
    faults("");
    await kit.settled();
    expect(where("a")).not.toEqual([""]);
  });

  it("keeps blocks in RAM if the sync fails, on SSD under the lease", {}, async (t) => {
    const { kit, life, faults, where } = t;
    await kit.engine().put("a");
    await kit.settled();
    faults("sync.sync:1:EIO");
    expect(outcomes((await life.pause("nap", "a")).results)).toEqual(["deferred durable"]);
    expect(where("a")).toEqual(["ram+ssd"]);
    expect(outcomes((await life.pause("nap", "a")).results)).toEqual(["done"]);
    expect(where("a")).toEqual(["ssd"]);
  });

  it("a renewed lease lasts from the renewal, up to the maximum", {
    life: { leaseTtlMaxMs: 100_000 },
  }, async ({ kit, life }) => {
    await kit.engine().put("a");
    await kit.settled();
    const paused = await life.own.pause([named("a")], {
      lease: "nap",
      owner: "o",
      ttlMs: null,
      grant: GRANTED,
    });
    expect(paused.ttlMs).toBe(100_000);
    expect((await life.own.renewLease("nap", 500_000, { owner: "o", grant: GRANTED })).ttlMs).toBe(
      100_000,
    );
    const report = await life.own.renewLease("nap", 5_000, { owner: "o", grant: GRANTED });
    expect(outcomes(report.results)).toEqual(["done"]);
    expect(report).toMatchObject({ ttlMs: 5_000, durable: true });
    expect(life.holds.lease("nap")!.remainingMs).toBe(5_000);
    expect(
      outcomes((await life.own.renewLease("other", 5_000, { owner: "o", grant: GRANTED })).results),
    ).toEqual(["missing"]);
  });

  it("a revocation that a disk fault interrupted is completed after the restart", {}, async (t) => {
    const { kit, life, restart, faults } = t;
    await kit.engine().put(...chain("a/b"));
    await kit.settled();
    await life.pause("nap", ...chain("a/b"));
    faults("remove.unlink:1+:EIO");
    const report = await life.own.revokeLease("nap", ORIGIN);
    expect(outcomes(report.results)).toEqual(["deferred ssd", "deferred ssd"]);
    expect(life.holds.lease("nap")).toBeNull();
    faults("");
    const next = await restart();
    await next.kit.until(() => next.kit.files().length === 0, "the lease is over");
    expect(next.life.holds.lease("nap")).toBeNull();
    expect(await next.kit.engine().load(...chain("a/b"))).toEqual(["miss", "miss"]);
  });

  it("a revocation removes blocks without other owners or descendants", {}, async (t) => {
    const { kit, life, where } = t;
    const engine = kit.engine();
    await engine.put(...chain("a/b/c/d"), "a/b/other");
    await kit.settled();
    await life.pause("nap", ...chain("a/b/c/d"));
    await life.pin("p", "a");
    const report = await life.own.revokeLease("nap", ORIGIN);
    expect(outcomes(report.results)).toEqual(["held", "held", "done", "done"]);
    expect(report.results.map(({ by }) => by)).toEqual([
      [{ kind: "pin", owner: "p" }],
      [{ kind: "descendants" }],
      undefined,
      undefined,
    ]);
    expect(report).toMatchObject({ durable: true, bytes: 10_000 });
    expect(where("a/b/c", "a/b/c/d")).toEqual(["", ""]);
    expect(await engine.load("a", "a/b", "a/b/other")).toEqual(["ok", "ok", "ok"]);
    expect(outcomes((await life.own.revokeLease("nap", ORIGIN)).results)).toEqual(["missing"]);
  });

  it("an expired lease removes no block of other owners or shared prefix", {}, async (t) => {
    const { kit, life, where } = t;
    const engine = kit.engine();
    await engine.put(...chain("sys/u1/t1"), ...chain("sys/u2"));
    await kit.settled();
    await life.pause("one", ...chain("sys/u1/t1"));
    await life.own.pause(["sys", "sys/u2"].map(named), {
      lease: "two",
      owner: "o",
      ttlMs: 90_000,
      grant: GRANTED,
    });
    await kit.clock.advanceAsync(60_500, 250);
    await kit.until(() => life.events.last === 1, "the expiry");
    expect(life.events.page(0, 9).events[0]!.event).toMatchObject({
      ...{ kind: "hold_expired", hold: "lease", name: "one", blocks: 3, purged: 2 },
    });
    expect(where("sys", "sys/u1", "sys/u1/t1", "sys/u2")).toEqual(["ssd", "", "", "ssd"]);
    await kit.until(() => life.events.last === 2, "the other expiry");
    expect(where("sys", "sys/u2")).toEqual(["", ""]);
    await kit.settled();
    expect(kit.files()).toEqual([]);
  });

  it("an expired lease is retried until the disk removes its files", {}, async (t) => {
    const { kit, life, faults } = t;
    await kit.engine().put("a");
    await kit.settled();
    await life.own.pause([named("a")], { lease: "nap", owner: "o", ttlMs: 1_000, grant: GRANTED });
    faults("remove.unlink:1+:EIO");
    await kit.until(() => life.events.last === 1, "the expiry");
    expect(life.events.page(0, 9).events[0]!.event).toMatchObject({ blocks: 1, purged: 0 });
    await kit.pass(5_000);
    const forget = spyOn(life.ledger!, "removeHold");
    await kit.pass(10_000);
    expect(forget).not.toHaveBeenCalled();
    expect(kit.files()).toHaveLength(1);
    faults("");
    await kit.until(() => forget.mock.calls.length === 1, "the lease is forgotten");
    expect(kit.files()).toEqual([]);
  });

  it("does not change the lease of another owner, including its expiry", {}, async ({
    kit,
    life,
  }) => {
    await kit.engine().put("a", "b");
    await life.pause("nap", "a");
    const options = { lease: "nap", owner: "another", ttlMs: 90_000, grant: GRANTED };
    const report = await life.own.pause([named("b")], options);
    expect(outcomes(report.results)).toEqual(["rejected owner"]);
    expect(report).toMatchObject({ durable: false, ttlMs: null });
    expect(life.holds.lease("nap")).toMatchObject({ owner: "o", blocks: 1, remainingMs: 60_000 });
  });

  it("yields to other tasks while a lease of many blocks is purged", {
    slots: 256,
  }, async ({ kit, life }) => {
    const names = ["r", ...many(200, "r/")];
    await kit.engine().put(...names);
    await kit.settled();
    await life.pause("nap", ...names);
    const report = await life.own.revokeLease("nap", ORIGIN);
    expect(report.counts).toMatchObject({ done: 201, held: 0 });
    expect(kit.store.table.nodeCount).toBe(0);
    expect(kit.files()).toEqual([]);
  });

  test("is refused without an SSD tier", async () => {
    await using kit = openStoreKit({ arenaBytes: 2 ** 16 });
    await using life = new Life(kit.store, kit.clock, null);
    await kit.engine().put("a");
    const report = await life.pause("nap", "a", "b");
    expect(outcomes(report.results)).toEqual(["rejected no_ssd", "missing"]);
    expect(life.holds.lease("nap")).toBeNull();
  });
});
