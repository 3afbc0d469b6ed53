import { describe, expect, test } from "bun:test";
import { Tier } from "../../../src/store/blocks/index.ts";
import { block, must, SPACE } from "../blocks/blocks.ts";
import { BLOCK_BYTES, expectDone, HoldKit, outcomes } from "./hold-kit.ts";
import { verifyPins } from "./verify-pins.ts";

/** Room for so many blocks under pins of all, and of one owner. */
function kitFor(host: number, owner: number): HoldKit {
  const kit = new HoldKit();
  kit.capacityBytes = 100 * BLOCK_BYTES;
  kit.shares = { host: host / 100, owner: owner / 100 };
  return kit;
}

describe("the budget of the host", () => {
  test("counts blocks above those that are named, and each once", () => {
    const kit = kitFor(4, 100);
    kit.put([1, 2, 3]);
    kit.put([1, 2, 4]);
    expect(outcomes(kit.pin("a", [3]))).toEqual(["done"]);
    expect(kit.holds.figures("a")).toEqual({
      capacityBytes: 10_000,
      hostBudgetBytes: 400,
      hostUsedBytes: 300,
      ownerBudgetBytes: 10_000,
      ownerUsedBytes: 300,
    });
    expect(outcomes(kit.pin("b", [4, 2, 3]))).toEqual(["done", "done", "done"]);
    expect(kit.holds.figures("b")).toMatchObject({ hostUsedBytes: 400, ownerUsedBytes: 400 });
    kit.verify();
  });

  test("refuses what goes over it, with figures, and takes the rest", () => {
    const kit = kitFor(3, 100);
    kit.put([1, 2]);
    kit.put([3, 4]);
    kit.put([5]);
    const added = kit.pin("a", [2, 4, 5]);
    expect(outcomes(added)).toEqual(["done", "rejected", "done"]);
    expect(added.results[1]!.reason).toBe("budget: 200B of 300B kept, 200B more requested");
    expect(added.figures).toMatchObject({ hostBudgetBytes: 300, hostUsedBytes: 300 });
    expect(kit.pins(2, 3, 4, 5)).toEqual([1, 0, 0, 1]);
    expect(kit.holds.list({ kind: null, owner: null, after: 0, max: 9 }).holds).toMatchObject([
      { blocks: 2, bytes: 200 },
    ]);
    kit.verify();
  });

  test("a request of which nothing fits leaves no trace", () => {
    const kit = kitFor(0, 100);
    kit.put([1]);
    expect(kit.pin("a", [1]).id).toBeNull();
    expect(kit.lease("night", [1]).id).toBeNull();
    expect(kit.holds.lease("night")).toBeNull();
    expect(kit.holds.counts()).toMatchObject({ pin: { holds: 0 }, lease: { holds: 0 } });
    expect(kit.pins(1)).toEqual([0]);
    kit.verify();
  });

  test("what keeps nothing more always fits", () => {
    const kit = kitFor(2, 2);
    kit.put([1, 2]);
    expectDone(kit.pin("a", [1, 2]));
    expectDone(kit.pin("a", [1, 2]));
    expectDone(kit.lease("night", [2]));
    expectDone(kit.pin("b", [2]));
    kit.shares = { host: 0, owner: 0 };
    expectDone(kit.pin("a", [1, 2]));
    expectDone(kit.pin("b", [1]));
    expect(outcomes(kit.pin("c", [1]))).toEqual(["rejected"]);
    kit.verify();
  });

  test("follows the configuration and the capacity as they are now", () => {
    const kit = kitFor(1, 100);
    kit.put([1]);
    kit.put([2]);
    expect(outcomes(kit.pin("a", [1, 2]))).toEqual(["done", "rejected"]);
    kit.capacityBytes *= 2;
    expect(outcomes(kit.pin("a", [2]))).toEqual(["done"]);
  });

  test("room that a pin gives back is room", () => {
    const kit = kitFor(2, 100);
    kit.put([1, 2]);
    kit.put([3, 4]);
    kit.pin("a", [2]);
    expect(outcomes(kit.pin("b", [4]))).toEqual(["rejected"]);
    kit.unpin("a", [2]);
    expect(outcomes(kit.pin("b", [4]))).toEqual(["done"]);
  });

  test("a path over the budget is refused block by block, from either end, in few steps", () => {
    const count = 20_000;
    for (const isUp of [false, true]) {
      const kit = new HoldKit({ nodesMax: count + 1 });
      kit.capacityBytes = count * BLOCK_BYTES;
      kit.shares = { host: 0.5, owner: 1 };
      const path = Array.from({ length: count }, (_, i) => i + 1);
      kit.put(path);
      let steps = 0;
      const parentOf = kit.table.parentOf.bind(kit.table);
      kit.table.parentOf = (node) => {
        steps++;
        return parentOf(node);
      };
      const { results, figures } = kit.pin("a", isUp ? path.toReversed() : path);
      expect(steps).toBeLessThan(1_200_000);
      const done = results.filter(({ outcome }) => outcome === "done").length;
      expect(figures!.hostUsedBytes).toBeLessThanOrEqual(figures!.hostBudgetBytes);
      expect(done + results.filter(({ reason }) => reason?.startsWith("budget: ")).length).toBe(
        count,
      );
      if (!isUp) expect(done).toBe(count / 2);
      verifyPins(kit.holds);
    }
  });
});

describe("the budget of an owner", () => {
  test("counts the blocks it keeps, those above included, each once, whoever else does", () => {
    const kit = kitFor(100, 3);
    kit.put([1, 2, 3, 4]);
    kit.put([1, 5]);
    const used = (owner: string) => kit.holds.figures(owner).ownerUsedBytes;
    // The end of a chain costs the whole of it.
    expect(kit.pin("a", [4]).results[0]!.reason).toBe(
      "budget: 0B of 300B kept for this owner, 400B more requested",
    );
    expect(outcomes(kit.pin("a", [2, 3, 5]))).toEqual(["done", "done", "rejected"]);
    expect(outcomes(kit.hold("lease", "a", [2, 4], { name: "night" }))).toEqual([
      "done",
      "rejected",
    ]);
    expect(outcomes(kit.pin("b", [5, 1]))).toEqual(["done", "done"]);
    expect([used("a"), used("b")]).toEqual([300, 200]);
    kit.unpin("a", [3]);
    expect([used("a"), used("b")]).toEqual([200, 200]);
    kit.unpin("a", [2]);
    expect(used("a")).toBe(200);
    kit.holds.endLease("night");
    expect([used("a"), used("b")]).toEqual([0, 200]);
    kit.unpin("b", [5]);
    expect(used("b")).toBe(100);
    kit.verify();
  });

  test("a parent gained under a pin counts with the owner's next hold, and is given back", () => {
    const kit = kitFor(100, 100);
    must(kit.table.insertResident(block(2, null, 100), 0, SPACE, false, Tier.ram));
    kit.pin("a", [2]);
    kit.pin("b", [2]);
    must(kit.table.insertResident(block(1, null, 100), 0, SPACE, false, Tier.ram));
    must(kit.table.insertResident(block(2, 1, 100), 0, SPACE, true, Tier.ram));
    const used = (owner: string) => kit.holds.figures(owner).ownerUsedBytes;
    expect([used("a"), used("b")]).toEqual([100, 100]);
    kit.lease("night", [2]);
    kit.hold("lease", "a", [2], { name: "day" });
    kit.pin("a", [1]);
    expect([used("a"), used("b"), used("router")]).toEqual([200, 100, 200]);
    kit.verify();
    kit.unpin("a", [2, 1]);
    kit.unpin("b", [2]);
    kit.verify();
    for (const name of ["night", "day"]) kit.holds.endLease(name);
    expect([used("a"), used("b"), used("router")]).toEqual([0, 0, 0]);
    kit.verify();
  });
});

describe("soft pins", () => {
  test("are in no budget, and what they alone keep is in none", () => {
    const kit = kitFor(3, 100);
    kit.put([1, 2, 3, 4, 5]);
    expectDone(kit.retain("a", [5], 50, 60_000));
    expect(kit.table.keptBytes).toBe(500);
    expect(kit.holds.figures("a")).toMatchObject({ hostUsedBytes: 0, ownerUsedBytes: 0 });
    expect(outcomes(kit.pin("a", [3, 4]))).toEqual(["done", "rejected"]);
    expect(kit.holds.figures("a")).toMatchObject({ hostUsedBytes: 300, ownerUsedBytes: 300 });
    kit.holds.letGo("retain", "a", kit.nodes(5));
    expect(kit.holds.figures("a").hostUsedBytes).toBe(300);
    kit.retain("a", [3], 50, 60_000);
    kit.unpin("a", [3]);
    expect(kit.holds.figures("a").hostUsedBytes).toBe(0);
    kit.verify();
  });

  test("a block that gains a parent while it is held counts with it from its next hold on", () => {
    const kit = kitFor(100, 100);
    must(kit.table.insertResident(block(2, null, 100), 0, SPACE, false, Tier.ram));
    must(kit.table.insertResident(block(1, null, 100), 0, SPACE, false, Tier.ram));
    kit.retain("a", [2], 50, 60_000);
    must(kit.table.insertResident(block(2, 1, 100), 0, SPACE, true, Tier.ram));
    expect(kit.table.keptBytes).toBe(200);
    expect(kit.holds.figures(null).hostUsedBytes).toBe(100);
    kit.retain("b", [2], 50, 60_000);
    expect(kit.holds.figures(null).hostUsedBytes).toBe(0);
    for (const owner of ["a", "b"]) kit.holds.letGo("retain", owner, kit.nodes(2));
    expect([kit.table.keptBytes, kit.holds.figures(null).hostUsedBytes]).toEqual([0, 0]);
    kit.pin("a", [2]);
    expect(kit.holds.figures(null).hostUsedBytes).toBe(200);
    kit.verify();
  });

  test("a parent gained under a pin counts at once, and is given back", () => {
    const kit = kitFor(100, 100);
    must(kit.table.insertResident(block(2, null, 100), 0, SPACE, false, Tier.ram));
    kit.pin("a", [2]);
    must(kit.table.insertResident(block(1, null, 100), 0, SPACE, false, Tier.ram));
    must(kit.table.insertResident(block(2, 1, 100), 0, SPACE, true, Tier.ram));
    expect(kit.holds.figures(null).hostUsedBytes).toBe(200);
    kit.retain("b", [2], 50, 60_000);
    kit.unpin("a", [2]);
    expect(kit.holds.figures(null).hostUsedBytes).toBe(0);
    kit.holds.letGo("retain", "b", kit.nodes(2));
    expect(kit.holds.figures(null).hostUsedBytes).toBe(0);
    kit.verify();
  });
});
