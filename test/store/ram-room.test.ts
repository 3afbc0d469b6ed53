import { expect, test } from "bun:test";
import { SlotAllocator } from "../../src/store/blocks/index.ts";
import { describeNative } from "../support/index.ts";
import { type BlockName, chain } from "./names.ts";
import { openStoreKit, PAGE } from "./store-kit.ts";

const KIB = 1024;
const MIB = 1024 * KIB;

function names(prefix: string, count: number): BlockName[] {
  return Array.from({ length: count }, (_, i) => `${prefix}${i}`);
}

describeNative("room in RAM", () => {
  test.each([1, 2, 7, 100])("an arena of %i slots stores exactly as many blocks", async (slots) => {
    await using kit = openStoreKit({ arenaBytes: slots * 2 * PAGE });
    const engine = kit.engine();
    const outcomes = engine.reserve(...names("x", slots + 3)).map(({ outcome }) => outcome);
    expect(outcomes).toEqual([...Array(slots).fill("ok"), "full", "full", "full"]);
    expect(kit.snapshot().slotsUsed).toBe(slots);
    expect(kit.snapshot().stats.fullBlocks).toBe(3);
    kit.expectNothingLeft();
    expect(kit.snapshot().slotsUsed).toBe(0);
  });

  test("evicts the least recently used block first, and of a chain the deepest first", async () => {
    await using kit = openStoreKit({ arenaBytes: 6 * 2 * PAGE });
    const engine = kit.engine();
    await engine.put(...chain("a/b/c"));
    await engine.put(...chain("d/e"));
    await engine.put("f");
    engine.get("d");
    // Least recently used first: a/b/c, a/b, a, d/e, f, d.
    const left: BlockName[] = [];
    for (let i = 0; i < 6; i++) {
      expect(await engine.put(`new${i}`)).toEqual(["ok"]);
      const gone = ["a", "a/b", "a/b/c", "d", "d/e", "f"].filter(
        (name) => engine.match([name])[0] === 0,
      );
      left.push(...gone.filter((name) => !left.includes(name)));
    }
    expect(left).toEqual(["a/b/c", "a/b", "a", "d/e", "f", "d"]);
    expect(kit.snapshot().stats).toMatchObject({ evictedBlocks: 6, evictedBytes: 6 * 5_000 });
    kit.expectNothingLeft();
  });

  test("counts a use for all ancestors; a write that finds the block is a use", async () => {
    await using kit = openStoreKit({ arenaBytes: 5 * 2 * PAGE });
    const engine = kit.engine();
    await engine.put(...chain("a/b"));
    for (const name of ["c", "d", "e"]) await engine.put(name);
    engine.get("a/b");
    expect(await engine.put("c")).toEqual(["present"]);
    await engine.put("x", "y");
    expect(engine.get("a", "a/b", "c", "d", "e")).toEqual(["ok", "ok", "ok", "miss", "miss"]);
    kit.expectNothingLeft();
  });

  test("never evicts a block for another one of the same request", async () => {
    await using kit = openStoreKit({ arenaBytes: 3 * 2 * PAGE });
    const engine = kit.engine();
    await engine.put("a", "b", "c");
    // The oldest block is found first and must still be present when the answer says so.
    expect(await engine.put("a", "x", "y")).toEqual(["present", "ok", "ok"]);
    expect(engine.get("a", "b", "c", "x", "y")).toEqual(["ok", "miss", "miss", "ok", "ok"]);
    // Only blocks of the request itself are left: the rest is full.
    expect(await engine.put("a", "x", "y", "z")).toEqual(["present", "present", "present", "full"]);
    expect(engine.get("a", "x", "y", "z")).toEqual(["ok", "ok", "ok", "miss"]);
    kit.expectNothingLeft();
  });

  test("keeps the beginning of a prompt that is longer than RAM", async () => {
    await using kit = openStoreKit({ arenaBytes: 4 * 2 * PAGE });
    const engine = kit.engine();
    const prompt = chain(Array.from({ length: 10 }, (_, i) => `p${i}`).join("/"));
    expect(await engine.put(...prompt)).toEqual([...Array(4).fill("ok"), ...Array(6).fill("full")]);
    // After the gap only free room is used, and there is none.
    for (const name of prompt.slice(5)) expect(await engine.put(name)).toEqual(["full"]);
    expect(engine.match(prompt)[0]).toBe(4);
    kit.expectNothingLeft();
  });

  test("answers full without waiting if every block is locked", async () => {
    await using kit = openStoreKit({ arenaBytes: 3 * 2 * PAGE });
    const [reader, writer] = [kit.engine(), kit.engine()];
    await writer.put("a", "b");
    const read = reader.acquire(["a", "b"]);
    const [half] = writer.reserve("half");
    expect(await writer.put("c")).toEqual(["full"]);
    writer.abort([half!]);
    expect(await writer.put("c", "d")).toEqual(["ok", "full"]);
    reader.release(read);
    expect(await writer.put("d")).toEqual(["ok"]);
    kit.expectNothingLeft();
  });

  test("moves memory between block sizes", async () => {
    await using kit = openStoreKit({ arenaBytes: 256 * MIB, blocksMax: 8192 });
    const engine = kit.engine(1, 10_000);
    const of = (prefix: string, count: number, bytes: number) =>
      names(prefix, count).map((name) => ({ name, bytes }));
    const sizes = () =>
      kit
        .snapshot()
        .classes.map(({ slotBytes }) => slotBytes)
        .toSorted((a, b) => a - b);
    expect(new Set(await engine.put(...of("quarter", 1024, 256 * KIB)))).toEqual(new Set(["ok"]));
    // A reader in the middle keeps only its own extent.
    const read = engine.acquire(["quarter500"]);
    expect(new Set(await engine.put(...of("small", 100, 64 * KIB)))).toEqual(new Set(["ok"]));
    expect(sizes()).toEqual([64 * KIB, 256 * KIB]);
    expect(engine.get("small0", "small99", "quarter1023")).toEqual(["ok", "ok", "ok"]);
    expect(new Set(await engine.put(...of("large", 20, MIB)))).toEqual(new Set(["ok"]));
    expect(sizes()).toContain(MIB);
    expect(engine.get("large0", "large19")).toEqual(["ok", "ok"]);
    expect(engine.proves(read[0]!)).toBe(true);
    kit.expectNothingLeft();
  });

  test("evicts the oldest block of the right size if no extent can change its size", async () => {
    await using kit = openStoreKit({ arenaBytes: 128 * MIB, blocksMax: 1024 });
    const engine = kit.engine(1, 10_000);
    const of = (prefix: string, count: number, bytes: number) =>
      names(prefix, count).map((name) => ({ name, bytes }));
    // Two extents: one full of small blocks, one of them being read, and one of large blocks.
    await engine.put(...of("small", 256, 256 * KIB));
    await engine.put(...of("large", 64, MIB).toReversed());
    const read = engine.acquire(["small7"]);
    expect(await engine.put({ name: "more", bytes: MIB })).toEqual(["ok"]);
    // All small blocks are older, but their extent cannot be freed.
    expect(engine.get("small0", "small255", "more")).toEqual(["ok", "ok", "ok"]);
    expect(engine.match(["large0"])[0]).toBe(0);
    expect(engine.match(["large1"])[0]).toBe(1);
    engine.release(read);
    kit.expectNothingLeft();
  });

  test("evicts the oldest blocks of a full table", async () => {
    await using kit = openStoreKit({ arenaBytes: 200 * 2 * PAGE, blocksMax: 64 });
    const engine = kit.engine();
    for (let i = 0; i < 200; i++) expect(await engine.put(`x${i}`)).toEqual(["ok"]);
    expect(kit.snapshot().ramBlocks).toBe(64);
    expect(engine.get("x0", "x199", "x136")).toEqual(["miss", "ok", "ok"]);
    // If no block is evictable, the outcome is full, and the slot is not lost.
    const read = engine.acquire(names("x", 200).slice(136));
    expect(engine.reserve("y")[0]!.outcome).toBe("full");
    expect(kit.snapshot().slotsUsed).toBe(64);
    engine.release(read);
    kit.expectNothingLeft();
  });

  test("has longer slots above 512 GiB, which reclaim takes into account", () => {
    const arenaBytes = 600 * 2 ** 30;
    const slots = new SlotAllocator({ arenaBytes, slotBytesMax: 2 ** 30 });
    slots.addReady(arenaBytes);
    expect(slots.slotBytesFor(1)).toBe(2 * PAGE);
    expect(slots.slotBytesOf(slots.reserve(1))).toBe(slots.slotBytesFor(1));
  });
});
