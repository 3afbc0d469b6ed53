import { expect, test } from "bun:test";
import { describeNative, waitFor } from "../support/index.ts";
import type { StoreEngine } from "./store-engine.ts";
import { openStoreKit, PAGE, type StoreKit } from "./store-kit.ts";

const SLOT = 2 * PAGE;
const EVERY_MS = 1_000;

function open(slots: number, high: number, low: number): { kit: StoreKit; engine: StoreEngine } {
  const kit = openStoreKit({ arenaBytes: slots * SLOT, marks: { high, low }, blocksMax: 1024 });
  kit.store.evictor.start(EVERY_MS);
  return { kit, engine: kit.engine() };
}

async function putOneByOne(engine: StoreEngine, count: number): Promise<void> {
  for (let i = 0; i < count; i++) expect(await engine.put(`x${i}`)).toEqual(["ok"]);
}

describeNative("the background eviction", () => {
  test("starts when a writer passes the high mark, and stops at the low one", async () => {
    const { kit, engine } = open(8, 0.75, 0.5);
    await using _ = kit;
    await putOneByOne(engine, 6);
    expect(kit.snapshot()).toMatchObject({ ramBlocks: 6, stats: { evictionRuns: 0 } });
    expect(await engine.put("more")).toEqual(["ok"]);
    // No time has passed: 7 of 8 slots are above the high mark, 4 of 8 are not above the low one.
    expect(kit.snapshot()).toMatchObject({ ramBlocks: 4, stats: { evictionRuns: 1 } });
    expect(engine.get("x0", "x1", "x2", "x3", "more")).toEqual([
      "miss",
      "miss",
      "miss",
      "ok",
      "ok",
    ]);
  });

  test("checks the arena once per interval without pressure", async () => {
    const { kit, engine } = open(8, 0.75, 0.25);
    await using _ = kit;
    const held = [];
    for (let i = 0; i < 8; i++) {
      await engine.put(`x${i}`);
      held.push(...engine.acquire([`x${i}`]));
    }
    // Every block is being read: none can be evicted.
    await kit.clock.advanceAsync(EVERY_MS);
    expect(kit.snapshot().ramBlocks).toBe(8);
    engine.release(held);
    await kit.clock.advanceAsync(EVERY_MS - 1);
    expect(kit.snapshot().ramBlocks).toBe(8);
    await kit.clock.advanceAsync(1);
    expect(kit.snapshot().ramBlocks).toBe(2);
  });

  test("applies new marks immediately", async () => {
    const { kit, engine } = open(8, 1, 1);
    await using _ = kit;
    await putOneByOne(engine, 8);
    kit.store.evictor.setMarks({ high: 0.5, low: 0.25 });
    expect(kit.snapshot().ramBlocks).toBe(2);
  });

  test("yields to other tasks during a long run", async () => {
    const { kit, engine } = open(400, 1, 1);
    await using _ = kit;
    await engine.put(...Array.from({ length: 400 }, (_, i) => `x${i}`));
    kit.store.evictor.setMarks({ high: 0.5, low: 0 });
    const afterOneTurn = kit.snapshot().ramBlocks;
    expect(afterOneTurn).toBeGreaterThan(200);
    expect(afterOneTurn).toBeLessThan(400);
    await waitFor(() => kit.snapshot().ramBlocks === 0);
    expect(kit.snapshot().stats.evictionRuns).toBe(1);
  });

  test("does not start while the arena is still growing", async () => {
    const options = { arenaBytes: 8 * SLOT, marks: { high: 0.5, low: 0.25 } };
    await using kit = openStoreKit({ ...options, readyBytes: 0 });
    const engine = kit.engine();
    expect(await engine.put("early")).toEqual(["full"]);
    kit.store.slots.addReady(8 * SLOT);
    await putOneByOne(engine, 4);
    expect(kit.snapshot().stats.evictedBlocks).toBe(0);
  });

  test("counts the populated bytes as the whole arena when growth has ended", async () => {
    const options = { arenaBytes: 3 * 64 * 2 ** 20, marks: { high: 0.5, low: 0.25 } };
    await using kit = openStoreKit({ ...options, readyBytes: 64 * 2 ** 20 });
    const engine = kit.engine();
    const blocks = Array.from({ length: 40 }, (_, i) => ({ name: `x${i}`, bytes: 2 ** 20 }));
    await engine.put(...blocks);
    kit.store.evictor.wake();
    expect(kit.snapshot().ramBlocks).toBe(40);
    kit.store.evictor.growthIsOver();
    kit.store.evictor.wake();
    expect(kit.snapshot().ramBlocks).toBe(16);
  });

  test("stops its timer and a run under way when it is disposed", async () => {
    const { kit, engine } = open(400, 1, 1);
    await engine.put(...Array.from({ length: 400 }, (_, i) => `x${i}`));
    kit.store.evictor.setMarks({ high: 0.5, low: 0 });
    await kit[Symbol.asyncDispose]();
    expect(kit.clock.pending).toBe(0);
    expect(kit.snapshot().ramBlocks).toBeGreaterThan(0);
  });
});
