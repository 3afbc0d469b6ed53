import { expect } from "bun:test";
import { faultCounts } from "../../support/index.ts";
import type { SsdKit } from "./ssd-kit.ts";
import { describeSsd } from "./use-kit.ts";

const names = (count: number, prefix = "x") => Array.from({ length: count }, (_, i) => prefix + i);

async function put(kit: SsdKit, ...blocks: string[]): Promise<void> {
  expect(await kit.engine().put(...blocks)).toEqual(blocks.map(() => "ok"));
  await kit.settled();
}

describeSsd("SSD tier: a disk that answers with errors", (it) => {
  it("one EIO is a miss", {}, async ({ kit, faults }) => {
    await put(kit, "a", "b");
    kit.leaveRam();
    faults("load.read:1:EIO");
    const engine = kit.engine();
    expect((await engine.load("a", "b")).toSorted()).toEqual(["miss", "ok"]);
    expect(kit.store.ssdStats.readErrors).toBe(1);
    expect(kit.ssd.readable).toBe(true);
    await kit.clock.advanceAsync(1_000, 250);
    expect(kit.health.raised.size).toBe(0);
  });

  it("a read without memory on the host is a miss, and the block stays", {}, async (t) => {
    await put(t.kit, "a");
    t.kit.leaveRam();
    t.faults("load.open:1:EMFILE");
    expect(await t.kit.engine().load("a")).toEqual(["miss"]);
    expect(await t.kit.engine().load("a")).toEqual(["ok"]);
  });

  it("repeated EIO: reading stops, RAM still serves, and a trial resumes it", {
    slots: 16,
  }, async (t) => {
    const { kit, faults } = t;
    await put(kit, ...names(8));
    kit.leaveRam();
    await put(kit, "ram");
    const engine = kit.engine();
    faults("load.read:1+:EIO");
    for (const name of names(5)) expect(await engine.load(name)).toEqual(["miss"]);
    expect(kit.ssd.readable).toBe(false);
    expect(kit.ssd.snapshot().readsStopped).toBe("io_error");
    // Unreadable blocks are not promised, and no request waits for the disk.
    expect(engine.match(["x6"])).toEqual([0, 0]);
    expect(engine.get("x6", "ram")).toEqual(["miss", "ok"]);
    await kit.clock.advanceAsync(500, 250);
    expect(kit.health.raised).toContain("KV_SSD_ERRORS");
    // Half open: one read is tried, and fails.
    await kit.clock.advanceAsync(600, 250);
    expect((await engine.load("x5", "x6")).toSorted()).toEqual(["miss", "miss"]);
    expect(kit.ssd.readable).toBe(false);
    faults("");
    await kit.clock.advanceAsync(1_500, 250);
    expect(kit.ssd.readable).toBe(false);
    await kit.clock.advanceAsync(1_000, 250);
    expect(await engine.load("x7")).toEqual(["ok"]);
    await kit.clock.advanceAsync(250);
    expect(kit.health.raised.size).toBe(0);
    expect(kit.health.times.get("KV_SSD_ERRORS")).toBe(1);
  });

  for (const [errno, status, code] of [
    ["ENOSPC", "no_space", "KV_SSD_FULL"],
    ["EDQUOT", "no_space", "KV_SSD_FULL"],
    ["EROFS", "read_only", "KV_SSD_READ_ONLY"],
    ["EIO", "io_error", "KV_SSD_ERRORS"],
    ["EMFILE", "no_descriptors", "FD_LIMIT"],
    ["ENFILE", "no_descriptors", "FD_LIMIT"],
  ] as const) {
    it(`${errno}: writing is suspended until a trial succeeds`, { slots: 32 }, async (t) => {
      const { kit, faults } = t;
      const engine = kit.engine();
      await put(kit, "before");
      faults(`store.*:1+:${errno}`);
      // Many failures at once count as one for the delay of the first trial.
      expect(await engine.put(...names(16))).toEqual(Array(16).fill("ok"));
      await kit.settled();
      expect(kit.ssd.snapshot().writesStopped).toBe(status);
      expect(kit.ssd.takesBlocks).toBe(false);
      await kit.clock.advanceAsync(250);
      expect([...kit.health.raised]).toEqual([code]);
      kit.leaveRam();
      expect(await engine.load("before")).toEqual(["ok"]);
      expect(await engine.put("during")).toEqual(["ok"]);
      expect(engine.get("during")).toEqual(["ok"]);
      faults("");
      // Without further requests, at the first trial a second later.
      await kit.clock.advanceAsync(1_000, 250);
      await kit.until(() => kit.ssd.takesBlocks, "admission");
      expect(kit.clock.monotonicMs()).toBeLessThan(15_000);
      await kit.clock.advanceAsync(code === "FD_LIMIT" ? 31_000 : 250, 250);
      expect(kit.health.raised.size).toBe(0);
      engine.get("during");
      await put(kit, "after");
      expect(["during", "after"].map((name) => kit.ssdHolds(name))).toEqual([true, true]);
    });
  }

  it("repeated reads without a file descriptor are not a fault of the drive", {
    slots: 16,
  }, async (t) => {
    const { kit, faults } = t;
    await put(kit, ...names(8));
    kit.leaveRam();
    const engine = kit.engine();
    faults("load.open:1+:EMFILE");
    for (const name of names(5)) expect(await engine.load(name)).toEqual(["miss"]);
    await kit.clock.advanceAsync(500, 250);
    expect(kit.ssd.snapshot().readsStopped).toBe("no_descriptors");
    expect([...kit.health.raised]).toEqual(["FD_LIMIT"]);
  });

  it("a folder that was replaced is neither written nor tried, and promises nothing", {
    slots: 32,
  }, async ({ kit }) => {
    const engine = kit.engine();
    await put(kit, "before");
    kit.ssd.setReplaced("/ssd is another folder, made later");
    await kit.clock.advanceAsync(60_000, 250);
    expect([...kit.health.raised]).toEqual(["KV_SSD_REPLACED"]);
    expect(kit.ssd.snapshot().writesStopped).toBe("replaced");
    expect(await engine.put("during")).toEqual(["ok"]);
    await kit.settled();
    expect(kit.ssdHolds("during")).toBe(false);
    expect(await kit.ssd.makeDurable()).toBe(false);
    // The descriptor still refers to the former folder, whose files are read and verified.
    kit.leaveRam();
    expect(await engine.load("before")).toEqual(["ok"]);
    kit.ssd.setReplaced(null);
    await kit.clock.advanceAsync(250);
    expect(kit.health.raised.size).toBe(0);
    await put(kit, "after");
    expect(kit.ssdHolds("after")).toBe(true);
    expect(await kit.ssd.makeDurable()).toBe(true);
  });

  it("failed trials are repeated at growing intervals", {}, async ({ kit, host, faults }) => {
    faults("store.write:1+:ENOSPC");
    await put(kit, "a");
    const trials: number[] = [];
    for (let i = 0; i < 5; i++) {
      const startMs = kit.clock.monotonicMs();
      faults("store.write:1+:ENOSPC");
      await kit.until(() => (faultCounts(host.native)["store.write"] ?? 0) > 0, "a trial");
      trials.push(kit.clock.monotonicMs() - startMs);
    }
    expect(trials[4]!).toBeGreaterThan(4 * trials[0]!);
  });

  it("files that cannot be removed count as used, and stop eviction", {
    slots: 4,
    capacityBytes: 8 * 12_288,
  }, async ({ kit, faults }) => {
    for (const name of names(8)) await put(kit, name);
    faults("rename.rename:1+:EIO;remove.unlink:1+:EIO");
    for (const name of names(20, "y")) await put(kit, name);
    expect(kit.ssd.room.usedBytes).toBeLessThanOrEqual(8 * 12_288);
    // Not every block was dropped for room that did not become free.
    const kept = names(8).filter((name) => kit.ssdHolds(name));
    expect(kept.length).toBeGreaterThan(4);
    await kit.pass(60_000);
    expect(kit.logged.length).toBeLessThan(100);
    faults("");
    // Each use of a block that is not on SSD queues it again.
    const asked = kit.engine();
    const isWritten = () => {
      asked.get("y19");
      return kit.ssdHolds("y19");
    };
    await kit.until(isWritten, "room again");
  });
});

describeSsd("SSD tier: a hung disk", (it) => {
  it("raises KV_SSD_HUNG; RAM still serves, readers get a miss, writes are cancelled", {
    slots: 16,
    depth: 4,
  }, async ({ kit, faults }) => {
    await put(kit, ...names(8));
    kit.leaveRam();
    await put(kit, "ram");
    const engine = kit.engine();
    faults("load.read:1+:freeze;store.write:1+:freeze");
    // Four reads have an I/O slot, four are waiting.
    const asked = engine.fetch(names(8), { deadlineMs: 60_000 });
    expect(await engine.put("new")).toEqual(["ok"]);
    await kit.clock.advanceAsync(5_500, 250);
    expect(kit.health.raised).toContain("KV_SSD_HUNG");
    expect(kit.ssd.readable).toBe(false);
    expect(kit.ssd.takesBlocks).toBe(false);
    expect(engine.get("ram", "new")).toEqual(["ok", "ok"]);
    expect(engine.match(["x7"])).toEqual([0, 0]);
    expect(await engine.put("newer")).toEqual(["ok"]);
    await kit.clock.advanceAsync(60_000, 1_000);
    const outcomes = (await asked).map(({ outcome }) => outcome).toSorted();
    expect(outcomes.filter((outcome) => outcome === "miss").length).toBeGreaterThanOrEqual(4);
    expect(new Set(outcomes)).toEqual(new Set(["late", "miss"]));
    faults("");
    await kit.settled();
    await kit.clock.advanceAsync(500, 250);
    expect(kit.health.raised).not.toContain("KV_SSD_HUNG");
    expect(kit.health.times.get("KV_SSD_HUNG")).toBe(1);
    expect(await engine.load(...names(8), "newer")).toEqual(Array(9).fill("ok"));
    await put(kit, "after");
    expect(kit.ssdHolds("after")).toBe(true);
  });

  it("is not indicated by a long sync", {}, async ({ kit, faults }) => {
    await put(kit, "a");
    kit.leaveRam();
    faults("sync.sync:1:freeze");
    const persisted = kit.ssd.persist();
    await kit.until(() => kit.disk.inFlight === 1, "the sync");
    await kit.clock.advanceAsync(20_000, 250);
    expect(kit.health.raised.size).toBe(0);
    expect(await kit.engine().load("a")).toEqual(["ok"]);
    expect(await kit.engine().put("b")).toEqual(["ok"]);
    await kit.until(() => kit.ssdHolds("b"), "the write");
    faults("");
    expect((await persisted).durable).toBe(true);
  });

  it("makes waits for a sync report that durability is unknown", {}, async ({ kit, faults }) => {
    await put(kit, "a");
    kit.leaveRam();
    faults("sync.sync:1+:freeze;load.read:1+:freeze");
    const synced = [kit.ssd.makeDurable(), kit.ssd.makeDurable()];
    const persisted = kit.ssd.persist();
    const asked = kit.engine().fetch(["a"], { deadlineMs: 1_000 });
    await kit.clock.advanceAsync(5_500, 250);
    expect(await Promise.all(synced)).toEqual([false, false]);
    expect((await persisted).durable).toBe(false);
    // The disk counts as hung by now.
    expect(await kit.ssd.makeDurable()).toBe(false);
    faults("");
    await asked;
    await kit.settled();
    await kit.clock.advanceAsync(500, 250);
    expect(await kit.ssd.makeDurable()).toBe(true);
  });

  it("delays shutdown by a bounded time", {}, async ({ kit, faults, reopen }) => {
    await put(kit, "a");
    kit.leaveRam();
    faults("load.read:1+:freeze");
    const asked = kit.engine().fetch(["a"], { deadlineMs: 100 });
    await kit.clock.advanceAsync(100);
    expect((await asked)[0]!.outcome).toBe("late");
    const closed = kit.close();
    let isOver = false;
    void closed.then(() => {
      isOver = true;
    });
    await kit.until(() => isOver, "the stop");
    faults("");
    const next = await reopen();
    expect(await next.engine().load("a")).toEqual(["ok"]);
  });
});

describeSsd("SSD tier: a disk with fewer features", (it) => {
  it("works on a file system without O_DIRECT", {}, async ({ faults, reopen }) => {
    faults("open.probe:1:EINVAL");
    const kit = await reopen();
    faults("");
    expect(kit.disk.direct).toBe(false);
    await put(kit, "a", "b");
    kit.leaveRam();
    expect(await kit.engine().load("a", "b")).toEqual(["ok", "ok"]);
  });
});
