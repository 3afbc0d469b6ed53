import { expect } from "bun:test";
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import type { Native } from "../../../src/native/index.ts";
import { isLeftover } from "../../../src/store/kvb/index.ts";
import { faultCounts } from "../../support/index.ts";
import { FILE_BYTES, type SsdKit } from "./ssd-kit.ts";
import { describeSsd } from "./use-kit.ts";

const names = (count: number, prefix = "x") => Array.from({ length: count }, (_, i) => prefix + i);

/** A tier that stores eight blocks. */
const SMALL = { slots: 4, capacityBytes: 8 * FILE_BYTES };

async function put(kit: SsdKit, ...blocks: string[]) {
  for (const block of blocks) {
    await kit.engine().put(block);
    await kit.ssd.writer.settled();
  }
}

const inodesOf = (kit: SsdKit) =>
  new Set(kit.files().map((file) => statSync(join(kit.dir, file)).ino));

const leftovers = (kit: SsdKit) =>
  readdirSync(kit.dir, { recursive: true, encoding: "utf8" }).filter((path) =>
    isLeftover(path.slice(path.lastIndexOf("/") + 1)),
  );

/** Bytes of all files in the tier's folders, including spare files. */
function allocatedBytes(kit: SsdKit): number {
  const shards = readdirSync(kit.dir).filter((name) => /^[0-9a-f]{2}$/.test(name));
  const files = shards.flatMap((shard) =>
    readdirSync(join(kit.dir, shard)).map((name) => join(kit.dir, shard, name)),
  );
  const sizes = files.map((file) => statSync(file, { throwIfNoEntry: false })?.blocks ?? 0);
  return sizes.reduce((sum, blocks) => sum + blocks * 512, 0);
}

const hits = (native: Native) => faultCounts(native) as Record<string, number | undefined>;

describeSsd("SSD tier: files of evicted blocks", (it) => {
  it("are overwritten by new blocks", SMALL, async ({ kit, host, faults }) => {
    await put(kit, ...names(8));
    const before = inodesOf(kit);
    faults("count");
    await put(kit, ...names(20, "y"));
    expect(hits(host.native)).toMatchObject({ "store.reuse": 20, "rename.rename": 20 });
    expect(hits(host.native)["store.open"] ?? 0).toBe(0);
    expect(inodesOf(kit)).toEqual(before);
    expect(kit.ssd.room.usedBytes).toBe(8 * FILE_BYTES);
    kit.leaveRam();
    const loaded = await kit.engine().load(...names(20, "y").slice(-4));
    expect(loaded).toEqual(["ok", "ok", "ok", "ok"]);
    expect(kit.store.ssdStats.corruptBlocks).toBe(0);
    expect(kit.ssdHolds("x0")).toBe(false);
  });

  it("serve many concurrent writes within the capacity", {
    slots: 128,
    capacityBytes: 24 * FILE_BYTES,
  }, async ({ kit, host, faults }) => {
    await kit.engine().put(...names(24));
    await kit.settled();
    const before = inodesOf(kit);
    faults("count");
    for (const prefix of ["y", "z"]) {
      await kit.engine().put(...names(32, prefix));
      while (kit.ssd.writer.queuedBlocks > 0) {
        await kit.ssd.writer.oneSettled();
        expect(kit.ssd.room.usedBytes).toBeLessThanOrEqual(24 * FILE_BYTES);
        expect(allocatedBytes(kit)).toBeLessThanOrEqual(24 * FILE_BYTES);
      }
    }
    expect(hits(host.native)).toMatchObject({ "store.reuse": 64 });
    expect(inodesOf(kit)).toEqual(before);
    expect(leftovers(kit)).toEqual([]);
  });

  it("of another length are removed for room in bounded time", {
    slots: 16,
    capacityBytes: 8 * FILE_BYTES,
  }, async ({ kit }) => {
    for (let round = 0; round < 6; round++) {
      const bytes = round % 2 === 0 ? 4_096 : 5_000;
      const blocks = names(5, `r${round}-`).map((name) => ({ name, bytes }));
      expect(new Set(await kit.engine().put(...blocks))).toEqual(new Set(["ok"]));
      while (kit.ssd.writer.queuedBlocks > 0) {
        await kit.ssd.writer.oneSettled();
        expect(allocatedBytes(kit)).toBeLessThanOrEqual(8 * FILE_BYTES);
      }
      await kit.settled();
      expect(blocks.every(({ name }) => kit.ssdHolds(name))).toBe(true);
      expect(kit.ssd.room.usedBytes).toBeLessThanOrEqual(8 * FILE_BYTES);
      kit.leaveRam();
    }
    await kit.pass(500);
    await kit.settled();
    expect(leftovers(kit)).toEqual([]);
    expect(allocatedBytes(kit)).toBe(kit.ssd.room.usedBytes);
  });

  it("that cannot be renamed are removed", SMALL, async ({ kit, faults }) => {
    await put(kit, ...names(8));
    for (const plan of ["rename.rename:1+:EIO", "rename.*:1+:EINVAL"]) {
      faults(plan);
      await put(kit, ...names(8, plan));
      faults("");
      await kit.settled();
      expect(names(8, plan).every((name) => kit.ssdHolds(name))).toBe(true);
      expect(allocatedBytes(kit)).toBe(8 * FILE_BYTES);
    }
  });

  for (const call of ["reuse", "measure"]) {
    it(
      `that are missing when they are needed: a new file is written (${call})`,
      SMALL,
      async (t) => {
        await put(t.kit, ...names(8));
        t.faults(`store.${call}:1+:ENOENT`);
        await put(t.kit, ...names(4, "y"));
        await t.kit.settled();
        expect(names(4, "y").every((name) => t.kit.ssdHolds(name))).toBe(true);
        expect(t.kit.ssd.room.usedBytes).toBe(8 * FILE_BYTES);
        expect(allocatedBytes(t.kit)).toBe(8 * FILE_BYTES);
      },
    );
  }

  for (const call of ["reuse", "measure", "write", "stat", "rename"]) {
    it(
      `whose overwrite fails: only that block is lost (${call})`,
      SMALL,
      async ({ kit, faults }) => {
        await put(kit, ...names(8));
        faults(`store.${call}:1:EIO`);
        await put(kit, "bad");
        await kit.settled();
        expect(kit.ssdHolds("bad")).toBe(false);
        expect(leftovers(kit)).toEqual([]);
        expect(kit.ssd.room.usedBytes).toBe(7 * FILE_BYTES);
        expect(allocatedBytes(kit)).toBe(7 * FILE_BYTES);
      },
    );
  }

  it(
    "whose name is already in use: the block gets a variant of it",
    SMALL,
    async ({ kit, faults }) => {
      await put(kit, ...names(8));
      faults("store.rename:1:EEXIST");
      await put(kit, "y");
      await kit.settled();
      expect(kit.ssdHolds("y")).toBe(true);
      expect(allocatedBytes(kit)).toBe(8 * FILE_BYTES);
    },
  );
});

describeSsd("SSD tier: spare files that are not used", (it) => {
  /** A tier whose last write hangs with its spare file, while others wait. */
  async function frozen(kit: SsdKit, faults: (plan: string) => void, plan: string) {
    await kit.engine().put(...names(8));
    await kit.settled();
    faults(plan);
    void kit.engine().put(...names(4, "y"));
    await kit.until(() => leftovers(kit).length > 0, "a spare file");
  }

  const options = { slots: 16, capacityBytes: 8 * FILE_BYTES };

  it("are removed after a crash, and restore no block", options, async (t) => {
    await frozen(t.kit, t.faults, "store.write:1+:freeze");
    const gone = names(8).filter((name) => !t.kit.ssdHolds(name));
    expect(gone.length).toBeGreaterThan(0);
    const dir = t.kit.crashImage(`${t.dir}-crashed`);
    t.faults("");
    await t.kit.settled();
    await t.kit.close();
    const next = await t.reopen({ dir });
    await next.settled();
    expect(leftovers(next)).toEqual([]);
    expect(gone.some((name) => next.ssdHolds(name))).toBe(false);
    expect(allocatedBytes(next)).toBe(next.ssd.room.usedBytes);
  });

  it("are removed when writing is suspended, and by a purge", options, async (t) => {
    const { kit } = t;
    await kit.engine().put(...names(8));
    await kit.settled();
    const { room } = kit.ssd;
    const made = room.reserve(8_192, 4);
    expect(made.kind).toBe("later");
    await kit.until(() => room.usedBytes < 8 * FILE_BYTES, "the spare files to go");
    await room.removals.settled();
    expect(leftovers(kit)).toEqual([]);
    expect(room.usedBytes).toBe(4 * FILE_BYTES);
    expect(allocatedBytes(kit)).toBe(4 * FILE_BYTES);
    kit.ssd.room.setCapacity(4 * FILE_BYTES);
    room.reserve(8_192, 2);
    await room.removalsOver();
    expect(leftovers(kit)).toEqual([]);
    expect(room.usedBytes).toBe(2 * FILE_BYTES);
  });

  it("are not left by a clean stop", options, async ({ kit, reopen }) => {
    await kit.engine().put(...names(8));
    await kit.settled();
    kit.ssd.room.reserve(8_192, 3);
    await kit.ssd.room.removals.settled();
    expect(leftovers(kit)).toHaveLength(3);
    expect(await kit.close()).toBe(true);
    expect(leftovers(kit)).toEqual([]);
    const next = await reopen();
    expect(next.report).toMatchObject({ blocks: 5, filesDropped: 0, rowsDropped: 0 });
  });

  it("come from eviction only: purged and expired blocks are unlinked", {
    ...options,
    ttlMs: 60_000,
  }, async ({ kit, host, faults }) => {
    await kit.engine().put(...names(8));
    await kit.settled();
    const path = kit.fileOf("x0");
    faults("count");
    await kit.ssd.room.drop(kit.nodeOf("x0"));
    expect(existsSync(path)).toBe(false);
    await kit.pass(61_000);
    await kit.settled();
    expect(kit.files()).toEqual([]);
    expect(leftovers(kit)).toEqual([]);
    expect(hits(host.native)["rename.rename"] ?? 0).toBe(0);
  });
});

describeSsd("SSD tier: the scrub beside evictions", (it) => {
  it("overwritten during a read are not reported as damage", {
    slots: 4,
    capacityBytes: 2 * FILE_BYTES,
    scrubBytesPerS: 100_000,
  }, async ({ kit, host, faults }) => {
    await put(kit, "a", "b");
    faults("load.read:1:freeze");
    await kit.until(() => (hits(host.native)["load.read"] ?? 0) > 0, "the scrub at work");
    const victims = ["a", "b"].map((name) => readFileSync(kit.fileOf(name)));
    // Both files are overwritten, and both blocks written again.
    await put(kit, "c", "d");
    await put(kit, "e", "f");
    await put(kit, "a", "b");
    expect(["a", "b"].map((name) => readFileSync(kit.fileOf(name)).length)).toEqual(
      victims.map(({ length }) => length),
    );
    await put(kit, "g");
    faults("");
    const { ssdStats } = kit.store;
    await kit.until(() => ssdStats.scrubbedBlocks > 2, "the scrub going on");
    expect(ssdStats.corruptBlocks).toBe(0);
    expect(kit.health.raised.has("KV_SSD_CSUM")).toBe(false);
    expect(kit.logged.filter((line) => line.includes("damaged block on SSD"))).toEqual([]);
  });
});
