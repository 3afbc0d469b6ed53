import { expect, spyOn } from "bun:test";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { yieldToLoop } from "../../../src/core/index.ts";
import { nativeBuffer, type Region } from "../../../src/native/index.ts";
import { RamScrub, ReportBudget } from "../../../src/store/index.ts";
import type { SsdKit } from "./ssd-kit.ts";
import { describeSsd } from "./use-kit.ts";

const BLAME = "KV_SSD_CSUM";
const WRITE_BACK = { writePolicy: "write_back" } as const;
const SCRUB = { scrubBytesPerS: 5_000 } as const;

function flipInFile(path: string): void {
  const bytes = readFileSync(path);
  bytes[4096 + 100]! ^= 4;
  writeFileSync(path, bytes);
}

/** Stores a block and damages it in RAM. */
async function damaged(kit: SsdKit, name: string) {
  const engine = kit.engine();
  expect(await engine.put(name)).toEqual(["ok"]);
  await kit.settled();
  const [block] = engine.acquire([name]);
  engine.flip(block!);
  return { engine, block: block! };
}

const found = (kit: SsdKit) => kit.store.checks.stats.damaged;

describeSsd("a block that is damaged in RAM", (it) => {
  it("is read from SSD after a report", {}, async ({ kit }) => {
    const { engine, block } = await damaged(kit, "a");
    expect(await engine.report([block])).toEqual(["corrupt"]);
    expect(kit.store.slots.quarantinedSlots).toBe(0);
    expect(await engine.load("a")).toEqual(["ok"]);
    expect(found(kit)).toMatchObject({ report: 1 });
    expect(kit.health.raised).not.toContain(BLAME);
  });

  it("is a miss without a file, and can be stored again", WRITE_BACK, async ({ kit }) => {
    const { engine, block } = await damaged(kit, "a");
    expect(await engine.report([block])).toEqual(["corrupt"]);
    expect(await engine.load("a")).toEqual(["miss"]);
    expect(await engine.put("a")).toEqual(["ok"]);
    expect(engine.get("a")).toEqual(["ok"]);
  });

  it("keeps its slot while others read it", WRITE_BACK, async ({ kit }) => {
    const { engine, block } = await damaged(kit, "a");
    const other = kit.engine();
    const [read] = other.acquire(["a"]);
    expect(await engine.report([block])).toEqual(["corrupt"]);
    expect(kit.store.slots.quarantinedSlots).toBe(1);
    expect(await engine.put("a", "b", "c")).toEqual(["ok", "ok", "ok"]);
    expect(engine.acquire(["a"])[0]!.offset).not.toBe(read!.offset);
    // Its reader gets the same verdict, though the block has been stored again.
    expect(await other.report([read!])).toEqual(["corrupt"]);
    expect(kit.store.slots.quarantinedSlots).toBe(0);
    expect(found(kit)).toMatchObject({ report: 1 });
    engine.die();
  });

  it("keeps its slot while the process of a dead connection lives", WRITE_BACK, async ({ kit }) => {
    const { engine, block } = await damaged(kit, "a");
    const other = kit.engine();
    other.acquire(["a"]);
    other.abandon();
    expect(await engine.report([block])).toEqual(["corrupt"]);
    expect(kit.store.slots.quarantinedSlots).toBe(1);
    other.holder.buried();
    expect(kit.store.slots.quarantinedSlots).toBe(0);
  });

  it("is never written to SSD", WRITE_BACK, async ({ kit }) => {
    const { engine, block } = await damaged(kit, "a");
    engine.release([block]);
    expect((await kit.ssd.persist()).written).toBe(0);
    await kit.settled();
    expect(kit.ssdHolds("a")).toBe(false);
    expect(existsSync(kit.dir) && kit.files()).toEqual([]);
    expect(found(kit)).toMatchObject({ write: 1 });
    expect(await engine.load("a")).toEqual(["miss"]);
  });

  it("during its wait for the disk is not written", {
    ...WRITE_BACK,
    depth: 2,
  }, async ({ kit, faults }) => {
    const engine = kit.engine();
    await engine.put("a", "b");
    const [block] = engine.acquire(["b"]);
    // One of the two I/O slots is for writes.
    faults("store.write:1:freeze");
    const persisted = kit.ssd.persist();
    await kit.until(() => kit.disk.inFlight > 0, "the write of the other block");
    for (let turn = 0; turn < 50; turn++) await yieldToLoop();
    engine.flip(block!);
    engine.release([block!]);
    faults("");
    expect((await persisted).written).toBe(1);
    await kit.settled();
    expect(kit.ssdHolds("a")).toBe(true);
    expect(kit.ssdHolds("b")).toBe(false);
    expect(found(kit)).toMatchObject({ write: 1 });
  });

  it("during its write leaves no file", WRITE_BACK, async ({ kit, faults }) => {
    const engine = kit.engine();
    await engine.put("a");
    const [block] = engine.acquire(["a"]);
    faults("store.write:1:freeze");
    const persisted = kit.ssd.persist();
    await kit.until(() => kit.disk.inFlight > 0, "the write");
    engine.flip(block!);
    expect(await engine.report([block!])).toEqual(["corrupt"]);
    expect(kit.store.slots.quarantinedSlots).toBe(1);
    faults("");
    await persisted;
    await kit.settled();
    expect(kit.ssdHolds("a")).toBe(false);
    expect(kit.store.slots.quarantinedSlots).toBe(0);
    expect(kit.health.raised).not.toContain(BLAME);
  });

  it("whose file is damaged too is not a fault of the drive", SCRUB, async ({ kit }) => {
    const { engine, block } = await damaged(kit, "a");
    engine.release([block]);
    flipInFile(kit.fileOf("a"));
    await kit.until(() => kit.store.ssdStats.ramDamagedFiles === 1, "the scrub");
    await kit.settled();
    expect(found(kit)).toMatchObject({ file: 1 });
    expect(kit.health.raised).not.toContain(BLAME);
    expect(kit.store.ssdStats.corruptBlocks).toBe(0);
    expect(await engine.load("a")).toEqual(["miss"]);
    expect(await engine.put("a")).toEqual(["ok"]);
  });

  it("and was written and then reported is not a fault of the drive", {}, async ({ kit }) => {
    const { engine, block } = await damaged(kit, "a");
    flipInFile(kit.fileOf("a"));
    expect(await engine.report([block])).toEqual(["corrupt"]);
    expect(await engine.load("a")).toEqual(["miss"]);
    await kit.settled();
    expect(kit.health.raised).not.toContain(BLAME);
    expect(kit.store.ssdStats).toMatchObject({ ramDamagedFiles: 1, corruptBlocks: 0 });
  });

  it("is a fault of the drive if only its file is damaged", SCRUB, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    flipInFile(kit.fileOf("a"));
    await kit.until(() => kit.store.ssdStats.corruptBlocks === 1, "the scrub");
    expect(kit.health.raised).toContain(BLAME);
    expect(kit.store.checks.damagedBlocks).toBe(0);
    expect(engine.get("a")).toEqual(["ok"]);
  });

  it("is found by the RAM scrub at its configured rate", {}, async ({ kit }) => {
    const { engine, block } = await damaged(kit, "a");
    engine.release([block]);
    await using scrub = new RamScrub(kit.store);
    scrub.setRate(50_000);
    await kit.until(() => found(kit).scrub === 1, "the scrub of RAM");
    expect(await engine.load("a")).toEqual(["ok"]);
    const { scrubbedBlocks, scrubbedBytes } = kit.store.checks.stats;
    expect(scrubbedBlocks).toBeGreaterThan(0);
    expect(scrubbedBytes).toBe(scrubbedBlocks * block.bytes);
  });

  it("uses up the budget of a connection that reports correct blocks", {}, async ({ kit }) => {
    const { engine, block } = await damaged(kit, "a");
    engine.release([block]);
    const { checks, clock } = kit.store;
    const budget = new ReportBudget(clock);
    expect(budget.take(2 ** 30)).toBe(true);
    expect(await checks.report(kit.nodeOf("a"), block, budget)).toBe("gone");
    expect(checks.stats).toMatchObject({ skippedReports: 1, falseReports: 0 });
    // 768 MiB above the burst, at 16 MiB per second.
    await kit.clock.advanceAsync(49_000, 7_000);
    expect(await checks.report(kit.nodeOf("a"), block, budget)).toBe("damaged");
    expect(budget.take(1)).toBe(true);
  });
});

/** Makes one bit of memory stick in every read that covers the byte. */
function stick(kit: SsdKit, isBad: (region: Region, at: number) => boolean): void {
  const load = kit.disk.load.bind(kit.disk);
  const byte = nativeBuffer(1);
  spyOn(kit.disk, "load").mockImplementation(async (transfer) => {
    const loaded = await load(transfer);
    const { region, offset, bytes } = transfer;
    if (!loaded.ok || !isBad(region, offset)) return loaded;
    region.copyOut(offset + 100, byte, 1, false);
    byte.bytes[0]! ^= 4;
    region.copyIn(offset + 100, byte, 1, false);
    return { ...loaded, checksum: region.checksum(offset, bytes) };
  });
}

describeSsd("memory that corrupts data read into it", (it) => {
  /** Stores a block on SSD only; a read would use its former slot. */
  async function onSsd(kit: SsdKit): Promise<{ offset: number; slot: number }> {
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    const [block] = engine.acquire(["a"]);
    engine.release([block!]);
    const slot = kit.store.table.slotOf(kit.nodeOf("a"));
    kit.store.ram.drop(kit.nodeOf("a"));
    return { offset: block!.offset, slot };
  }

  it("costs one miss, is not reused, and is not a fault of the drive", {}, async (t) => {
    const { kit } = t;
    const { offset: bad, slot } = await onSsd(kit);
    stick(kit, (region, at) => region === kit.store.region && at === bad);
    const damage: object[] = [];
    kit.store.checks.onDamage = (one) => void damage.push(one);
    const engine = kit.engine();
    expect(await engine.load("a")).toEqual(["miss"]);
    expect(await engine.load("a")).toEqual(["ok"]);
    expect(damage).toMatchObject([{ found: "read", count: 1, offset: bad }]);
    expect(kit.store.slots.quarantinedSlots).toBe(1);
    expect(kit.health.raised).not.toContain(BLAME);
    expect(kit.store.ssdStats).toMatchObject({ corruptBlocks: 0, ramDamagedFiles: 0 });
    expect(kit.files()).toHaveLength(1);
    kit.store.slots.bury(slot);
  });

  it("in the scrub's buffer condemns no file", SCRUB, async ({ kit }) => {
    await onSsd(kit);
    let bad: Region | null = null;
    stick(kit, (region) => {
      bad ??= region;
      return region === bad;
    });
    await kit.until(() => found(kit).read === 1, "the scrub");
    const { scrubbedBlocks } = kit.store.ssdStats;
    await kit.until(() => kit.store.ssdStats.scrubbedBlocks > scrubbedBlocks, "another round");
    expect(kit.health.raised).not.toContain(BLAME);
    expect(found(kit).read).toBe(1);
    expect(kit.ssdHolds("a")).toBe(true);
  });

  it("once is not damage: the block is served", {}, async ({ kit }) => {
    await onSsd(kit);
    let reads = 0;
    stick(kit, () => reads++ === 0);
    expect(await kit.engine().load("a")).toEqual(["ok"]);
    expect(reads).toBe(3);
    expect(kit.store.checks.damagedBlocks).toBe(0);
    expect(kit.store.slots.quarantinedSlots).toBe(0);
    expect(kit.health.raised).not.toContain(BLAME);
  });
});
