import { describe, expect, test } from "bun:test";
import { NodeFlag, Tier } from "../../../src/store/blocks/index.ts";
import { BLOCK_BYTES, HoldKit } from "./hold-kit.ts";
import { MemoryDisk } from "./memory-ledger.ts";

const WHY = "4KiB needed, 0B may leave";

/** Owners of the evicted pins, in the order of eviction. */
function relieveAll(kit: HoldKit, tier: "ram" | "ssd", level: "soft" | "hard"): string[] {
  const before = kit.said().length;
  while (kit.holds.relieve(tier, WHY, level)) kit.verify();
  return kit
    .said()
    .slice(before)
    .map((event) => (event.kind === "hold_relieved" ? event.owner : event.kind));
}

describe("soft pins go", () => {
  test("pins are evicted by remaining priority, the lowest first", () => {
    const kit = new HoldKit();
    for (const n of [1, 2, 3, 4]) kit.put([n]);
    kit.retain("low", [1], 10, 3_600_000);
    kit.retain("high", [2], 90, 3_600_000);
    kit.retain("faded", [3], 99, 60_000);
    kit.retain("used", [4], 60, 60_000);
    kit.clock.advance(300_000);
    kit.use(4);
    expect(relieveAll(kit, "ram", "soft")).toEqual(["faded", "low", "used", "high"]);
    expect(kit.holds.counts().relieved).toBe(4);
    expect(kit.evict()).toHaveLength(4);
  });

  test("and no pin or lease with them, nor the other way", () => {
    const kit = new HoldKit();
    for (const n of [1, 2, 3]) kit.put([n]);
    kit.pin("pin", [1]);
    kit.lease("night", [2]);
    kit.retain("soft", [3], 10, 60_000);
    expect(relieveAll(kit, "ram", "soft")).toEqual(["soft"]);
    expect(relieveAll(kit, "ram", "hard")).toEqual(["pin", "router"]);
  });
});

describe("pins and leases go", () => {
  test("whose blocks were used longest ago first, of equals the larger", () => {
    const kit = new HoldKit();
    kit.put([1, 2, 3]);
    kit.put([4]);
    kit.clock.advance(10_000);
    kit.put([5]);
    kit.pin("newer", [5]);
    kit.pin("small", [4]);
    kit.pin("large", [1, 2, 3]);
    kit.put([6]);
    kit.lease("night", [6]);
    kit.clock.advance(10_000);
    kit.use(6);
    expect(relieveAll(kit, "ram", "hard")).toEqual(["large", "small", "newer", "router"]);
    expect(kit.holds.lease("night")).toBeNull();
  });

  test("with an event, a log line and a count", () => {
    const kit = new HoldKit();
    kit.put([1]);
    kit.lease("night", [1]);
    expect(kit.holds.relieve("ram", WHY, "hard")).toBe(true);
    const said = { owner: "router", blocks: 1, bytes: BLOCK_BYTES, tier: "ram" };
    expect(kit.said()).toEqual([
      { kind: "hold_relieved", hold: "lease", ...said, name: "night", why: WHY } as never,
    ]);
    expect(kit.warnings).toEqual([
      {
        message: "pin evicted because its blocks left no room",
        fields: { kind: "lease", ...said, lease: "night", why: WHY },
      },
    ]);
    expect(kit.holds.counts().relieved).toBe(1);
  });

  test("evicted pins do not return after a restart", async () => {
    const disk = new MemoryDisk();
    const fill = (kit: HoldKit) => kit.put([1]);
    const kit = new HoldKit({ ledger: disk.open() });
    fill(kit);
    kit.pin("a", [1]);
    kit.holds.relieve("ram", WHY, "hard");
    await kit.holds.commit();
    const next = await HoldKit.restarted(disk.open(), kit.clock, fill);
    expect(next.pins(1)).toEqual([0]);
  });
});

describe("only what keeps something on the tier goes", () => {
  test("RAM: blocks that SSD has not; SSD: blocks it has", () => {
    const kit = new HoldKit();
    kit.put([1]);
    kit.put([2]);
    kit.put([3], Tier.ssd);
    kit.table.addResidency(kit.node(2), Tier.ssd);
    kit.pin("ram", [1]);
    kit.pin("both", [2]);
    kit.pin("ssd", [3]);
    expect(relieveAll(kit, "ram", "hard")).toEqual(["ram"]);
    expect(relieveAll(kit, "ssd", "hard")).toEqual(["both", "ssd"]);
    expect(relieveAll(kit, "ram", "hard")).toEqual([]);
  });

  test("pin eviction counts a RAM-only parent of the pinned block, such as one that must not go to SSD", () => {
    const kit = new HoldKit();
    kit.put([1, 2]);
    kit.table.setFlag(kit.node(1), NodeFlag.transient, true);
    kit.table.addResidency(kit.node(2), Tier.ssd);
    kit.pin("a", [2]);
    kit.pin("b", [2]);
    expect(kit.evict()).toEqual([2]);
    expect(relieveAll(kit, "ram", "hard")).toEqual(["a", "b"]);
    expect(kit.evict()).toEqual([1]);
  });

  test("pin eviction is computed anew each time: blocks that become RAM-only count from then on", () => {
    const kit = new HoldKit();
    kit.put([1]);
    kit.table.addResidency(kit.node(1), Tier.ssd);
    kit.pin("a", [1]);
    expect(kit.holds.relieve("ram", WHY, "hard")).toBe(false);
    kit.table.removeResidency(kit.node(1), Tier.ssd);
    expect(kit.holds.relieve("ram", WHY, "hard")).toBe(true);
    expect(kit.holds.relieve("ram", WHY, "hard")).toBe(false);
  });

  test("nothing is held: nothing goes, and that costs nothing", () => {
    const kit = new HoldKit();
    kit.put([1]);
    expect(kit.holds.relieve("ram", WHY, "soft")).toBe(false);
    expect(kit.holds.relieve("ssd", WHY, "hard")).toBe(false);
    expect(kit.said()).toEqual([]);
  });
});

test("pinned to the last byte, a tier can still be emptied block by block", () => {
  const kit = new HoldKit({ nodesMax: 4_000 });
  kit.shares = { host: 1, owner: 1 };
  for (let n = 1; n <= 3_000; n++) kit.put([n]);
  for (let n = 1; n <= 3_000; n++) kit.pin(`owner-${n % 7}`, [n]);
  let admitted = 0;
  while (kit.table.residentBlocks(Tier.ram) > 0) {
    if (kit.evict(Tier.ram, 1).length === 1) admitted++;
    else expect(kit.holds.relieve("ram", WHY, "hard")).toBe(true);
  }
  expect([admitted, kit.holds.counts().relieved]).toEqual([3_000, 3_000]);
  kit.verify();
});

describe("among tens of thousands of holds", () => {
  const COUNT = 20_000;

  /** One pin for each block of a chain on SSD, and one, used last, of a block in RAM alone. */
  function kitOfChain(): { kit: HoldKit; steps: () => number } {
    const kit = new HoldKit({ nodesMax: COUNT + 2 });
    kit.shares = { host: 1, owner: 1 };
    kit.capacityBytes = 1e9;
    const path = Array.from({ length: COUNT }, (_, i) => i + 1);
    kit.put(path, Tier.ssd);
    for (const n of path) kit.pin("chain", [n]);
    kit.clock.advance(10_000);
    kit.put([COUNT + 1]);
    kit.pin("ram", [COUNT + 1]);
    let steps = 0;
    const { table } = kit;
    for (const name of ["parentOf", "lastUsedOf"] as const) {
      const asked = table[name].bind(table);
      table[name] = (node) => {
        steps++;
        return asked(node) as never;
      };
    }
    return { kit, steps: () => steps };
  }

  test("a call reads a bounded number of blocks, and the next call resumes there", () => {
    const { kit, steps } = kitOfChain();
    let calls = 0;
    for (let before = 0, found = false; !found; before = steps(), calls++) {
      expect(calls).toBeLessThan(10);
      found = kit.holds.relieve("ram", WHY, "hard");
      expect(steps() - before).toBeLessThan(40_000);
    }
    expect(calls).toBeGreaterThan(1);
    expect(kit.said().at(-1)).toMatchObject({ kind: "hold_relieved", owner: "ram" });
    // Each block once, however many are pinned below it.
    expect(steps()).toBeLessThan(3 * COUNT);
  });

  test("what took long is not repeated at once where nothing is to be had", () => {
    const { kit, steps } = kitOfChain();
    kit.unpin("ram", [COUNT + 1]);
    // Kept in RAM alone, as seen from the table, by a soft pin.
    kit.retain("soft", [COUNT + 1], 50, 1e9);
    const now = kit.clock.monotonicMs.bind(kit.clock);
    let looks = 0;
    kit.clock.monotonicMs = () => now() + looks++ / 1_000;
    for (let calls = 0; calls < 100; calls++) kit.holds.relieve("ram", WHY, "hard");
    expect(steps()).toBeLessThan(4 * COUNT);
    expect(kit.holds.counts().relieved).toBe(0);
  });
});
