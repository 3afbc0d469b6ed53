import { expect } from "bun:test";
import type { NodeId } from "../../../src/core/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { type BlockName, chain } from "../names.ts";
import { flood, load, names, pin, RAM, SSD, tiersOf } from "./pin-kit.ts";
import { FILE_BYTES } from "./ssd-kit.ts";
import { describeSsd } from "./use-kit.ts";

describeSsd("pinned blocks on a failing disk", (it) => {
  for (const fault of ["EIO", "ENOSPC"]) {
    it(`${fault}: stay in RAM, and are copied when the disk works again`, {
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

  it("on a hung disk do not delay requests, and pins end for room at last", {
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
    // The block is hashed before it is written: the deadline of the write starts after that.
    expect(await kit.clock.advanceUntil(secured, 250)).toEqual([false]);
    const asked: string[] = [];
    kit.store.setPinEviction((tier, why, level) => {
      asked.push(`${tier} ${level}`);
      expect(why).toContain("4 blocks in RAM are protected");
      if (level === "soft") return false;
      // The second pin: the kernel uses the first block's slot while the disk hangs.
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

  it("beyond the size of RAM and SSD: admission stays possible", {
    slots: 4,
    capacityBytes: 3 * FILE_BYTES,
    writePolicy: "write_back",
  }, async ({ kit }) => {
    const engine = kit.engine();
    const { table } = kit.store;
    const pinned = new Map<BlockName, NodeId>();
    const ended: BlockName[] = [];
    kit.store.setPinEviction((tier, why, level) => {
      if (level === "soft") return false;
      expect(tier).toBe("ram");
      expect(why).toContain("4 blocks in RAM are protected");
      // Ends pins of RAM-only blocks, as the pin registry does.
      for (const [name, node] of pinned) {
        if (kit.ssdHolds(name)) continue;
        pinned.delete(name);
        ended.push(name);
        table.unpin(node);
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
    for (const node of pinned.values()) table.unpin(node);
  });

  it("are written again after their file has decayed, while RAM has them", {}, async ({ kit }) => {
    await kit.engine().put("a");
    using _pin = pin(kit, "a");
    await kit.settled();
    await kit.ssd.room.quarantine(kit.nodeOf("a"));
    expect(kit.store.table.isProtected(kit.nodeOf("a"), Tier.ram)).toBe(true);
    await kit.until(() => kit.ssdHolds("a"), "a copy");
    kit.leaveRam();
    expect(await kit.engine().load("a")).toEqual(["ok"]);
  });

  it("that fill the SSD: other blocks stay in RAM, and soft pins end for room", {
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
    kit.store.setPinEviction((tier, why, level) => {
      asked.push(`${tier} ${level}`);
      expect(why).toContain(`${3 * FILE_BYTES} of ${3 * FILE_BYTES} bytes`);
      if (!isThere) return false;
      isThere = false;
      table.unpin(soft);
      return true;
    });
    // Without soft pins, blocks come and go in RAM.
    await flood(kit, 12);
    expect(new Set(asked)).toEqual(new Set(["ssd soft"]));
    expect(["a", "b", "c"].map((name) => kit.ssdHolds(name))).toEqual([true, true, true]);
    expect(kit.logged.filter((line) => line.includes("can be evicted"))).toHaveLength(1);
    isThere = true;
    await flood(kit, 1, "last");
    expect(["a", "b", "c"].map((name) => kit.ssdHolds(name))).toEqual([true, true, false]);
    expect(kit.ssdHolds("last0")).toBe(true);
  });
});
