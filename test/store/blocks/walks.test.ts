import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { NO_NODE, type NodeId, seededRandom } from "../../../src/core/index.ts";
import { BlockTable, Tier, WALKS_MAX } from "../../../src/store/blocks/index.ts";
import { block, keyWords, must, SPACE } from "./blocks.ts";
import { verifyTable } from "./verify-table.ts";

function tableOf(nodesMax: number): BlockTable {
  return new BlockTable({ nodesMax, random: seededRandom(5) });
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

test("a walk pauses while blocks come and go: a block that stays is visited once, before its parent", () => {
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
    using walk = table.openLeafWalk(root)!;
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
      verifyTable(table);
    }
    while (advance() !== NO_NODE);
    expect(walk.next()).toBe(NO_NODE);
    for (const stays of born.keys()) {
      expect(visited.filter((node) => node === stays)).toHaveLength(1);
      const parent = table.parentOf(stays);
      if (!born.has(parent)) continue;
      expect(visited.indexOf(stays)).toBeLessThan(visited.indexOf(parent));
    }
  });
  fc.assert(property, { seed: 20_260_103, numRuns: 100 });
});

describe("a walk over descendants", () => {
  test("goes on with what follows a block that vanished under it", () => {
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

  test("comes to the leaf of a long chain in many turns", () => {
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
    using walk = table.openLeafWalk(root)!;
    table.removeResidency(root, Tier.ram);
    store(table, 2, null);
    expect(walk.next()).toBe(NO_NODE);
  });

  test("is refused where too many are open, until one is closed", () => {
    const table = tableOf(4);
    const root = store(table, 1, null);
    store(table, 2, 1);
    const walks = Array.from({ length: WALKS_MAX }, () => table.openLeafWalk(root)!);
    expect(table.openLeafWalk(root)).toBeNull();
    walks[7]!.close();
    walks[7]!.close();
    expect(walks[7]!.next()).toBe(NO_NODE);
    using walk = table.openLeafWalk(root)!;
    expect(walk.next()).not.toBe(NO_NODE);
    expect(table.openLeafWalk(root)).toBeNull();
  });
});
