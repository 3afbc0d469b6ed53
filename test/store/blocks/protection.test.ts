import { describe, expect, test } from "bun:test";
import { type NodeId, seededRandom } from "../../../src/core/index.ts";
import { BlockTable, Tier } from "../../../src/store/blocks/index.ts";
import { block, keyWords, must, SPACE } from "./blocks.ts";
import { verifyTable } from "./verify-table.ts";

/** Makes block `n` resident in RAM. */
function store(table: BlockTable, n: number, parent: number | null = null): NodeId {
  return must(table.insertResident(block(n, parent), 0, SPACE, parent !== null, Tier.ram));
}

describe("protection", () => {
  /** Blocks 1 to `count` in RAM, each the parent of the next, and what listeners were told. */
  function path(count: number) {
    const told = { protection: 0, inRamAlone: 0 };
    const table = new BlockTable({
      nodesMax: count + 1,
      random: seededRandom(1),
      onProtection: () => told.protection++,
      onInRamAlone: () => told.inRamAlone++,
    });
    const nodes: NodeId[] = [];
    for (let n = 1; n <= count; n++) nodes.push(store(table, n, n === 1 ? null : n - 1));
    return { table, nodes, told };
  }
  const guarded = (table: BlockTable, nodes: readonly NodeId[], tier: 2 | 4) =>
    nodes.map((node) => table.isProtected(node, tier));

  test("a pin keeps in RAM what only RAM has, and what leads there", () => {
    const { table, nodes } = path(4);
    const [first, second, third, last] = nodes;
    table.pin(third!);
    expect(guarded(table, nodes, Tier.ram)).toEqual([true, true, true, false]);
    expect(nodes.map((node) => table.isKept(node))).toEqual([true, true, true, false]);
    for (const node of [first!, third!]) table.addResidency(node, Tier.ssd);
    // The second has no copy yet: it stays, and so must the first.
    expect(guarded(table, nodes, Tier.ram)).toEqual([true, true, false, false]);
    expect(guarded(table, nodes, Tier.ssd)).toEqual([true, true, true, false]);
    expect(table.keptInRamAloneBytes).toBe(4096);
    table.addResidency(second!, Tier.ssd);
    expect(guarded(table, nodes, Tier.ram)).toEqual([false, false, false, false]);
    expect(guarded(table, nodes, Tier.ssd)).toEqual([true, true, true, false]);
    expect(table.oldest(Tier.ram)).toBe(last!);
    for (const node of [last!, third!, second!, first!]) table.removeResidency(node, Tier.ram);
    expect(table.keptBytes).toBe(3 * 4096);
    expect(table.evictableBlocks(Tier.ssd)).toBe(0);
    table.unpin(third!);
    expect(table.oldest(Tier.ssd)).toBe(third!);
    expect(table.keptBytes).toBe(0);
    verifyTable(table);
  });

  test("a lock protects on both tiers, copy or not", () => {
    const { table, nodes } = path(2);
    for (const node of nodes) table.addResidency(node, Tier.ssd);
    table.pin(nodes[1]!);
    table.lock(nodes[1]!);
    expect(guarded(table, nodes, Tier.ram)).toEqual([true, true]);
    table.unpin(nodes[1]!);
    expect(guarded(table, nodes, Tier.ram)).toEqual([true, true]);
    expect(guarded(table, nodes, Tier.ssd)).toEqual([true, true]);
    expect(nodes.map((node) => table.isKept(node))).toEqual([false, false]);
    table.unlock(nodes[1]!);
    expect(guarded(table, nodes, Tier.ssd)).toEqual([false, false]);
  });

  test("an ancestor that is nowhere holds nothing in RAM", () => {
    const { table, nodes } = path(3);
    for (const node of nodes) table.addResidency(node, Tier.ssd);
    table.pin(nodes[2]!);
    table.removeResidency(nodes[1]!, Tier.ram);
    // Its file was lost: there is nothing of it that RAM could keep.
    table.removeResidency(nodes[1]!, Tier.ssd);
    expect(guarded(table, nodes, Tier.ram)).toEqual([false, false, false]);
    expect(table.isKept(nodes[1]!)).toBe(true);
    verifyTable(table);
  });

  test("a subtree that gains a parent brings its pins along", () => {
    const { table } = path(1);
    const orphan = store(table, 8);
    table.pin(orphan);
    const adopted = store(table, 8, 1);
    expect(adopted).toBe(orphan);
    const parent = table.find(keyWords(1), 0);
    expect([table.isKept(parent), table.isProtected(parent, Tier.ram)]).toEqual([true, true]);
    table.addResidency(orphan, Tier.ssd);
    expect(table.isProtected(parent, Tier.ram)).toBe(true);
    table.addResidency(parent, Tier.ssd);
    expect(table.isProtected(parent, Tier.ram)).toBe(false);
    verifyTable(table);
  });

  test("many pins on one path cost its length once", () => {
    const { table, nodes, told } = path(1_000);
    for (let i = 0; i < 1_000; i++) table.pin(nodes.at(-1)!);
    for (const node of nodes) table.pin(node);
    expect(told).toEqual({ protection: 1_000, inRamAlone: 1_000 });
    for (const node of nodes) table.unpin(node);
    for (let i = 0; i < 999; i++) table.unpin(nodes.at(-1)!);
    expect(told.protection).toBe(1_000);
    // From the first on: each copy but the last frees nothing, the last frees all.
    for (const node of nodes) table.addResidency(node, Tier.ssd);
    expect(told).toEqual({ protection: 2_000, inRamAlone: 1_000 });
    table.removeResidency(nodes.at(-1)!, Tier.ssd);
    expect(told).toEqual({ protection: 3_000, inRamAlone: 1_001 });
    table.unpin(nodes.at(-1)!);
    expect(told.protection).toBe(4_000);
    verifyTable(table);
  });
});
