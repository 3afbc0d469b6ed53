import { expect, test } from "bun:test";
import { describeNative } from "../../support/index.ts";
import { chain, digestOf } from "../names.ts";
import { openStoreKit } from "../store-kit.ts";
import { Life, ORIGIN, outcomes, useLife } from "./lifecycle-kit.ts";

const many = (count: number, prefix = "x") => Array.from({ length: count }, (_, i) => prefix + i);

describeNative("Flush flow", () => {
  const it = useLife();

  it("removes all unprotected blocks, and reports pins and leases", {
    slots: 32,
  }, async (t) => {
    const { kit, life, where, restart } = t;
    const engine = kit.engine();
    await engine.put(...chain("a/pin/x"), "a/nap", ...chain("z/y"), ...many(8));
    await kit.settled();
    kit.leaveRam();
    await engine.load("a", "a/pin", "z", "x1");
    await life.pin("o", "a/pin");
    await life.pause("nap", "a/nap");
    const report = await life.own.flush(ORIGIN);
    expect(outcomes(report.results)).toEqual(["held"]);
    expect(report).toMatchObject({ counts: { done: 11, held: 3 }, bytes: 55_000, durable: true });
    const by = new Map(report.held.map((block) => [block.digest, block.by]));
    expect(by.get(digestOf("a/pin").toHex())).toEqual([{ kind: "pin", owner: "o" }]);
    expect(by.get(digestOf("a/nap").toHex())).toEqual([{ kind: "lease", owner: "o", name: "nap" }]);
    expect(by.get(digestOf("a").toHex())).toEqual([{ kind: "descendants" }]);
    // Pinned blocks are unchanged, in RAM too.
    expect(where("a", "a/pin", "a/nap")).toEqual(["ram+ssd", "ram+ssd", "ssd"]);
    expect(kit.store.table.nodeCount).toBe(3);
    expect(kit.files()).toHaveLength(3);
    const next = await restart();
    expect(await next.kit.engine().load(...chain("a/pin/x"), "z")).toEqual([
      "ok",
      "ok",
      "miss",
      "miss",
    ]);
    next.life.letGoAll();
  });

  it("cancels writes, removes transient blocks, and keeps blocks being read", {
    writePolicy: "write_back",
  }, async ({ kit, life, where, faults }) => {
    const engine = kit.engine();
    await engine.put("a", "b", { name: "t", transient: true }, "r");
    const read = await engine.fetch(["r"]);
    faults("store.write:1+:delay=50");
    const persisted = kit.ssd.persist();
    const report = await life.own.flush(ORIGIN);
    await persisted;
    expect(report.counts).toMatchObject({ done: 3, held: 1 });
    expect(where("a", "b", "t")).toEqual(["", "", ""]);
    expect(report.held[0]!.by).toContainEqual({ kind: "engine" });
    engine.release(read);
    await kit.settled();
    expect((await life.own.flush(ORIGIN)).counts).toMatchObject({ done: 1, held: 0 });
    expect(outcomes((await life.own.flush(ORIGIN)).results)).toEqual(["already"]);
    expect(kit.files()).toEqual([]);
  });

  it("does not wait for a hung disk", {}, async ({ kit, life, faults }) => {
    await kit.engine().put("a", "b");
    await kit.settled();
    faults("remove.unlink:1+:freeze");
    const flushed = life.own.flush(ORIGIN);
    const report = await kit.clock.advanceUntil(flushed, 250);
    expect(outcomes(report.results)).toEqual(["deferred ssd"]);
    faults("");
    await kit.until(() => kit.files().length === 0);
  });

  it("ends although engines keep storing blocks", { slots: 64 }, async ({ kit, life }) => {
    const engine = kit.engine();
    await engine.put(...many(32));
    let isOver = false;
    const storing = (async () => {
      for (let i = 0; !isOver && i < 500; i++) await engine.put(...many(4, `n${i}-`));
    })();
    const report = await life.own.flush(ORIGIN);
    isOver = true;
    await storing;
    expect(report.counts.done).toBeGreaterThanOrEqual(32);
    await kit.settled();
  });

  test("works without an SSD tier", async () => {
    await using kit = openStoreKit({ arenaBytes: 2 ** 18 });
    await using life = new Life(kit.store, kit.clock, null);
    const engine = kit.engine();
    await engine.put(...chain("a/b/c"), ...many(5));
    await life.pin("o", "a/b");
    const report = await life.own.flush(ORIGIN);
    expect(report).toMatchObject({ counts: { done: 6, held: 2 }, durable: false });
    expect(engine.get("a", "a/b", "a/b/c", "x0")).toEqual(["ok", "ok", "miss", "miss"]);
    life.letGoAll();
  });
});
