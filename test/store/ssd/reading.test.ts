import { expect } from "bun:test";
import type { StoreEngine } from "../store-engine.ts";
import type { SsdKit } from "./ssd-kit.ts";
import { describeSsd } from "./use-kit.ts";

const SSD = 4;
const names = (count: number, prefix = "x") => Array.from({ length: count }, (_, i) => prefix + i);

/** Stores blocks on SSD only. */
async function onSsd(kit: SsdKit, engine: StoreEngine, ...blocks: string[]): Promise<void> {
  for (const block of blocks) {
    expect(await engine.put(block)).toEqual(["ok"]);
    await kit.settled();
  }
  kit.leaveRam();
}

const outcomes = (handles: readonly { outcome: string }[]) => handles.map((one) => one.outcome);

describeSsd("SSD tier: a reader's deadline", (it) => {
  it("passed: the outcome is late, and the block still arrives", {}, async ({ kit, faults }) => {
    const engine = kit.engine();
    await onSsd(kit, engine, "a", "b");
    await engine.put("b");
    faults("load.read:1:freeze");
    const asked = engine.fetch(["a"], { deadlineMs: 100 });
    kit.clock.advance(99);
    kit.clock.advance(1);
    expect(outcomes(await asked)).toEqual(["late"]);
    expect(engine.holder.held).toBe(0);
    expect(kit.health.raised).toContain("KV_SSD_SLOW");
    expect(kit.store.ssdStats.lateBlocks).toBe(1);
    faults("");
    await kit.settled();
    expect(engine.get("a")).toEqual(["ok"]);
  });

  it("passed for all readers: a waiting read is not started", {
    depth: 1,
  }, async ({ kit, faults }) => {
    const [hasty, patient] = [kit.engine(), kit.engine()];
    await onSsd(kit, hasty, "a", "b", "c", "d");
    faults("load.read:1:freeze");
    const asked = hasty.fetch(["a", "b", "c"], { deadlineMs: 100 });
    const waited = patient.fetch(["c", "d"]);
    kit.clock.advance(100);
    expect(outcomes(await asked)).toEqual(["late", "late", "late"]);
    faults("");
    expect(outcomes(await waited)).toEqual(["ok", "ok"]);
    await kit.settled();
    // "a" had an I/O slot; no reader waits for "b".
    expect(kit.store.ssdStats.readBlocks).toBe(3);
    expect(patient.match(["b"])).toEqual([1, SSD]);
    expect(patient.get("a", "c", "d")).toEqual(["ok", "ok", "ok"]);
    patient.die();
  });

  it("is at most the tier's own", { readDeadlineMs: 50 }, async ({ kit, faults }) => {
    const engine = kit.engine();
    await onSsd(kit, engine, "a");
    faults("load.read:1:freeze");
    const asked = engine.fetch(["a"], { deadlineMs: 60_000 });
    kit.clock.advance(50);
    expect(outcomes(await asked)).toEqual(["late"]);
  });

  it("passed: the slot is not reused until the disk has finished", { slots: 4 }, async (t) => {
    const { kit, faults } = t;
    const engine = kit.engine();
    await onSsd(kit, engine, "a", "b");
    faults("load.read:1:freeze");
    const asked = engine.fetch(["a"], { deadlineMs: 10 });
    await kit.until(() => kit.disk.inFlight === 1);
    expect(outcomes(await asked)).toEqual(["late"]);
    // The engine's process may have exited, too.
    engine.die();
    const writer = kit.engine();
    const held = writer.reserve(...names(8));
    expect(outcomes(held).filter((outcome) => outcome === "ok")).toHaveLength(3);
    writer.write(held);
    const used = new Set(held.filter(({ outcome }) => outcome === "ok").map(({ slot }) => slot));
    expect(used.size).toBe(3);
    faults("");
    await kit.settled();
    const granted = held.filter(({ outcome }) => outcome === "ok");
    expect(await writer.commit(granted)).toEqual(["ok", "ok", "ok"]);
    expect(writer.get(...names(3), "a")).toEqual(["ok", "ok", "ok", "ok"]);
    expect(used.has(writer.acquire(["a"])[0]!.slot)).toBe(false);
  });

  it("passed for one reader does not affect another", {}, async ({ kit, faults }) => {
    const [hasty, patient] = [kit.engine(), kit.engine()];
    await onSsd(kit, hasty, "a");
    faults("load.read:1:freeze");
    const late = hasty.fetch(["a"], { deadlineMs: 10 });
    const waiting = patient.load("a");
    kit.clock.advance(10);
    expect(outcomes(await late)).toEqual(["late"]);
    faults("");
    expect(await waiting).toEqual(["ok"]);
  });

  it("raises KV_SSD_SLOW until all reads were in time for a minute", {}, async ({
    kit,
    faults,
  }) => {
    const engine = kit.engine();
    await onSsd(kit, engine, "a");
    faults("load.read:1:freeze");
    const late = engine.fetch(["a"], { deadlineMs: 10 });
    kit.clock.advance(10);
    await late;
    faults("");
    await kit.settled();
    await kit.clock.advanceAsync(59_000, 1_000);
    expect(kit.health.raised).toContain("KV_SSD_SLOW");
    await kit.clock.advanceAsync(2_000, 1_000);
    expect(kit.health.raised).not.toContain("KV_SSD_SLOW");
  });
});

describeSsd("SSD tier: a read of many blocks", (it) => {
  it("stops at the first miss, and later blocks stay in RAM", {}, async ({ kit }) => {
    const engine = kit.engine();
    await onSsd(kit, engine, "a", "c", "d");
    await engine.put("e");
    const asked = await engine.fetch(["a", "b", "c", "e", "d"], { stopAtMiss: true });
    expect(outcomes(asked)).toEqual(["ok", "miss", "skipped", "skipped", "skipped"]);
    expect(engine.holder.held).toBe(1);
    engine.release(asked.slice(0, 1));
  });

  it("stops at a gap that only the disk reveals", { slots: 4 }, async ({ kit, faults }) => {
    const engine = kit.engine();
    await onSsd(kit, engine, "a", "b", "c");
    await engine.put("d");
    faults("load.read:2:EIO");
    const asked = await engine.fetch(["a", "b", "c", "d"], { stopAtMiss: true });
    const gap = asked.findIndex(({ outcome }) => outcome !== "ok");
    expect(gap).toBeLessThan(3);
    expect(asked[gap]!.outcome).toBe("miss");
    expect(outcomes(asked.slice(gap + 1))).toEqual(asked.slice(gap + 1).map(() => "skipped"));
    expect(engine.holder.held).toBe(gap);
    engine.release(asked.slice(0, gap));
    // Skipped blocks are in RAM and evictable like any other.
    for (const name of names(8)) {
      expect(await engine.put(name)).toEqual(["ok"]);
      await kit.settled();
    }
  });

  it("reads as many blocks as RAM has room for; the rest is full", { slots: 4 }, async ({
    kit,
  }) => {
    const engine = kit.engine();
    await onSsd(kit, engine, ...names(7));
    const asked = await engine.fetch(names(7));
    expect(outcomes(asked)).toEqual([...Array(4).fill("ok"), ...Array(3).fill("full")]);
    expect(asked.slice(0, 4).map((handle) => engine.proves(handle))).toEqual(Array(4).fill(true));
    engine.release(asked.slice(0, 4));
    // The same in the opposite order.
    const back = await engine.fetch(names(7).reverse());
    expect(outcomes(back).filter((outcome) => outcome === "ok")).toHaveLength(4);
    engine.release(back.filter(({ outcome }) => outcome === "ok"));
  });

  it("does not evict its own blocks in RAM for room", { slots: 2 }, async ({ kit, faults }) => {
    const engine = kit.engine();
    await onSsd(kit, engine, "a");
    // These two are in RAM only.
    faults("store.open:1+:ENOSPC");
    await engine.put("b", "c");
    await kit.settled();
    const asked = await engine.fetch(["a", "b", "c"]);
    expect(outcomes(asked)).toEqual(["full", "ok", "ok"]);
    engine.release(asked.slice(1));
  });

  it("stays within the engine's handles, counting reads under way", {}, async ({ kit }) => {
    const engine = kit.engine(1, 2);
    await onSsd(kit, kit.engine(), "a", "b", "c");
    const asked = engine.fetch(["a", "b", "c"]);
    expect(engine.holder.held).toBe(2);
    expect(outcomes(await asked)).toEqual(["ok", "ok", "rejected"]);
    expect(engine.holder.held).toBe(2);
  });

  for (const how of ["abandoned", "dead"]) {
    for (const stopAtMiss of [false, true]) {
      const rest = stopAtMiss ? ", to stop at a miss" : "";
      it(`whose engine is ${how} meanwhile${rest}`, { slots: 4 }, async ({ kit, faults }) => {
        const [gone, other] = [kit.engine(), kit.engine()];
        await onSsd(kit, other, "a", "b");
        await other.put("r");
        faults("load.read:1+:freeze");
        const asked = gone.fetch(["a", "r", "b"], { stopAtMiss });
        expect(gone.holder.held).toBe(3);
        if (how === "dead") gone.die();
        else gone.abandon();
        faults("");
        expect(outcomes(await asked)).toEqual(["skipped", "ok", "skipped"]);
        gone.die();
        expect(gone.holder.held).toBe(0);
        await kit.settled();
        expect(other.get("a", "b", "r")).toEqual(["ok", "ok", "ok"]);
        // All of them are evictable.
        for (const name of names(8)) {
          expect(await other.put(name)).toEqual(["ok"]);
          await kit.settled();
        }
      });
    }
  }
});

describeSsd("SSD tier: full tables and short queues", (it) => {
  it("a full table removes blocks that are only on SSD", { slots: 4, blocksMax: 16 }, async ({
    kit,
  }) => {
    const engine = kit.engine();
    for (const name of names(60)) {
      expect(await engine.put(name)).toEqual(["ok"]);
      await kit.settled();
    }
    expect(kit.store.table.nodeCount).toBeLessThanOrEqual(16);
    expect(kit.files().length).toBeLessThanOrEqual(16);
    expect(await engine.load("x59", "x58")).toEqual(["ok", "ok"]);
  });

  it("a full table skips the oldest block if RAM has it too", {
    slots: 8,
    blocksMax: 8,
  }, async ({ kit }) => {
    const engine = kit.engine();
    for (const name of ["old", ...names(6)]) {
      expect(await engine.put(name)).toEqual(["ok"]);
      await kit.settled();
    }
    kit.store.ram.drop(kit.nodeOf("x0"));
    expect(await engine.put("y", "z")).toEqual(["ok", "ok"]);
    await kit.settled();
    expect(["old", "x0", "x1"].map((name) => kit.ssdHolds(name))).toEqual([true, false, true]);
    expect(engine.get("old")).toEqual(["ok"]);
  });

  it("one I/O slot is sufficient", { depth: 1, slots: 4 }, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    kit.leaveRam();
    // The former file is being removed when a new one needs its name.
    const [longer] = engine.reserve({ name: "a", bytes: 6_000 });
    engine.write([longer!]);
    expect(await engine.commit([longer!])).toEqual(["ok"]);
    await kit.settled();
    kit.leaveRam();
    expect(outcomes(await engine.fetch(["a"]))).toEqual(["ok"]);
  });
});
