import { expect } from "bun:test";
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  renameSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { adoptRam, describeRam } from "../../../src/store/index.ts";
import { describeNative } from "../../support/index.ts";
import { digestOf } from "../names.ts";
import { FILE_BYTES, type SsdKit } from "./ssd-kit.ts";
import { type KitOptions, useSsdKit } from "./use-kit.ts";

const names = (count: number, prefix = "x") => Array.from({ length: count }, (_, i) => prefix + i);
const all = (count: number, outcome: string) => Array(count).fill(outcome);

async function put(kit: SsdKit, ...blocks: string[]): Promise<void> {
  expect(await kit.engine().put(...blocks)).toEqual(all(blocks.length, "ok") as "ok"[]);
  await kit.settled();
}

describeNative("SSD tier: recovery", () => {
  const it = useSsdKit();

  it("after a clean stop restores all blocks, with their tree and uses", {}, async ({
    kit,
    reopen,
  }) => {
    await put(kit, "a", "a/b", "a/b/c", "z");
    kit.engine().get("a", "a/b");
    const uses = kit.store.table.usesOf(kit.nodeOf("a/b"));
    expect(await kit.close()).toBe(true);
    const next = await reopen();
    expect(next.report).toEqual({
      blocks: 4,
      bytes: 20_000,
      adopted: 0,
      rowsDropped: 0,
      filesDropped: 0,
      foreignFiles: 0,
    });
    const engine = next.engine();
    expect(engine.match(["a", "a/b", "a/b/c"])).toEqual([3, 4, 4, 4]);
    expect(next.store.table.usesOf(next.nodeOf("a/b"))).toBe(uses - 1);
    expect(next.ssd.room.usedBytes).toBe(4 * FILE_BYTES);
    expect(await engine.load("a", "a/b", "a/b/c", "z")).toEqual(["ok", "ok", "ok", "ok"]);
  });

  it("after a kill restores blocks whose rows were lost", {}, async ({ kit, reopen }) => {
    await put(kit, "a", "b");
    await kit.index.flush();
    await put(kit, "c", "c/d");
    const image = kit.crashImage(`${kit.dir}-image`);
    const next = await reopen({ dir: image });
    expect(next.report).toMatchObject({ blocks: 4, adopted: 2, rowsDropped: 0, filesDropped: 0 });
    expect(await next.engine().load("a", "b", "c", "c/d")).toEqual(all(4, "ok") as "ok"[]);
    // Again: now they have rows.
    expect((await reopen({ dir: image })).report).toMatchObject({ blocks: 4, adopted: 0 });
  });

  it("after a kill does not restore a block that was dropped before", {}, async ({
    kit,
    reopen,
  }) => {
    await put(kit, "a", "b");
    await kit.index.flush();
    await kit.ssd.room.drop(kit.nodeOf("a"));
    const image = kit.crashImage(`${kit.dir}-image`);
    const next = await reopen({ dir: image });
    expect(next.report).toMatchObject({ blocks: 1, adopted: 0, rowsDropped: 1, filesDropped: 0 });
    expect(await next.engine().load("a", "b")).toEqual(["miss", "ok"]);
  });

  it("deletes a file whose row was removed", {}, async ({ kit, reopen, faults }) => {
    await put(kit, "a", "b");
    const path = kit.fileOf("a");
    copyFileSync(path, `${kit.dir}/kept`);
    await kit.ssd.room.drop(kit.nodeOf("a"));
    await kit.close();
    renameSync(`${kit.dir}/kept`, path);
    faults("");
    const next = await reopen();
    await next.settled();
    expect(next.report).toMatchObject({ blocks: 1, adopted: 0, filesDropped: 1 });
    expect(existsSync(path)).toBe(false);
    expect(await next.engine().load("a", "b")).toEqual(["miss", "ok"]);
  });

  it("without an index restores all blocks from their headers", { depth: 4 }, async ({
    kit,
    reopen,
  }) => {
    // More files than concurrent header reads.
    const blocks = names(40);
    for (const block of blocks) await put(kit, block);
    await put(kit, "p", "p/q");
    await kit.close();
    rmSync(join(kit.dir, "index"), { recursive: true });
    const next = await reopen();
    expect(next.report).toMatchObject({ blocks: 42, adopted: 42, filesDropped: 0 });
    expect(next.engine().match(["p", "p/q"])).toEqual([2, 4, 4]);
    for (const block of blocks) expect(await next.engine().load(block)).toEqual(["ok"]);
    expect((await reopen()).report).toMatchObject({ blocks: 42, adopted: 0 });
  });

  it("without an index removes files that are not the named block", {}, async ({ kit, reopen }) => {
    await put(kit, "a", "b", "c");
    await kit.close();
    rmSync(join(kit.dir, "index"), { recursive: true });
    copyFileSync(kit.fileOf("a"), kit.fileOf("b"));
    truncateSync(kit.fileOf("c"), 4096);
    const next = await reopen();
    await next.settled();
    expect(next.report).toMatchObject({ blocks: 1, adopted: 1, filesDropped: 2 });
    expect(next.files()).toHaveLength(1);
    expect(await next.engine().load("a", "b", "c")).toEqual(["ok", "miss", "miss"]);
  });

  it("removes rows without a file, and files of another length", {}, async ({ kit, reopen }) => {
    await put(kit, "a", "b", "c");
    await kit.close();
    rmSync(kit.fileOf("a"));
    truncateSync(kit.fileOf("b"), 8192);
    const next = await reopen();
    await next.settled();
    expect(next.report).toMatchObject({ blocks: 1, rowsDropped: 2, filesDropped: 1 });
    expect(next.files()).toHaveLength(1);
    expect(next.ssd.room.usedBytes).toBe(FILE_BYTES);
    expect((await reopen()).report).toMatchObject({ blocks: 1, rowsDropped: 0, filesDropped: 0 });
  });

  it("does not override the blocks that RAM kept from the previous process", {}, async ({
    kit,
    reopen,
  }) => {
    await put(kit, "a", "b");
    const record = describeRam(kit.store, kit.namespaces, "arena")!;
    const { slots, table: before } = kit.store;
    const a = record.offsets.indexOf(slots.offsetOf(before.slotOf(kit.nodeOf("a"))));
    record.checksums[a]! ^= 1n;
    record.uses[1 - a] = 70;
    const next = await reopen({ adopt: (store, own) => void adoptRam(store, own, record) });
    expect(next.report).toMatchObject({ blocks: 1, rowsDropped: 1, filesDropped: 1 });
    expect(["a", "b"].map((name) => next.ssdHolds(name))).toEqual([false, true]);
    const { table } = next.store;
    expect(table.checksumLoOf(next.nodeOf("a"))).toBe(Number(record.checksums[a]! & 0xffff_ffffn));
    expect(table.usesOf(next.nodeOf("b"))).toBe(70);
    expect(next.engine().get("b")).toEqual(["ok"]);
  });

  it("ignores RAM-only descendants when it sorts by last use", {}, async ({ kit, reopen }) => {
    await kit.engine(1).put("old");
    await kit.settled();
    await kit.clock.advanceAsync(1_000);
    await kit.engine(2).put("new", { name: "new/ram", transient: true });
    await kit.settled();
    const record = describeRam(kit.store, kit.namespaces, "arena")!;
    const adopt: KitOptions["adopt"] = (store, own) => void adoptRam(store, own, record);
    const next = await reopen({ adopt, clock: kit.clock, capacityBytes: FILE_BYTES });
    await next.until(() => next.files().length === 1, "the trim");
    expect(["old", "new"].map((name) => next.ssdHolds(name))).toEqual([false, true]);
  });

  it("with a table that is too small restores the most recently used blocks", {}, async ({
    kit,
    reopen,
  }) => {
    for (const name of names(20)) {
      await put(kit, name);
      await kit.clock.advanceAsync(1_000);
    }
    const next = await reopen({ blocksMax: 8 });
    await next.settled();
    expect(next.report).toMatchObject({ blocks: 8, rowsDropped: 12, filesDropped: 12 });
    expect(next.files()).toHaveLength(8);
    expect(names(20).filter((name) => next.ssdHolds(name))).toEqual(names(20).slice(12));
  });

  it("with a lower capacity evicts the oldest blocks", {}, async ({ kit, reopen }) => {
    for (const name of names(10)) {
      await put(kit, name);
      await kit.clock.advanceAsync(1_000);
    }
    const next = await reopen({ capacityBytes: 4 * FILE_BYTES });
    await next.until(() => next.files().length === 4, "the trim");
    await next.settled();
    expect(next.ssd.room.usedBytes).toBe(4 * FILE_BYTES);
    expect(names(10).filter((name) => next.ssdHolds(name))).toEqual(names(10).slice(6));
  });

  it("evicts by last use, regardless of the namespace", {}, async (t) => {
    for (const [namespace, name] of [
      [1, "a"],
      [2, "b"],
      [1, "c"],
      [2, "d"],
    ] as const) {
      expect(await t.kit.engine(namespace).put(name)).toEqual(["ok"]);
      await t.kit.settled();
      await t.kit.clock.advanceAsync(1_000);
    }
    const next = await t.reopen({ clock: t.kit.clock, capacityBytes: 2 * FILE_BYTES });
    await next.until(() => next.files().length === 2, "the trim");
    expect(["a", "b", "c", "d"].filter((name) => next.ssdHolds(name))).toEqual(["c", "d"]);
  });

  it("without an index evicts by the last use in the headers", {}, async ({ kit, reopen }) => {
    for (const name of names(10)) {
      await put(kit, name);
      await kit.clock.advanceAsync(1_000);
    }
    await kit.close();
    rmSync(join(kit.dir, "index"), { recursive: true });
    const next = await reopen({ clock: kit.clock, capacityBytes: 4 * FILE_BYTES });
    await next.until(() => next.files().length === 4, "the trim");
    expect(names(10).filter((name) => next.ssdHolds(name))).toEqual(names(10).slice(6));
  });

  it("removes leftovers of a killed run, and keeps foreign files", {}, async ({ kit, reopen }) => {
    await put(kit, "a");
    await kit.close();
    mkdirSync(join(kit.dir, "3f"), { recursive: true });
    const leftovers = ["3f/.0123456789abcdef.tmp", "probe-abc.kvb", ".0123456789abcdef.tmp"];
    const foreign = ["3f/notes.txt", "3f/zz.kvb", "README"];
    for (const path of [...leftovers, ...foreign]) writeFileSync(join(kit.dir, path), "x");
    const next = await reopen();
    const there = (path: string) => existsSync(join(next.dir, path));
    expect(leftovers.filter(there)).toEqual([]);
    expect(foreign.filter(there)).toEqual(foreign);
    expect(next.report).toMatchObject({ blocks: 1, foreignFiles: 2 });
    expect(await next.engine().load("a")).toEqual(["ok"]);
  });

  it("accepts the rows of a folder that cannot be listed", {}, async ({ kit, faults, reopen }) => {
    await put(kit, ...names(6));
    await kit.close();
    faults("list.open:1+:EIO");
    const next = await reopen();
    faults("");
    expect(next.report).toMatchObject({ blocks: 6, rowsDropped: 0 });
    rmSync(next.fileOf("x0"));
    expect(await next.engine().load(...names(6))).toEqual(["miss", ...(all(5, "ok") as "ok"[])]);
  });

  it("keeps a time to live running over a stop", { ttlMs: 60_000 }, async ({ kit, reopen }) => {
    await put(kit, "old");
    await kit.clock.advanceAsync(40_000, 10_000);
    await put(kit, "new");
    const { clock } = kit;
    await kit.close();
    clock.advance(30_000);
    const next = await reopen({ clock });
    await next.until(() => !next.ssdHolds("old"), "the end of the old block");
    await next.settled();
    expect(await next.engine().load("new")).toEqual(["ok"]);
    expect(next.store.ssdStats.expiredBlocks).toBe(1);
    expect(next.files()).toHaveLength(1);
  });
});

describeNative("SSD tier: two keys with the same short name", () => {
  const it = useSsdKit();

  it("are written, read, restored and dropped separately", {}, async ({ kit, reopen }) => {
    // The file of another block has the name of "a", like a key with the same prefix would.
    await put(kit, "other");
    const squatter = kit.fileOf("a");
    mkdirSync(join(squatter, ".."), { recursive: true });
    copyFileSync(kit.fileOf("other"), squatter);
    await put(kit, "a");
    expect(existsSync(kit.fileOf("a", 1))).toBe(true);
    kit.leaveRam();
    expect(await kit.engine().load("a", "other")).toEqual(["ok", "ok"]);
    const next = await reopen();
    await next.settled();
    // The unknown file is removed, and "a" still has its own name.
    expect(next.report).toMatchObject({ blocks: 2, filesDropped: 1 });
    expect(existsSync(next.fileOf("a"))).toBe(false);
    expect(await next.engine().load("a", "other")).toEqual(["ok", "ok"]);
    await next.ssd.room.drop(next.nodeOf("a"));
    expect(existsSync(next.fileOf("a", 1))).toBe(false);
  });

  it("are restored from headers too", {}, async ({ kit, reopen }) => {
    await put(kit, "other");
    const squatter = kit.fileOf("a");
    mkdirSync(join(squatter, ".."), { recursive: true });
    copyFileSync(kit.fileOf("other"), squatter);
    await put(kit, "a");
    await kit.close();
    rmSync(join(kit.dir, "index"), { recursive: true });
    const next = await reopen();
    await next.settled();
    expect(next.report).toMatchObject({ blocks: 2, adopted: 2, filesDropped: 1 });
    expect(await next.engine().load("a", "other")).toEqual(["ok", "ok"]);
    expect(digestOf("a")).not.toEqual(digestOf("other"));
  });
});

describeNative("SSD tier: time to live and capacity", () => {
  const it = useSsdKit();

  it("removes unused blocks after the time to live, and keeps used ones", {
    ttlMs: 10_000,
  }, async ({ kit }) => {
    const engine = kit.engine();
    await put(kit, "a", "b");
    kit.leaveRam();
    await kit.pass(8_000);
    expect(await engine.load("b")).toEqual(["ok"]);
    kit.leaveRam();
    await kit.pass(4_000);
    await kit.settled();
    expect([kit.ssdHolds("a"), kit.ssdHolds("b")]).toEqual([false, true]);
    expect(kit.files()).toHaveLength(1);
    await kit.pass(8_000);
    await kit.settled();
    expect(kit.files()).toEqual([]);
    expect(kit.store.ssdStats.expiredBlocks).toBe(2);
  });

  it("ignores a jump of the wall clock", { ttlMs: 10_000 }, async ({ kit }) => {
    await put(kit, "a");
    kit.clock.jumpWall(1e9);
    await kit.clock.advanceAsync(2_000, 500);
    expect(kit.ssdHolds("a")).toBe(true);
  });

  it("evicts the oldest leaves, and never exceeds the capacity", {
    slots: 32,
    capacityBytes: 6 * FILE_BYTES + 4096,
  }, async ({ kit }) => {
    const engine = kit.engine();
    await put(kit, "a", "a/b", "a/b/c");
    for (const name of names(12)) {
      await put(kit, name);
      expect(await engine.load("a")).toEqual(["ok"]);
      expect(kit.allocatedBytes()).toBeLessThanOrEqual(6 * FILE_BYTES + 4096);
    }
    // The ancestors were used all the time, the descendants were not.
    expect(["a", "a/b", "a/b/c"].map((name) => kit.ssdHolds(name))).toEqual([true, false, false]);
    expect(kit.files()).toHaveLength(6);
    expect(kit.store.ssdStats.evictedBlocks).toBe(9);
  });
});
