import { expect, test } from "bun:test";
import { LAYER_ALL } from "../../src/core/index.ts";
import { describeNative, waitFor } from "../support/index.ts";
import { chain } from "./names.ts";
import { hexOf } from "./store-engine.ts";
import { openStoreKit, PAGE } from "./store-kit.ts";

const GPU = 1;
const RAM = 2;
const ARENA = 8 * 2 * PAGE;

describeNative("the mirror of engines' GPUs", () => {
  test("has the reported blocks until their eviction is reported", async () => {
    await using kit = openStoreKit({ arenaBytes: ARENA, gpuWindowBlocks: 8 });
    const engine = kit.engine();
    expect(engine.gpuStored({ name: "a", alias: 5n }, "a/b")).toEqual(["ok", "ok"]);
    expect(engine.gpuStored("a")).toEqual(["present"]);
    expect(engine.match(chain("a/b"))).toEqual([2, GPU, GPU]);
    expect(engine.match(chain("a/b"), RAM)).toEqual([0, 0, 0]);
    expect(engine.resolve(5n, LAYER_ALL)).toBe(hexOf("a"));
    // The block cannot be read.
    expect(engine.get("a")).toEqual(["miss"]);
    expect(engine.gpuEvicted("a/b", "a/b", "nowhere")).toEqual(["ok", "miss", "miss"]);
    expect(engine.match(chain("a/b"))).toEqual([1, GPU, 0]);
    expect(engine.gpuEvicted("a")).toEqual(["ok"]);
    expect(engine.resolve(5n, LAYER_ALL)).toBeNull();
    expect(kit.snapshot()).toMatchObject({ gpuBlocks: 0, tableNodes: 0 });
  });

  test("keeps a window of each engine's latest reports, within one limit for all", async () => {
    await using kit = openStoreKit({ arenaBytes: ARENA, gpuWindowBlocks: 4 });
    const [first, second] = [kit.engine(), kit.engine()];
    expect(first.gpuStored("a", "b", "c")).toEqual(["ok", "ok", "ok"]);
    expect(second.gpuStored("x", "y")).toEqual(["ok", "ok"]);
    // The second engine's own oldest report was dropped, not one of the first engine.
    expect(first.match(["x"])[0]).toBe(0);
    expect(["a", "b", "c", "y"].map((name) => first.match([name])[0])).toEqual([1, 1, 1, 1]);
    expect(first.gpuStored("d")).toEqual(["ok"]);
    expect(first.match(["a"])[0]).toBe(0);
    expect(kit.engine().gpuStored("z")).toEqual(["full"]);
    expect(kit.snapshot().gpuBlocks).toBe(4);
  });

  test("has a block of two GPUs until both have evicted it", async () => {
    await using kit = openStoreKit({ arenaBytes: ARENA, gpuWindowBlocks: 8 });
    const [first, second] = [kit.engine(), kit.engine()];
    first.gpuStored("a");
    expect(second.gpuEvicted("a")).toEqual(["miss"]);
    expect(second.gpuStored("a")).toEqual(["ok"]);
    first.gpuEvicted("a");
    expect(second.match(["a"])).toEqual([1, GPU]);
    second.gpuEvicted("a");
    expect(second.match(["a"])).toEqual([0, 0]);
  });

  test("forgets an engine's blocks when its connection closes", async () => {
    await using kit = openStoreKit({ arenaBytes: ARENA, gpuWindowBlocks: 4 });
    const [first, second] = [kit.engine(), kit.engine()];
    await first.put("a");
    first.gpuStored("a", "b", "c");
    expect(second.match(["a"])).toEqual([1, GPU]);
    first.abandon();
    expect(second.match(["a"])).toEqual([1, RAM]);
    expect(second.match(["b"])).toEqual([0, 0]);
    expect(kit.snapshot()).toMatchObject({ gpuBlocks: 0, tableNodes: 1 });
    expect(second.gpuStored("w", "x", "y", "z")).toEqual(["ok", "ok", "ok", "ok"]);
    kit.expectNothingLeft();
  });

  test("forgets a large window in slices, and completely", async () => {
    const notices = 10_000;
    const most = { gpuWindowBlocks: notices, blocksMax: notices };
    await using kit = openStoreKit({ arenaBytes: ARENA, ...most });
    const engine = kit.engine();
    engine.gpuStored(...Array.from({ length: notices }, (_, i) => `g${i}`));
    engine.abandon();
    const left = kit.snapshot().gpuBlocks;
    expect(left).toBeGreaterThan(0);
    expect(left).toBeLessThan(notices);
    await waitFor(() => kit.snapshot().gpuBlocks === 0);
    kit.expectNothingLeft();
    expect(kit.snapshot().tableNodes).toBe(0);
  });

  test("keeps a written block's length if a GPU report has another one", async () => {
    await using kit = openStoreKit({ arenaBytes: ARENA, gpuWindowBlocks: 4 });
    const [engine, reader] = [kit.engine(), kit.engine()];
    engine.gpuStored({ name: "long", bytes: 1_000_000 }, { name: "short", bytes: 1 });
    expect(await engine.put("long", "short")).toEqual(["ok", "ok"]);
    const read = reader.acquire(["long", "short"]);
    expect(read.map(({ bytes }) => bytes)).toEqual([5_000, 5_000]);
    expect(read.map((handle) => reader.proves(handle))).toEqual([true, true]);
    reader.gpuStored({ name: "long", bytes: 77 });
    expect(reader.acquire(["long"])[0]!.bytes).toBe(5_000);
    expect(kit.snapshot().ramBytes).toBe(10_000);
    kit.expectNothingLeft();
  });

  test("accepts all reports and stores none if its size is 0", async () => {
    await using kit = openStoreKit({ arenaBytes: ARENA, gpuWindowBlocks: 0 });
    const engine = kit.engine();
    expect(engine.gpuStored("a")).toEqual(["ok"]);
    expect(engine.match(["a"])).toEqual([0, 0]);
    expect(engine.gpuEvicted("a")).toEqual(["miss"]);
  });
});
