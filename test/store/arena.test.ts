import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { HearthError } from "../../src/core/index.ts";
import { loadNative, Queue } from "../../src/native/index.ts";
import { ArenaGrowth, type ArenaOptions, createArena } from "../../src/store/index.ts";
import { describeNative } from "../support/index.ts";
import { openStoreKit, PAGE } from "./store-kit.ts";

const MIB = 2 ** 20;

function options(bytes: number, more: Partial<ArenaOptions> = {}): ArenaOptions {
  return { bytes, hugePages: "off", lockMemory: "off", sliceBytes: MIB, ...more };
}

function faultOf(run: () => unknown): HearthError {
  try {
    run();
  } catch (error) {
    if (error instanceof HearthError) return error;
    throw error;
  }
  throw new Error("nothing was thrown");
}

describeNative("the arena", () => {
  test("has the requested size, rounded down to whole pages", () => {
    const arena = createArena(loadNative(), options(5 * MIB + 4095));
    expect(arena.bytes).toBe(5 * MIB);
    arena[Symbol.dispose]();
    const least = createArena(loadNative(), options(1));
    expect(least.bytes).toBe(PAGE);
    least[Symbol.dispose]();
  });

  test("refused by the kernel fails with a fix in the error", () => {
    const fault = faultOf(() => createArena(loadNative(), options(2 ** 52)));
    expect(fault.code).toBe("ARENA_UNAVAILABLE");
    expect(fault.text).toContain("lower kv.ram_gib");
  });

  test("without the required huge pages fails with a fix in the error", () => {
    const free = Number(
      /HugePages_Free:\s+(\d+)/.exec(readFileSync("/proc/meminfo", "utf8"))?.[1] ?? 0,
    );
    // More huge pages than the pool has.
    const bytes = (free + 64) * 2 * MIB;
    const huge = options(bytes, { hugePages: "require" });
    const fault = faultOf(() => createArena(loadNative(), huge));
    expect(fault.code).toBe("ARENA_UNAVAILABLE");
    expect(fault.text).toContain("vm.nr_hugepages");
  });

  describe("grows", () => {
    test("slice by slice: the first before the agent serves, the others afterwards", async () => {
      const native = loadNative();
      await using queue = new Queue(native, { entries: 16, threads: 1, watches: 1 });
      const wanted = options(3 * MIB + 2 * PAGE);
      using region = createArena(native, wanted);
      const seen: number[] = [];
      const growth = new ArenaGrowth(region, queue, wanted, (bytes) => seen.push(bytes));
      expect(region.state().populatedBytes).toBe(0);
      await growth.first();
      expect([growth.readyBytes, growth.complete, seen]).toEqual([MIB, false, [MIB]]);
      expect(region.state().populatedBytes).toBe(MIB);
      await growth.rest((short) => {
        throw short;
      });
      expect(seen).toEqual([MIB, 2 * MIB, 3 * MIB, 3 * MIB + 2 * PAGE]);
      expect([growth.complete, region.state().populatedBytes]).toEqual([true, region.bytes]);
    });

    test("until it is stopped or memory runs out, and reports the bytes reached", async () => {
      const native = loadNative();
      await using queue = new Queue(native, { entries: 16, threads: 1, watches: 1 });
      const wanted = options(4 * MIB);
      const region = createArena(native, wanted);
      const growth = new ArenaGrowth(region, queue, wanted, (bytes) => {
        // Unmap the memory, so that the next slice cannot be populated.
        if (bytes === 2 * MIB) region[Symbol.dispose]();
      });
      await growth.first();
      const shorts: HearthError[] = [];
      await growth.rest((short) => shorts.push(short));
      expect(growth.readyBytes).toBe(2 * MIB);
      expect(shorts.map(({ code }) => code)).toEqual(["ARENA_UNAVAILABLE"]);
      expect(shorts[0]!.text).toMatch(/got 2MiB of 4MiB \(stale handle, errno 0\): lower kv\.ram/);
      const none = new ArenaGrowth(region, queue, wanted, () => undefined);
      expect(none.first()).rejects.toThrow("got 0B of 4MiB");
      growth.stop();
      await growth.rest((short) => {
        throw short;
      });
    });

    test("while blocks are stored in the populated part", async () => {
      await using kit = openStoreKit({ arenaBytes: 192 * MIB, readyBytes: 64 * MIB });
      const engine = kit.engine();
      const reserved = (prefix: string) => {
        const blocks = Array.from({ length: 70 }, (_, i) => ({ name: prefix + i, bytes: MIB }));
        return engine.reserve(...blocks).filter(({ outcome }) => outcome === "ok");
      };
      const first = reserved("a");
      expect(first).toHaveLength(64);
      expect(Math.max(...first.map(({ offset }) => offset))).toBeLessThan(64 * MIB);
      kit.store.slots.addReady(64 * MIB);
      expect(reserved("b")).toHaveLength(64);
      kit.store.slots.addReady(64 * MIB);
      expect(reserved("c")).toHaveLength(64);
      expect(kit.store.arena.readyBytes()).toBe(192 * MIB);
    });
  });
});
