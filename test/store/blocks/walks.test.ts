import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { NO_NODE, type NodeId, seededRandom } from "../../../src/core/index.ts";
import {
  type BlockTable,
  createBlockTable,
  Tier,
  WALKS_MAX,
} from "../../../src/store/blocks/index.ts";
import { block, keyWords, must, SPACE } from "./blocks.ts";

function tableOf(nodesMax: number): BlockTable {
  return createBlockTable({ nodesMax, random: seededRandom(5) });
}

function store(table: BlockTable, n: number, parent: number | null): NodeId {
  return must(table.insertResident(block(n, parent), 0, SPACE, parent !== null, Tier.ram));
}

function below(table: BlockTable, root: NodeId): Set<NodeId> {
  const nodes = new Set<NodeId>();
  for (let node = table.successorOf(root, root); node !== NO_NODE; ) {
    nodes.add(node);
    node = table.successorOf(node, root);
  }
  return nodes;
}

for (const [order, open] of [
  ["after its parent", (table: BlockTable, root: NodeId) => table.openWalk(root)!],
  ["before its parent", (table: BlockTable, root: NodeId) => table.openLeafWalk(root)!],
] as const) {
  test(`a walk pauses while blocks come and go: who stays is visited once, ${order}`, () => {
    const KEYS = 40;
    const step = fc.record({
      kind: fc.constantFrom("next", "store", "remove"),
      a: fc.nat({ max: 0xffff }),
    });
    const property = fc.property(fc.array(step, { maxLength: 300, size: "max" }), (steps) => {
      const table = tableOf(KEYS);
      const root = store(table, 0, null);
      table.lock(root);
      for (let n = 1; n < KEYS / 2; n++) store(table, n, (n - 1) >> 1);
      const staying = below(table, root);
      const born = new Map([...staying].map((node) => [node, table.generationOf(node)]));
      const visited: NodeId[] = [];
      using walk = open(table, root);
      const advance = (): NodeId => {
        const node = walk.next();
        if (node === NO_NODE) return node;
        visited.push(node);
        let above = table.parentOf(node);
        while (above !== root && above !== NO_NODE) above = table.parentOf(above);
        expect(above).toBe(root);
        return node;
      };
      for (const { kind, a } of steps) {
        const n = 1 + (a % (KEYS - 1));
        const node = table.find(keyWords(n), 0);
        if (kind === "next") advance();
        else if (kind === "store") store(table, n, (n - 1) >> 1);
        else if (node !== NO_NODE && table.isResident(node, Tier.ram)) {
          table.removeResidency(node, Tier.ram);
        }
        for (const [stays, generation] of born) {
          if (!table.isLive(stays, generation)) born.delete(stays);
        }
        table.verifyIntegrity();
      }
      while (advance() !== NO_NODE);
      expect(walk.next()).toBe(NO_NODE);
      for (const stays of born.keys()) {
        expect(visited.filter((node) => node === stays)).toHaveLength(1);
        const parent = table.parentOf(stays);
        if (!born.has(parent)) continue;
        const [first, second] = order === "after its parent" ? [parent, stays] : [stays, parent];
        expect(visited.indexOf(first)).toBeLessThan(visited.indexOf(second));
      }
    });
    fc.assert(property, { seed: 20_260_103, numRuns: 100 });
  });
}

describe("a walk over descendants", () => {
  test("goes on with what follows a block that vanished under it", () => {
    const table = tableOf(8);
    const root = store(table, 1, null);
    const last = store(table, 2, 1);
    const middle = store(table, 3, 1);
    const first = store(table, 4, 1);
    using walk = table.openWalk(root)!;
    expect(walk.next()).toBe(first);
    table.removeResidency(middle, Tier.ram);
    // Its id is used again, by a block that must not be taken for it.
    expect(store(table, 5, null)).toBe(middle);
    expect(walk.next()).toBe(last);
    expect(walk.next()).toBe(NO_NODE);
  });

  test("removes what it visits", () => {
    const table = tableOf(64);
    const root = store(table, 1, null);
    for (let n = 2; n < 64; n++) store(table, n, n >> 1);
    using walk = table.openWalk(root)!;
    for (let node = walk.next(); node !== NO_NODE; node = walk.next()) {
      table.removeResidency(node, Tier.ram);
    }
    expect(table.nodeCount).toBe(1);
    table.verifyIntegrity();
  });

  test("from the leaves upwards: goes on with what follows a block that vanished under it", () => {
    const table = tableOf(8);
    const root = store(table, 1, null);
    const last = store(table, 2, 1);
    const middle = store(table, 3, 1);
    const below = store(table, 6, 3);
    const first = store(table, 4, 1);
    using walk = table.openLeafWalk(root)!;
    expect(walk.next()).toBe(first);
    expect(walk.next()).toBe(below);
    table.removeResidency(below, Tier.ram);
    table.removeResidency(middle, Tier.ram);
    expect(store(table, 5, null)).toBe(middle);
    expect(walk.next()).toBe(last);
    expect(walk.next()).toBe(NO_NODE);
    expect(walk.over).toBe(true);
  });

  test("from the leaves upwards: comes to the leaf of a long chain in many turns", () => {
    const table = tableOf(5_000);
    const root = store(table, 1, null);
    for (let n = 2; n <= 5_000; n++) store(table, n, n - 1);
    using walk = table.openLeafWalk(root)!;
    let turns = 0;
    let visited = 0;
    while (!walk.over) {
      const node = walk.next();
      if (node === NO_NODE) turns++;
      else if (++visited > 0) table.removeResidency(node, Tier.ram);
    }
    expect(visited).toBe(4_999);
    expect(turns).toBe(4);
    expect(table.nodeCount).toBe(1);
  });

  test("is over when its root vanishes, though the id lives on", () => {
    const table = tableOf(1);
    const root = store(table, 1, null);
    using walk = table.openWalk(root)!;
    table.removeResidency(root, Tier.ram);
    store(table, 2, null);
    expect(walk.next()).toBe(NO_NODE);
  });

  test("is refused where too many are open, until one is closed", () => {
    const table = tableOf(4);
    const root = store(table, 1, null);
    store(table, 2, 1);
    const walks = Array.from({ length: WALKS_MAX }, () => table.openWalk(root)!);
    expect(table.openWalk(root)).toBeNull();
    walks[7]!.close();
    walks[7]!.close();
    expect(walks[7]!.next()).toBe(NO_NODE);
    using walk = table.openWalk(root)!;
    expect(walk.next()).not.toBe(NO_NODE);
    expect(table.openWalk(root)).toBeNull();
  });
});
