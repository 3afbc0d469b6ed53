import { expect } from "bun:test";
import {
  copyFileSync,
  existsSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { NativeError, STATUS } from "../../../src/native/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { faultCounts } from "../../support/index.ts";
import type { SsdKit } from "./ssd-kit.ts";
import { describeSsd } from "./use-kit.ts";

function patch(path: string, change: (bytes: Uint8Array) => void): void {
  const bytes = readFileSync(path);
  change(bytes);
  writeFileSync(path, bytes);
}

/** Kinds of damage to the file of block "a"; "b" is a valid file of the same length. */
const DAMAGE: Record<string, (kit: SsdKit) => void> = {
  "a flipped bit in the payload": (kit) =>
    patch(kit.fileOf("a"), (bytes) => {
      bytes[4096 + 2_500]! ^= 4;
    }),
  "a flipped bit in the header": (kit) =>
    patch(kit.fileOf("a"), (bytes) => {
      bytes[20]! ^= 1;
    }),
  "a header of zeros": (kit) => patch(kit.fileOf("a"), (bytes) => bytes.fill(0, 0, 4096)),
  "a page of zeros": (kit) => patch(kit.fileOf("a"), (bytes) => bytes.fill(0, 4096, 8192)),
  "the file of another block": (kit) => copyFileSync(kit.fileOf("b"), kit.fileOf("a")),
  "cut short": (kit) => truncateSync(kit.fileOf("a"), 4096 + 100),
  empty: (kit) => truncateSync(kit.fileOf("a"), 0),
};

const quarantined = (kit: SsdKit) =>
  existsSync(join(kit.dir, "quarantine")) ? readdirSync(join(kit.dir, "quarantine")) : [];

describeSsd("SSD tier: a damaged file", (it) => {
  for (const [kind, damage] of Object.entries(DAMAGE)) {
    it(`${kind}: is never served`, {}, async ({ kit, host, faults, reopen }) => {
      const engine = kit.engine();
      await engine.put("a", "b");
      await kit.settled();
      kit.leaveRam();
      damage(kit);
      faults("count");
      expect(await engine.load("a", "b")).toEqual(["miss", "ok"]);
      await kit.settled();
      // One more read before the file counts as damaged; and the read of "b".
      expect(faultCounts(host.native)["load.open"]).toBe(3);
      expect(kit.store.ssdStats.corruptBlocks).toBe(1);
      expect(kit.health.raised).toContain("KV_SSD_CSUM");
      expect(kit.logged.some((line) => line.startsWith("error damaged block on SSD"))).toBe(true);
      expect(existsSync(kit.fileOf("a"))).toBe(false);
      expect(quarantined(kit)).toHaveLength(1);
      expect(engine.match(["a"])).toEqual([0, 0]);
      // The block can be written and served again, and the damaged file is kept for inspection.
      expect(await engine.put("a")).toEqual(["ok"]);
      await kit.settled();
      const next = await reopen();
      expect(await next.engine().load("a", "b")).toEqual(["ok", "ok"]);
      expect(next.ssd.room.quarantinedFiles).toBe(1);
      expect(next.ssd.room.usedBytes).toBeGreaterThanOrEqual(next.allocatedBytes());
    });
  }

  it("that was wrong only once, during the read, is read again and served", {}, async ({
    kit,
    faults,
  }) => {
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    kit.leaveRam();
    faults("load.read:1:flip");
    expect(await engine.load("a")).toEqual(["ok"]);
    expect(kit.store.ssdStats.corruptBlocks).toBe(0);
    expect(quarantined(kit)).toEqual([]);
  });

  it("of a stale generation, undamaged, is dropped without an alarm", {}, async ({ kit }) => {
    const engine = kit.engine();
    const [other] = engine.reserve("a");
    kit.store.region.fill(other!.offset, other!.bytes, 99n);
    expect(await engine.commit([other!])).toEqual(["ok"]);
    await kit.settled();
    copyFileSync(kit.fileOf("a"), join(kit.dir, "kept"));
    kit.leaveRam();
    await kit.ssd.room.drop(kit.nodeOf("a"));
    await engine.put("a");
    await kit.settled();
    kit.leaveRam();
    copyFileSync(join(kit.dir, "kept"), kit.fileOf("a"));
    expect(await engine.load("a")).toEqual(["miss"]);
    await kit.settled();
    expect(kit.store.ssdStats.corruptBlocks).toBe(0);
    expect(kit.health.raised.size).toBe(0);
    expect(kit.logged.filter((line) => line.includes("generation"))).toHaveLength(1);
    expect(quarantined(kit)).toEqual([]);
    expect(existsSync(kit.fileOf("a"))).toBe(false);
    expect(kit.ssdHolds("a")).toBe(false);
  });

  it("that is missing is a miss, and no damage", {}, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    kit.leaveRam();
    rmSync(kit.fileOf("a"));
    expect(await engine.load("a")).toEqual(["miss"]);
    expect(kit.store.ssdStats.corruptBlocks).toBe(0);
    expect(await engine.put("a")).toEqual(["ok"]);
  });

  it("that cannot be moved to quarantine is removed, and frees its space", {}, async ({
    kit,
    faults,
  }) => {
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    kit.leaveRam();
    DAMAGE["a page of zeros"]!(kit);
    faults("rename.*:1+:EIO");
    expect(await engine.load("a")).toEqual(["miss"]);
    await kit.settled();
    expect(kit.files()).toEqual([]);
    expect(kit.ssd.room.usedBytes).toBe(0);
    expect(kit.ssd.room.quarantinedFiles).toBe(0);
  });

  it("raises KV_SSD_CSUM for an hour after the last one", {}, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    kit.leaveRam();
    DAMAGE.empty!(kit);
    expect(await engine.load("a")).toEqual(["miss"]);
    await kit.clock.advanceAsync(3_500_000, 500_000);
    expect(kit.health.raised).toContain("KV_SSD_CSUM");
    await kit.clock.advanceAsync(200_000, 100_000);
    expect(kit.health.raised).not.toContain("KV_SSD_CSUM");
  });
});

describeSsd("SSD tier: the scrub", (it) => {
  const names = Array.from({ length: 5 }, (_, i) => `x${i}`);

  it("finds damage before a reader does", { scrubBytesPerS: 5_000 }, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put(...names, "a", "b");
    await kit.settled();
    kit.leaveRam();
    DAMAGE["a flipped bit in the payload"]!(kit);
    await kit.until(() => kit.store.ssdStats.corruptBlocks === 1, "the scrub");
    await kit.settled();
    expect(quarantined(kit)).toHaveLength(1);
    expect(kit.health.raised).toContain("KV_SSD_CSUM");
    expect(engine.match(["a"])).toEqual([0, 0]);
    expect(kit.store.snapshot().ramBlocks).toBe(0);
    expect(await engine.load(...names)).toEqual(Array(5).fill("ok"));
  });

  it("finds medium errors", { scrubBytesPerS: 50_000 }, async (t) => {
    const { kit, faults } = t;
    await kit.engine().put(...names, "a", "b");
    await kit.settled();
    kit.leaveRam();
    faults([1, 2, 3, 4, 5, 6].map((n) => `load.read:${n}:EIO`).join(";"));
    await kit.until(() => kit.files().length === 1, "the scrub");
    expect(kit.store.ssdStats.readErrors).toBe(6);
    // Decayed blocks one after another do not affect the disk as a whole.
    expect(kit.ssd.readable).toBe(true);
    expect(kit.store.table.residentBlocks(Tier.ssd)).toBe(1);
    expect(quarantined(kit)).toEqual([]);
  });

  it("keeps within its rate, in rounds", { scrubBytesPerS: 2_500 }, async ({ kit }) => {
    await kit.engine().put(...names);
    await kit.settled();
    const { ssdStats } = kit.store;
    const startMs = kit.clock.monotonicMs();
    await kit.until(() => ssdStats.scrubbedBlocks >= 12, "two rounds");
    const seconds = (kit.clock.monotonicMs() - startMs) / 1_000;
    // One block above the rate: the first one is read immediately.
    expect(ssdStats.scrubbedBytes).toBeLessThanOrEqual(2_500 * seconds + 5_000);
  });

  it("is off at a rate of 0, and resumes when the rate is raised", {}, async ({ kit }) => {
    await kit.engine().put(...names);
    await kit.settled();
    await kit.pass(20_000);
    expect(kit.store.ssdStats.scrubbedBlocks).toBe(0);
    kit.ssd.configure({ ttlMs: null, writePolicy: "write_through", scrubBytesPerS: 5_000 });
    await kit.until(() => kit.store.ssdStats.scrubbedBlocks > 0);
  });

  it("ignores a block that is removed during its read", { scrubBytesPerS: 5_000 }, async (t) => {
    const { kit, faults } = t;
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    kit.leaveRam();
    faults("load.read:1:freeze");
    await kit.until(() => kit.disk.inFlight === 1, "the scrub at work");
    kit.ssd.room.drop(kit.nodeOf("a"));
    faults("");
    await kit.settled();
    await kit.until(() => kit.disk.inFlight === 0);
    expect(kit.store.ssdStats.corruptBlocks).toBe(0);
    expect(kit.files()).toEqual([]);
  });

  it("waits if the host has no memory for it", {}, async ({ host, reopen }) => {
    let isShort = false;
    const native = new Proxy(host.native, {
      get(target, name) {
        const value = Reflect.get(target, name, target);
        if (name !== "exchange") return typeof value === "function" ? value.bind(target) : value;
        return (...words: Parameters<typeof target.exchange>) => {
          const isOfScrub = isShort && (words[1][1] as { bytes?: bigint }).bytes === 8_192n;
          if (isOfScrub) throw new NativeError(words[0], STATUS.no_memory, 12);
          return target.exchange(...words);
        };
      },
    });
    const kit = await reopen({ native, scrubBytesPerS: 20_000 });
    // The tier has allocated its own memory before.
    isShort = true;
    await kit.engine().put("a");
    await kit.settled();
    await kit.pass(5_000);
    expect(kit.store.ssdStats.scrubbedBlocks).toBe(0);
    isShort = false;
    await kit.until(() => kit.store.ssdStats.scrubbedBlocks > 0, "the scrub");
  });

  it("leaves the trial reads of a broken disk to readers", {
    scrubBytesPerS: 5_000,
  }, async (t) => {
    const { kit, faults } = t;
    const engine = kit.engine();
    await engine.put(...names, "y0", "y1", "y2");
    await kit.settled();
    kit.leaveRam();
    faults("load.open:1+:EIO");
    for (const name of [...names, "y0"]) await engine.load(name);
    expect(kit.ssd.snapshot().readsStopped).toBe("io_error");
    faults("");
    await kit.pass(20_000);
    expect(await engine.load("y1")).toEqual(["ok"]);
    expect(kit.ssd.snapshot().readsStopped).toBeNull();
  });
});
