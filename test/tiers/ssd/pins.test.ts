import { expect } from "bun:test";
import { existsSync } from "node:fs";
import { Tier } from "../../../src/blocks/index.ts";
import { LAYER_ALL, NO_NODE } from "../../../src/core/index.ts";
import { purgeBlocks } from "../../../src/tiers/index.ts";
import { type BlockName, batchOf, chain, digestOf } from "../names.ts";
import { FILE_BYTES, type SsdKit } from "./ssd-kit.ts";
import { describeSsd } from "./use-kit.ts";

const WRITE_POLICIES = ["write_through", "write_through_selective", "write_back"] as const;
const RAM = 2;
const SSD = 4;
const names = (count: number, prefix = "x") => Array.from({ length: count }, (_, i) => prefix + i);

/** Pins blocks for as long as the scope lasts. */
function pin(kit: SsdKit, ...blocks: BlockName[]): Disposable {
  const nodes = blocks.map((name) => kit.nodeOf(name));
  for (const node of nodes) expect(kit.store.table.pin(node)).toBe(true);
  return {
    [Symbol.dispose]: () => {
      for (const node of nodes) kit.store.table.unpin(node);
    },
  };
}

/** Stores so many blocks that nobody asks for again, one request each. */
async function flood(kit: SsdKit, count: number, prefix = "flood"): Promise<void> {
  const engine = kit.engine();
  for (const name of names(count, prefix)) {
    for (let outcome = "full"; outcome === "full"; ) {
      [outcome] = (await engine.put(name)) as [string];
      if (outcome === "full") await kit.settled();
    }
  }
  await kit.settled();
  await kit.pass(250);
  await kit.settled();
}

/** Reads blocks, each as soon as what has to leave for it is written. */
async function load(kit: SsdKit, ...blocks: BlockName[]): Promise<string[]> {
  const engine = kit.engine();
  const read: string[] = [];
  for (const name of blocks) {
    await kit.settled();
    const [first] = await engine.load(name);
    await kit.settled();
    read.push(first === "full" ? (await engine.load(name))[0]! : first!);
  }
  return read;
}

function tiersOf(kit: SsdKit, name: BlockName): number {
  const node = kit.nodeOf(name);
  return node === NO_NODE ? 0 : kit.store.table.residencyOf(node) & (RAM | SSD);
}

describeSsd("PIN behavior with tier transitions", (it) => {
  it("GPU to RAM to SSD to RAM: a pinned block is there byte for byte", {
    slots: 4,
    capacityBytes: 8 * FILE_BYTES,
    writePolicy: "write_back",
  }, async ({ kit }) => {
    const engine = kit.engine();
    engine.gpuStored("a");
    await engine.put("a");
    using _pin = pin(kit, "a");
    engine.gpuEvicted("a");
    expect(engine.match(["a"])).toEqual([1, RAM]);
    await flood(kit, 12);
    expect(engine.match(["a"])).toEqual([1, SSD]);
    expect(await load(kit, "a")).toEqual(["ok"]);
    expect(engine.match(["a"])).toEqual([1, RAM]);
    await flood(kit, 12, "again");
    expect(engine.match(["a"])).toEqual([1, SSD]);
    expect(await load(kit, "a")).toEqual(["ok"]);
  });

  for (const writePolicy of WRITE_POLICIES) {
    it(`${writePolicy}: a pinned path stays under a flood of three times all tiers`, {
      slots: 8,
      capacityBytes: 16 * FILE_BYTES,
      writePolicy,
    }, async ({ kit }) => {
      const engine = kit.engine();
      const path = chain("a/b/c/d");
      await engine.put(...path);
      await engine.put("a/other", "unpinned");
      // The last block alone: what leads to it is of no use without it, nor it without that.
      using _pin = pin(kit, "a/b/c/d");
      // One tick is enough for the copies.
      await flood(kit, 4, "first");
      await flood(kit, 3 * 24);
      expect(path.map((name) => tiersOf(kit, name))).toEqual([SSD, SSD, SSD, SSD]);
      expect(tiersOf(kit, "a/other")).toBe(0);
      expect(tiersOf(kit, "unpinned")).toBe(0);
      expect(await load(kit, ...path)).toEqual(["ok", "ok", "ok", "ok"]);
      expect(kit.store.table.keptBytes).toBe(4 * 5_000);
      expect(kit.allocatedBytes()).toBeLessThanOrEqual(16 * FILE_BYTES);
    });
  }

  it("an order that learns gives up no pinned block either", {
    slots: 8,
    capacityBytes: 16 * FILE_BYTES,
    policy: "hearth",
  }, async ({ kit }) => {
    await kit.engine().put(...chain("a/b/c"));
    using _pin = pin(kit, "a/b/c");
    for (let round = 0; round < 4; round++) {
      await flood(kit, 3 * 24, `round${round}.`);
      expect(await load(kit, ...chain("a/b/c"))).toEqual(["ok", "ok", "ok"]);
    }
  });

  it("a pinned block gets its copy in the background, whatever the policy", {
    writePolicy: "write_back",
  }, async ({ kit }) => {
    await kit.engine().put(...chain("a/b"), "c");
    using _pin = pin(kit, "a/b");
    expect(kit.store.table.keptInRamAloneBytes).toBe(2 * 5_000);
    await kit.until(() => kit.ssdHolds("a") && kit.ssdHolds("a/b"), "copies");
    expect([kit.ssdHolds("a"), kit.ssdHolds("a/b"), kit.ssdHolds("c")]).toEqual([
      true,
      true,
      false,
    ]);
    expect(kit.store.table.keptInRamAloneBytes).toBe(0);
    // It may leave RAM now, and nothing else than a pin keeps it on SSD.
    expect(kit.store.table.isProtected(kit.nodeOf("a"), Tier.ram)).toBe(false);
    expect(kit.store.table.isProtected(kit.nodeOf("a"), Tier.ssd)).toBe(true);
    expect(kit.store.table.isKept(kit.nodeOf("c"))).toBe(false);
  });

  it("what is stored behind the pin of a block not there yet is written when it comes", {
    writePolicy: "write_back",
  }, async ({ kit }) => {
    const engine = kit.engine();
    engine.gpuStored("a");
    using _pin = pin(kit, "a");
    await engine.put("a");
    await kit.settled();
    expect(kit.ssdHolds("a")).toBe(true);
    engine.gpuEvicted("a");
  });

  it("pinning what is only on SSD keeps it there", {
    slots: 4,
    capacityBytes: 8 * FILE_BYTES,
  }, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    kit.leaveRam();
    using _pin = pin(kit, "a");
    await flood(kit, 36);
    expect(tiersOf(kit, "a")).toBe(SSD);
    expect(await load(kit, "a")).toEqual(["ok"]);
  });

  it("an unpinned block goes like any other", {
    slots: 4,
    capacityBytes: 8 * FILE_BYTES,
  }, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a");
    const pinned = pin(kit, "a");
    await flood(kit, 36);
    expect(tiersOf(kit, "a")).toBe(SSD);
    pinned[Symbol.dispose]();
    await flood(kit, 36, "more");
    expect(engine.get("a")).toEqual(["miss"]);
    const departure = kit.store.departures.find(keyOf(kit, "a"), 0);
    expect(departure).toMatchObject({ reason: "evicted", tier: "ssd", by: null });
  });

  it("nobody's time to live ends a pin", { ttlMs: 60_000 }, async ({ kit }) => {
    await kit.engine().put("a", "b");
    await kit.settled();
    kit.leaveRam();
    using _pin = pin(kit, "a");
    await kit.pass(61_500);
    expect([tiersOf(kit, "a"), tiersOf(kit, "b")]).toEqual([SSD, 0]);
    expect(kit.store.departures.find(keyOf(kit, "b"), 0)).toMatchObject({ reason: "expired" });
  });

  it("a transient block that is pinned stays in RAM and is never written", {
    slots: 4,
  }, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put({ name: "a", transient: true });
    using _pin = pin(kit, "a");
    expect(await kit.ssd.secure([kit.nodeOf("a")])).toEqual([false]);
    await kit.pass(1_000);
    await flood(kit, 12);
    expect(tiersOf(kit, "a")).toBe(RAM);
    expect(existsSync(kit.fileOf("a"))).toBe(false);
    expect(engine.get("a")).toEqual(["ok"]);
  });

  it("a purge leaves what is pinned, and what leads to it", {}, async ({ kit }) => {
    await kit.engine().put(...chain("a/b"));
    await kit.settled();
    const address = (name: BlockName) => ({ digest: digestOf(name), layer: LAYER_ALL });
    const pinned = pin(kit, "a/b");
    kit.leaveRam();
    expect(await purgeBlocks(kit.store, ["a/b", "a"].map(address))).toEqual(["held", "held"]);
    pinned[Symbol.dispose]();
    const cause = { reason: "pruned", by: "operator/7" } as const;
    expect(await purgeBlocks(kit.store, ["a/b", "a"].map(address), cause)).toEqual([
      "done",
      "done",
    ]);
    expect(kit.store.departures.find(keyOf(kit, "a"), 0)).toMatchObject(cause);
  });
});

describeSsd("pinned blocks and a disk that fails", (it) => {
  for (const fault of ["EIO", "ENOSPC"]) {
    it(`${fault}: they stay in RAM, and get their copies when the disk is well`, {
      slots: 4,
      writePolicy: "write_back",
    }, async ({ kit, faults }) => {
      const engine = kit.engine();
      faults(`store.write:1+:${fault}`);
      await engine.put(...chain("a/b"));
      using _pin = pin(kit, "a/b");
      expect(await kit.ssd.secure(chain("a/b").map((name) => kit.nodeOf(name)))).not.toContain(
        true,
      );
      await flood(kit, 12);
      expect(chain("a/b").map((name) => tiersOf(kit, name))).toEqual([RAM, RAM]);
      faults("");
      await kit.until(() => kit.ssdHolds("a") && kit.ssdHolds("a/b"), "copies");
      await flood(kit, 12, "more");
      expect(chain("a/b").map((name) => tiersOf(kit, name))).toEqual([SSD, SSD]);
      expect(await load(kit, ...chain("a/b"))).toEqual(["ok", "ok"]);
    });
  }

  it("a disk that hangs is not waited for, and room comes from pins at last", {
    slots: 4,
    depth: 1,
    writePolicy: "write_back",
  }, async ({ kit, faults }) => {
    const engine = kit.engine();
    const [table, blocks] = [kit.store.table, names(4, "p")];
    await engine.put(...blocks);
    faults("store.write:1+:freeze");
    const pinned = blocks.map((name) => kit.nodeOf(name));
    for (const node of pinned) table.pin(node);
    const secured = kit.ssd.secure(pinned.slice(0, 1));
    await kit.clock.advanceAsync(6_000, 250);
    expect(await secured).toEqual([false]);
    const asked: string[] = [];
    kit.store.setRelief((tier, why, level) => {
      asked.push(`${tier} ${level}`);
      expect(why).toContain("4 blocks in RAM are held");
      if (level === "soft") return false;
      // The second: the first is the kernel's as long as the disk hangs.
      table.unpin(pinned.splice(1, 1)[0]!);
      return true;
    });
    expect(await engine.put("new")).toEqual(["ok"]);
    expect(asked).toEqual(["ram soft", "ram hard"]);
    expect(tiersOf(kit, "p1")).toBe(0);
    faults("");
    await kit.until(() => blocks.every((name) => name === "p1" || kit.ssdHolds(name)), "copies");
    for (const node of pinned) table.unpin(node);
  });

  it("more pins than RAM and SSD hold: admission stays possible", {
    slots: 4,
    capacityBytes: 3 * FILE_BYTES,
    writePolicy: "write_back",
  }, async ({ kit }) => {
    const engine = kit.engine();
    const { table } = kit.store;
    const pinned = new Map<BlockName, number>();
    const ended: BlockName[] = [];
    kit.store.setRelief((tier, why, level) => {
      if (level === "soft") return false;
      expect(tier).toBe("ram");
      expect(why).toContain("4 blocks in RAM are held");
      // As a book of holds does: of those that only RAM has.
      for (const [name, node] of pinned) {
        if (kit.ssdHolds(name)) continue;
        pinned.delete(name);
        ended.push(name);
        table.unpin(node as never);
        return true;
      }
      return false;
    });
    for (const name of names(12, "p")) {
      let [outcome] = await engine.put(name);
      for (let tries = 0; outcome === "full" && tries < 3; tries++) {
        await kit.settled();
        [outcome] = await engine.put(name);
      }
      expect(outcome).toBe("ok");
      pinned.set(name, kit.nodeOf(name));
      table.pin(kit.nodeOf(name));
    }
    expect(pinned.size).toBe(7);
    expect(ended).toEqual(["p3", "p4", "p5", "p6", "p7"]);
    expect(table.keptBytes).toBe(7 * 5_000);
    expect([...pinned.keys()].every((name) => tiersOf(kit, name) !== 0)).toBe(true);
    for (const node of pinned.values()) table.unpin(node as never);
  });

  it("a copy that rots away is made anew as long as RAM has the block", {}, async ({ kit }) => {
    await kit.engine().put("a");
    using _pin = pin(kit, "a");
    await kit.settled();
    await kit.ssd.room.quarantine(kit.nodeOf("a"));
    expect(kit.store.table.isProtected(kit.nodeOf("a"), Tier.ram)).toBe(true);
    await kit.until(() => kit.ssdHolds("a"), "a copy");
    kit.leaveRam();
    expect(await kit.engine().load("a")).toEqual(["ok"]);
  });

  it("an SSD full of pins: other blocks live in RAM, soft pins make room", {
    slots: 4,
    capacityBytes: 3 * FILE_BYTES,
  }, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a", "b", "c");
    using _pin = pin(kit, "a", "b");
    const [table, soft] = [kit.store.table, kit.nodeOf("c")];
    table.pin(soft);
    await kit.settled();
    const asked: string[] = [];
    let isThere = false;
    kit.store.setRelief((tier, why, level) => {
      asked.push(`${tier} ${level}`);
      expect(why).toContain(`${3 * FILE_BYTES} of ${3 * FILE_BYTES} bytes`);
      if (!isThere) return false;
      isThere = false;
      table.unpin(soft);
      return true;
    });
    // Nobody holds anything softly: blocks come and go in RAM.
    await flood(kit, 12);
    expect(new Set(asked)).toEqual(new Set(["ssd soft"]));
    expect(["a", "b", "c"].map((name) => kit.ssdHolds(name))).toEqual([true, true, true]);
    expect(kit.logged.filter((line) => line.includes("may make room"))).toHaveLength(1);
    isThere = true;
    await flood(kit, 1, "last");
    expect(["a", "b", "c"].map((name) => kit.ssdHolds(name))).toEqual([true, true, false]);
    expect(kit.ssdHolds("last0")).toBe(true);
  });
});

describeSsd("blocks that are to be safe now", (it) => {
  it("secure: on SSD when it answers, also what is there, through a queue of one", {
    writePolicy: "write_back",
    writeQueueBytes: 5_000,
    slots: 16,
  }, async ({ kit, reopen }) => {
    const blocks = names(12);
    await kit.engine().put(...blocks);
    const nodes = blocks.map((name) => kit.nodeOf(name));
    expect(await kit.ssd.secure(nodes)).toEqual(blocks.map(() => true));
    expect(await kit.ssd.secure(nodes)).toEqual(blocks.map(() => true));
    expect(kit.files()).toHaveLength(12);
    expect(await kit.ssd.makeDurable()).toBe(true);
    const next = await reopen();
    expect(await next.engine().load(...blocks)).toEqual(blocks.map(() => "ok"));
  });

  it("secure: with a pinned block comes what leads to it", {
    writePolicy: "write_back",
  }, async ({ kit }) => {
    await kit.engine().put(...chain("a/b/c"), "a/other");
    expect(await kit.ssd.secure([kit.nodeOf("a/other")])).toEqual([true]);
    expect(kit.files()).toHaveLength(1);
    using _pin = pin(kit, "a/b/c");
    expect(await kit.ssd.secure([kit.nodeOf("a/b/c")])).toEqual([true]);
    expect(chain("a/b/c").map((name) => kit.ssdHolds(name))).toEqual([true, true, true]);
  });

  it("secure: waits for the disk, not when it was told to stop", {
    writePolicy: "write_back",
  }, async ({ kit, faults }) => {
    await kit.engine().put("a", "b");
    faults("store.write:1+:freeze");
    const stop = new AbortController();
    const secured = kit.ssd.secure([kit.nodeOf("a"), kit.nodeOf("b")], stop.signal);
    await kit.clock.advanceAsync(1_000, 250);
    stop.abort();
    expect(await secured).toEqual([false, false]);
    expect(await kit.ssd.secure([kit.nodeOf("a")], stop.signal)).toEqual([false]);
    faults("");
    await kit.settled();
    expect(kit.ssdHolds("a")).toBe(true);
  });

  it("secure: a block that vanishes meanwhile is not there", {
    writePolicy: "write_back",
    writeQueueBytes: 5_000,
  }, async ({ kit, faults }) => {
    await kit.engine().put("a", "b");
    faults("store.write:1:freeze");
    const nodes = [kit.nodeOf("a"), kit.nodeOf("b")];
    const secured = kit.ssd.secure(nodes);
    kit.store.ram.drop(nodes[1]!);
    faults("");
    expect(await secured).toEqual([true, false]);
  });
});

function keyOf(kit: SsdKit, name: BlockName): Uint32Array {
  const batch = batchOf([name]);
  kit.store.deriveKeys(batch, false);
  return batch.keys.slice(0, 8);
}
