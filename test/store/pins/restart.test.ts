import { describe, expect, test } from "bun:test";
import { systemClock } from "../../../src/core/index.ts";
import { openRetentionLedger, type RetentionLedger } from "../../../src/store/index/index.ts";
import type { RememberedPins } from "../../../src/store/pins/index.ts";
import { ManualClock, waitFor, withTempDir } from "../../support/index.ts";
import { digestBytes } from "../blocks/blocks.ts";
import { HoldKit } from "./hold-kit.ts";
import { MemoryDisk } from "./memory-ledger.ts";

const TEN_YEARS_MS = 10 * 365 * 86_400_000;
const all = { kind: null, owner: null, after: 0, max: 99 } as const;
const fill = (kit: HoldKit) => {
  kit.put([1, 2, 3]);
  kit.put([4]);
};

/** A run over a disk, with some blocks. */
function firstRun(disk = new MemoryDisk()) {
  const ledger = disk.open();
  const kit = new HoldKit({ ledger });
  fill(kit);
  return { disk, ledger, kit };
}

describe("after a restart", () => {
  test("after a restart committed entries are present, and uncommitted ones are not", async () => {
    const { disk, kit } = firstRun();
    kit.pin("a", [3]);
    kit.pin("a", [3]);
    kit.retain("b", [4], 40, 60_000);
    kit.lease("night", [2, 3], 60_000);
    kit.unpin("a", [3]);
    expect(await kit.holds.commit()).toBe(true);
    const before = kit.holds.list(all).holds;
    kit.unpin("a", [3]);
    kit.lease("late", [4]);
    const next = await HoldKit.restarted(disk.open(), kit.clock, fill);
    expect(next.holds.list(all).holds).toEqual(before);
    expect(next.pins(1, 2, 3, 4)).toEqual([0, 1, 2, 1]);
    expect(next.evict()).toEqual([]);
    expect(next.unpin("a", [3, 3])).toEqual([true, false]);
  });

  test("a row says which blocks, in digest and layer", async () => {
    const { disk, kit } = firstRun();
    const id = kit.pin("a", [4, 2]).id!;
    await kit.holds.commit();
    const { blocks } = disk.holds.get(id)!;
    expect(blocks).toHaveLength(72);
    expect(blocks.subarray(0, 32)).toEqual(digestBytes(4));
    expect(blocks.subarray(36, 68)).toEqual(digestBytes(2));
    expect(new DataView(blocks.buffer).getUint32(32, true)).toBe(3);
  });

  test("an id is never given twice", async () => {
    const { disk, kit } = firstRun();
    kit.pin("a", [1]);
    const last = kit.pin("a", [2]).id!;
    await kit.holds.commit();
    const next = await HoldKit.restarted(disk.open(), kit.clock, fill);
    expect(next.pin("a", [1]).id).toBe(last + 1);
  });

  test("after a restart no budget refuses an accepted entry", async () => {
    const { disk, kit } = firstRun();
    kit.pin("a", [3]);
    await kit.holds.commit();
    const shares = () => ({ host: 0, owner: 0 });
    const next = await HoldKit.restarted(disk.open(), kit.clock, fill, { shares });
    expect(next.pins(3)).toEqual([1]);
    expect(next.pin("a", [4]).id).toBeNull();
  });

  test("time passes while the process is down, and a jump of the wall clock does not count", async () => {
    for (const jump of [TEN_YEARS_MS, -TEN_YEARS_MS]) {
      const { disk, kit } = firstRun();
      const { clock } = kit;
      kit.lease("short", [1], 60_000);
      kit.lease("long", [2], 600_000);
      await kit.holds.commit();
      await kit.holds[Symbol.asyncDispose]();
      clock.advance(120_000);
      clock.jumpWall(jump);
      const next = await HoldKit.restarted(disk.open(), clock, fill);
      expect(next.holds.lease("long")!.remainingMs).toBe(480_000);
      clock.advance(1_000);
      expect(next.ended).toMatchObject([{ info: { name: "short" } }]);
      clock.advance(478_000);
      expect(next.holds.lease("long")).not.toBeNull();
      clock.advance(2_000);
      expect(next.holds.lease("long")).toBeNull();
    }
  });

  test("missing blocks are said, the rest is held, and an empty hold is over", async () => {
    const { disk, kit } = firstRun();
    kit.pin("a", [2, 4]);
    kit.lease("night", [4]);
    await kit.holds.commit();
    const ledger = disk.open();
    const next = await HoldKit.restarted(ledger, kit.clock, (world) => world.put([1, 2, 3]));
    expect(next.holds.list(all).holds).toMatchObject([{ kind: "pin", owner: "a", blocks: 1 }]);
    const why = "not resident after the start";
    expect(next.said()).toEqual([
      { kind: "hold_lost", hold: "pin", owner: "a", name: null, blocks: 1, why },
      { kind: "hold_lost", hold: "lease", owner: "router", name: "night", blocks: 1, why },
    ]);
    expect(next.warnings).toMatchObject([
      { fields: { kind: "pin", owner: "a", lost: 1, left: 1 } },
      { fields: { kind: "lease", lease: "night", lost: 1, left: 0 } },
    ]);
    expect(next.holds.counts().lost).toBe(2);
    await next.holds.commit();
    expect([...disk.holds.values()].map(({ blocks }) => blocks.length)).toEqual([36]);
  });

  test("the priority of a soft pin follows the uses of its blocks, not its start value", async () => {
    const { disk, kit } = firstRun();
    kit.retain("a", [4], 64, 60_000);
    await kit.holds.commit();
    const usedSeconds = kit.nowSeconds();
    kit.clock.advance(120_000);
    const next = await HoldKit.restarted(disk.open(), kit.clock, (world) => {
      world.put([4]);
      world.table.setUses(world.node(4), 1, usedSeconds);
    });
    expect(next.holds.list(all).holds).toMatchObject([
      { priority: 64, priorityNow: 32, idleMs: 60_000 },
    ]);
  });

  test("rows of a ledger that make no sense are dropped", async () => {
    const { disk, kit } = firstRun();
    kit.lease("night", [1]);
    await kit.holds.commit();
    const [row] = [...disk.holds.values()];
    disk.holds.set(7, { ...row!, id: 7 });
    disk.holds.set(8, { ...row!, id: 8, name: null });
    disk.holds.set(9, { ...row!, id: 9, name: "odd", blocks: row!.blocks.subarray(0, 35) });
    const next = await HoldKit.restarted(disk.open(), kit.clock, fill);
    expect(next.holds.list(all).holds).toMatchObject([{ id: 7, name: "night" }]);
    await waitFor(() => next.said().some(({ kind }) => kind === "hold_expired"));
    await next.holds.commit();
    expect([...disk.holds.keys()]).toEqual([7]);
  });

  test("tens of thousands of holds come back, and the event loop turns meanwhile", async () => {
    const { disk, kit } = firstRun();
    for (let i = 0; i < 20_000; i++) kit.pin("a", [1 + (i % 3)], i % 2 === 0 ? null : 1e6 + i);
    await kit.holds.commit();
    let turns = 0;
    let isOver = false;
    const count = () => {
      turns++;
      if (!isOver) setImmediate(count);
    };
    setImmediate(count);
    const next = await HoldKit.restarted(disk.open(), kit.clock, fill);
    isOver = true;
    expect(next.holds.counts().pin.holds).toBe(20_000);
    expect(turns).toBeGreaterThanOrEqual(2);
  });
});

describe("handed on with RAM, without a ledger", () => {
  /** The process that takes the blocks over. */
  async function successor(
    kit: HoldKit,
    handed: RememberedPins,
    ledger: RetentionLedger | null = null,
  ) {
    const next = new HoldKit({ ledger }, kit.clock);
    fill(next);
    await next.holds.restore(next.find, handed);
    next.verify();
    return next;
  }

  test("all of them hold as before, with the time they had left", async () => {
    const kit = new HoldKit();
    fill(kit);
    kit.pin("a", [3]);
    kit.pin("a", [3]);
    kit.retain("b", [4], 40, 60_000);
    kit.lease("night", [2, 3], 60_000);
    kit.lease("over", [1], 5_000);
    const handed = kit.holds.handOver(2 ** 20);
    expect(handed).toMatchObject({ leftOut: 0, lastSeen: { bootId: kit.clock.bootId } });
    await kit.holds[Symbol.asyncDispose]();
    kit.clock.advance(10_000);
    kit.clock.jumpWall(TEN_YEARS_MS);
    const next = await successor(kit, handed);
    expect(next.pins(1, 2, 3, 4)).toEqual([1, 1, 3, 1]);
    expect(next.holds.lease("night")!.remainingMs).toBe(50_000);
    next.clock.advance(1_000);
    expect(next.ended).toMatchObject([{ info: { name: "over" } }]);
    expect(next.unpin("a", [3, 3, 3])).toEqual([true, true, false]);
    // Ids go on where they were.
    expect(next.pin("a", [1]).id).toBe(6);
  });

  test("as many as fit: pins and leases before soft pins", async () => {
    const kit = new HoldKit();
    fill(kit);
    kit.retain("soft", [1], 99, 60_000);
    kit.pin("a", [1]);
    kit.lease("night", [2]);
    const kinds = (bytesMax: number) => kit.holds.handOver(bytesMax).holds.map(({ kind }) => kind);
    expect(kinds(2 ** 20)).toEqual(["pin", "lease", "retain"]);
    expect(kinds(1_100)).toEqual(["pin", "lease"]);
    expect(kit.holds.handOver(1_100).leftOut).toBe(1);
    expect(kinds(0)).toEqual([]);
  });

  test("a ledger knows better", async () => {
    const { disk, kit } = firstRun();
    kit.pin("a", [3]);
    await kit.holds.commit();
    kit.pin("b", [4]);
    const next = await successor(kit, kit.holds.handOver(2 ** 20), disk.open());
    expect(next.pins(3, 4)).toEqual([1, 0]);
  });
});

describe("after a reboot", () => {
  test("after a reboot a lease has the time that remained when the machine was last seen, and not less", async () => {
    const { disk, kit } = firstRun();
    const { clock } = kit;
    kit.lease("night", [1], 600_000);
    kit.pin("a", [2]);
    await kit.holds.commit();
    await clock.advanceAsync(100_000, 1_000);
    clock.reboot();
    clock.jumpWall(86_400_000);
    const next = await HoldKit.restarted(disk.open(), clock, fill);
    const { remainingMs } = next.holds.lease("night")!;
    expect(remainingMs).toBeGreaterThanOrEqual(500_000);
    expect(remainingMs).toBeLessThanOrEqual(510_000);
    expect(next.pins(2)).toEqual([1]);
  });

  test("a second reboot continues from the first, at any time", async () => {
    const { disk, kit } = firstRun();
    const { clock } = kit;
    kit.lease("night", [1], 600_000);
    await kit.holds.commit();
    await clock.advanceAsync(100_000, 1_000);
    clock.reboot();
    const second = await HoldKit.restarted(disk.open(), clock, fill);
    const left = second.holds.lease("night")!.remainingMs!;
    // Nothing was committed in this boot: the rows and the time are as the first one left them.
    clock.advance(3_000);
    clock.reboot();
    const third = await HoldKit.restarted(disk.open(), clock, fill);
    expect(third.holds.lease("night")!.remainingMs).toBe(left);
    await third.holds.commit();
    await clock.advanceAsync(50_000, 1_000);
    clock.reboot();
    const fourth = await HoldKit.restarted(disk.open(), clock, fill);
    expect(fourth.holds.lease("night")!.remainingMs).toBeGreaterThanOrEqual(left - 50_000);
    expect(fourth.holds.lease("night")!.remainingMs).toBeLessThanOrEqual(left - 40_000);
  });

  test("after a reboot without a recorded time a lease keeps at least its whole time", async () => {
    const { disk, kit } = firstRun();
    kit.lease("night", [1], 600_000);
    await kit.holds.commit();
    disk.lastSeen = null;
    kit.clock.reboot();
    const next = await HoldKit.restarted(disk.open(), kit.clock, fill);
    const { remainingMs } = next.holds.lease("night")!;
    expect(remainingMs).toBeGreaterThanOrEqual(600_000);
    expect(remainingMs).toBeLessThanOrEqual(next.leaseTtlMaxMs);
  });

  test("without boot ids, a boot clock that went back shows a reboot", async () => {
    const clock = new ManualClock();
    clock.bootId = "";
    const disk = new MemoryDisk();
    const kit = new HoldKit({ ledger: disk.open() }, clock);
    fill(kit);
    kit.lease("night", [1], 600_000);
    await kit.holds.commit();
    clock.advance(60_000);
    const same = await HoldKit.restarted(disk.open(), clock, fill);
    expect(same.holds.lease("night")!.remainingMs).toBe(540_000);
    clock.reboot();
    clock.bootId = "";
    const next = await HoldKit.restarted(disk.open(), clock, fill);
    expect(next.holds.lease("night")!.remainingMs).toBe(540_000);
  });
});

describe("the time is written down", () => {
  test("at least every ten seconds while a hold has an end, and not without", async () => {
    const { disk, ledger, kit } = firstRun();
    kit.pin("a", [1]);
    await kit.holds.commit();
    await kit.clock.advanceAsync(60_000, 1_000);
    expect([ledger.commits, disk.lastSeen]).toEqual([1, null]);
    kit.lease("night", [2], 600_000);
    for (let i = 0; i < 30; i++) {
      await kit.clock.advanceAsync(2_000, 1_000);
      if (i < 6) continue;
      expect(kit.clock.bootMs() - disk.lastSeen!.bootMs).toBeLessThanOrEqual(11_000);
    }
    expect(ledger.commits).toBeLessThan(10);
  });
});

test("over the ledger that ships, on a real disk", () =>
  withTempDir(async (folder) => {
    const owner = { worker: "worker-a", machine: "machine-a" };
    const open = (incarnation: bigint) =>
      openRetentionLedger({ folder, incarnation, owner, clock: systemClock });
    const clock = new ManualClock();
    const first = await open(1n);
    const kit = new HoldKit({ ledger: first }, clock);
    fill(kit);
    kit.pin("a", [3, 4]);
    kit.lease("night", [2], 60_000);
    kit.retain("b", [1], 12, 5_000);
    kit.unpin("a", [4]);
    expect(await kit.holds.commit()).toBe(true);
    const before = kit.holds.list(all).holds;
    await kit.holds[Symbol.asyncDispose]();
    expect(await first.close(5_000)).toBe(true);
    clock.advance(1_000);
    clock.reboot();
    await using second = await open(2n);
    const next = await HoldKit.restarted(second, clock, fill);
    const after = next.holds.list(all).holds;
    expect(after.map(({ id, blocks, name }) => [id, blocks, name])).toEqual(
      before.map(({ id, blocks, name }) => [id, blocks, name]),
    );
    expect(next.holds.lease("night")!.remainingMs).toBe(60_000);
    expect(await next.holds.commit()).toBe(true);
  }));

test("an entry that found no room in the ledger is reported, however late the query", () =>
  withTempDir(async (folder) => {
    const owner = { worker: "worker-a", machine: "machine-a" };
    const options = { folder, incarnation: 1n, owner, clock: systemClock, pendingBytesMax: 1_000 };
    await using ledger = await openRetentionLedger(options);
    const kit = new HoldKit({ ledger });
    kit.put(Array.from({ length: 50 }, (_, i) => i + 1));
    const since = kit.holds.mark;
    kit.pin(
      "a",
      Array.from({ length: 50 }, (_, i) => i + 1),
    );
    expect(await kit.holds.commit()).toBe(false);
    const later = kit.holds.mark;
    kit.pin("b", [1]);
    expect(await kit.holds.commit()).toBe(true);
    expect(await kit.holds.commit(since)).toBe(false);
    expect(await kit.holds.commit(later)).toBe(true);
  }));
