import { expect } from "bun:test";
import { describeNative } from "../../support/index.ts";
import { chain } from "../names.ts";
import { GRANTED, named, ORIGIN, outcomes, useLife } from "./lifecycle-kit.ts";

describeNative("Think flow", () => {
  const it = useLife();

  it("transient skip backup: a marked block is never written", {
    writePolicy: "write_back",
  }, async (t) => {
    const { kit, life, where } = t;
    const engine = kit.engine();
    await engine.put("a", "b");
    const report = await life.own.markTransient([named("a"), named("none")], ORIGIN, {
      grant: GRANTED,
    });
    expect(outcomes(report.results)).toEqual(["done", "missing"]);
    expect((await kit.ssd.persist()).written).toBe(1);
    expect(where("a", "b")).toEqual(["ram", "ram+ssd"]);
    expect(
      outcomes((await life.own.markTransient([named("a")], ORIGIN, { grant: GRANTED })).results),
    ).toEqual(["already"]);
  });

  it("transient skip backup: an existing copy is deleted durably", {}, async (t) => {
    const { kit, life, where, restart } = t;
    await kit.engine().put("a", "b");
    await kit.settled();
    const report = await life.own.markTransient([named("a")], ORIGIN, { grant: GRANTED });
    expect(outcomes(report.results)).toEqual(["done"]);
    expect(report.durable).toBe(true);
    expect(where("a", "b")).toEqual(["ram", "ram+ssd"]);
    expect(kit.files()).toHaveLength(1);
    expect(kit.engine().get("a")).toEqual(["ok"]);
    await kit.settled();
    expect(where("a")).toEqual(["ram"]);
    expect(await (await restart()).kit.engine().load("a", "b")).toEqual(["miss", "ok"]);
  });

  it("transient skip backup: a mark cancels a write that is queued or under way", {
    writePolicy: "write_back",
    depth: 2,
  }, async ({ kit, life, where, faults }) => {
    const engine = kit.engine();
    await engine.put("a", "b", "c");
    faults("store.write:1+:freeze");
    const persisted = kit.ssd.persist();
    const marked = life.own.markTransient(["a", "c"].map(named), ORIGIN, { grant: GRANTED });
    await kit.clock.advanceAsync(500, 250);
    faults("");
    expect(outcomes((await marked).results)).toEqual(["done", "done"]);
    await persisted;
    await kit.settled();
    expect(where("a", "b", "c")).toEqual(["ram", "ram+ssd", "ram"]);
    expect(kit.files()).toHaveLength(1);
  });

  it("transient skip backup: a mark on a GPU's block remains in RAM", {}, async (t) => {
    const { kit, life, where } = t;
    const engine = kit.engine();
    engine.gpuStored("a");
    expect(
      outcomes((await life.own.markTransient([named("a")], ORIGIN, { grant: GRANTED })).results),
    ).toEqual(["done"]);
    await engine.put("a");
    await kit.settled();
    expect(where("a")).toEqual(["ram"]);
  });

  it("a pinned block keeps its copy on SSD; other copies are deleted", {}, async (t) => {
    const { kit, life, where, restart } = t;
    await kit.engine().put("a", "b", "c");
    await kit.settled();
    await life.pin("o", "a", "b");
    kit.store.ram.drop(kit.nodeOf("a"));
    const report = await life.own.markTransient(["a", "b", "c"].map(named), ORIGIN, {
      grant: GRANTED,
    });
    expect(outcomes(report.results)).toEqual(["held", "held", "done"]);
    expect(report.results[1]!.by).toEqual([{ kind: "pin", owner: "o" }]);
    expect(where("a", "b", "c")).toEqual(["ssd", "ram+ssd", "ram"]);
    const next = await restart();
    expect(await next.kit.engine().load("a", "b", "c")).toEqual(["ok", "ok", "miss"]);
    next.life.letGoAll();
  });

  it("a block that an engine is writing is marked before its commit", {}, async (t) => {
    const { kit, life, where } = t;
    const engine = kit.engine();
    const writes = engine.reserve("a");
    const report = await life.own.markTransient([named("a")], ORIGIN, { grant: GRANTED });
    expect(outcomes(report.results)).toEqual(["done"]);
    engine.write(writes);
    expect(await engine.commit(writes)).toEqual(["ok"]);
    await kit.settled();
    expect(where("a")).toEqual(["ram"]);
  });

  it("purge: transient blocks are removed from all tiers", {}, async ({
    kit,
    life,
    where,
    restart,
  }) => {
    const engine = kit.engine();
    await engine.put("a", { name: "a/b", transient: true }, { name: "a/b/c", transient: true });
    await kit.settled();
    const report = await life.own.purgeTransient(["a", "a/b", "a/b/c", "no"].map(named), ORIGIN);
    expect(outcomes(report.results)).toEqual(["rejected not_transient", "done", "done", "missing"]);
    expect(report.bytes).toBe(10_000);
    expect(where("a", "a/b", "a/b/c")).toEqual(["ram+ssd", "", ""]);
    expect(await (await restart()).kit.engine().load(...chain("a/b"))).toEqual(["ok", "miss"]);
  });

  it("purge: protected blocks stay", {}, async ({ kit, life, where }) => {
    const engine = kit.engine();
    await engine.put({ name: "a", transient: true }, { name: "b", transient: true });
    await life.pin("o", "a");
    const read = await engine.fetch(["b"]);
    const report = await life.own.purgeTransient(["a", "b"].map(named), ORIGIN);
    expect(report.results).toEqual([
      { outcome: "held", by: [{ kind: "pin", owner: "o" }] },
      { outcome: "held", by: [{ kind: "engine" }] },
    ]);
    expect(where("a", "b")).toEqual(["ram", "ram"]);
    engine.release(read);
  });

  it("a mark does not wait for a hung disk", {}, async ({ kit, life, faults }) => {
    await kit.engine().put("a");
    await kit.settled();
    faults("remove.unlink:1+:freeze");
    const marked = life.own.markTransient([named("a")], ORIGIN, { grant: GRANTED });
    const report = await kit.clock.advanceUntil(marked, 250);
    expect(outcomes(report.results)).toEqual(["deferred ssd"]);
    faults("");
    await kit.until(() => kit.files().length === 0);
  });
});
