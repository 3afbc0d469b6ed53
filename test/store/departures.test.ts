import { describe, expect, test } from "bun:test";
import { type NodeId, seededRandom } from "../../src/core/index.ts";
import { BlockTable, Tier } from "../../src/store/blocks/index.ts";
import { DEPARTURES, Departures, EVICTED } from "../../src/store/index.ts";
import { must, SPACE } from "./blocks/blocks.ts";

/** A key whose bucket is `place`. */
function keyOf(place: number, other = 0): Uint32Array {
  return new Uint32Array([place, other, 3, 4, 5, 6, 7, 8]);
}

function open() {
  const table = new BlockTable({ nodesMax: 8, random: seededRandom(1) });
  let now = 1_000;
  const departures = new Departures(() => now++);
  const nodeOf = (keys: Uint32Array): NodeId => {
    const source = {
      layer: 0,
      keys,
      digests: new Uint8Array(32),
      parentKeys: new Uint32Array(8),
      bytes: new Uint32Array([4096]),
    };
    return must(table.insertResident(source, 0, SPACE, false, Tier.ram));
  };
  return { table, departures, nodeOf };
}

describe("departures", () => {
  test("report when a block left which tier, why, and by which command", () => {
    const { table, departures, nodeOf } = open();
    for (const [i, reason] of DEPARTURES.entries()) {
      const tier = i % 2 === 0 ? "ram" : "ssd";
      const by = i % 3 === 0 ? null : `somebody/${i}`;
      const keys = keyOf(i, i);
      const node = nodeOf(keys);
      departures.note(table, node, tier, { reason, by });
      table.removeResidency(node, Tier.ram);
      const expected = { reason, tier, by, atSeconds: 1_000 + i } as const;
      expect(departures.find(keys, 0)).toEqual(expected);
      // At any offset in a batch of keys.
      expect(departures.find(new Uint32Array([...keyOf(99), ...keys]), 8)).toEqual(expected);
    }
  });

  test("are unknown for a block that never left, or that only shares a hash bucket", () => {
    const { table, departures, nodeOf } = open();
    expect(departures.find(keyOf(0), 0)).toBeNull();
    expect(departures.find(new Uint32Array(8), 0)).toBeNull();
    departures.note(table, nodeOf(keyOf(5, 1)), "ram", EVICTED);
    expect(departures.find(keyOf(5, 2), 0)).toBeNull();
    expect(departures.find(keyOf(5 + 2 ** 18, 1), 0)).not.toBeNull();
  });

  test("are replaced by newer departures of the same block", () => {
    const { table, departures, nodeOf } = open();
    departures.note(table, nodeOf(keyOf(5, 1)), "ram", { reason: "purged", by: "a" });
    departures.note(table, nodeOf(keyOf(5, 2)), "ssd", EVICTED);
    expect(departures.find(keyOf(5, 1), 0)).toBeNull();
    expect(departures.find(keyOf(5, 2), 0)).toMatchObject({ reason: "evicted", by: null });
  });

  test("have no name instead of a wrong one after it was forgotten", () => {
    const { table, departures, nodeOf } = open();
    const first = nodeOf(keyOf(1, 1));
    departures.note(table, first, "ram", { reason: "purged", by: "first" });
    const second = nodeOf(keyOf(2, 2));
    for (let i = 0; i < 1_023; i++) {
      departures.note(table, second, "ram", { reason: "purged", by: `other ${i}` });
    }
    expect(departures.find(keyOf(1, 1), 0)?.by).toBe("first");
    // Many blocks of one command use one name.
    for (let i = 0; i < 2_000; i++) {
      departures.note(table, second, "ram", { reason: "purged", by: "other 1022" });
    }
    expect(departures.find(keyOf(1, 1), 0)?.by).toBe("first");
    departures.note(table, second, "ram", { reason: "purged", by: "one too many" });
    expect(departures.find(keyOf(1, 1), 0)).toMatchObject({ reason: "purged", by: null });
    expect(departures.find(keyOf(2, 2), 0)?.by).toBe("one too many");
  });

  test("are found by at most two aliases of each kind", () => {
    const { table, departures, nodeOf } = open();
    const plain = nodeOf(keyOf(1, 1));
    departures.note(table, plain, "ram", EVICTED);
    expect(departures.findAlias(0, 0)).toBeNull();
    const node = nodeOf(keyOf(2, 2));
    const pages = [10, 20, 30].map((byte) => new Uint8Array(32).fill(byte));
    for (const lo of [7, 8, 9]) table.addAlias(node, lo, 0xffff_ffff);
    for (const page of pages) table.addSha256(node, page, 0);
    departures.note(table, node, "ssd", { reason: "pruned", by: "me" });
    const told = { reason: "pruned", by: "me", tier: "ssd", atSeconds: 1_001 } as const;
    const byHash = [7, 8, 9].map((lo) => departures.findAlias(lo, 0xffff_ffff));
    expect(byHash).toEqual([null, told, told]);
    const byPage = [0x0a0a0a0a, 0x14141414, 0x1e1e1e1e].map((w) => departures.findAlias(w, w));
    expect(byPage).toEqual([null, told, told]);
    expect(departures.findAlias(8, 0)).toBeNull();
  });
});
