import { describe, expect, test } from "bun:test";
import {
  type NamespaceIndex,
  NO_NODE,
  type NodeId,
  type Random,
  randomBelow,
  seededRandom,
} from "../../../src/core/index.ts";
import { type BlockSource, BlockTable, Tier } from "../../../src/store/blocks/index.ts";
import { verifyTable } from "./verify-table.ts";

const SPACE = 1 as NamespaceIndex;
const BLOCKS = 300;
const REQUESTS = 4_000;

/** Block `n` hangs from `parents[n]`; paths are up to some twenty blocks long. */
function drawTree(random: Random): (number | null)[] {
  return Array.from({ length: BLOCKS }, (_, n) =>
    n === 0 || random.u32() % 20 === 0 ? null : randomBelow(random, n),
  );
}

function pathTo(parents: readonly (number | null)[], n: number): number[] {
  const path: number[] = [];
  for (let step: number | null = n; step !== null; step = parents[step]!) path.unshift(step);
  return path;
}

function keyWords(n: number): Uint32Array {
  return new Uint32Array(8).fill(n + 1);
}

function source(n: number, parent: number | null): BlockSource {
  return {
    layer: 0,
    keys: keyWords(n),
    digests: new Uint8Array(32),
    parentKeys: parent === null ? new Uint32Array(8) : keyWords(parent),
    bytes: new Uint32Array([4096]),
  };
}

/**
 * Least recently used, by the book: one list of blocks, used from the last of a request to the
 * first.
 */
class ClassicLru {
  private readonly blocks = new Set<number>();

  has(n: number): boolean {
    return this.blocks.has(n);
  }

  use(path: readonly number[]): void {
    for (const n of path.toReversed()) {
      this.blocks.delete(n);
      this.blocks.add(n);
    }
  }

  evict(capacity: number): number[] {
    const evicted: number[] = [];
    for (const n of this.blocks) {
      if (this.blocks.size <= capacity) break;
      this.blocks.delete(n);
      evicted.push(n);
    }
    return evicted;
  }
}

function store(table: BlockTable, path: readonly number[]): NodeId[] {
  return path.map((n, at) => {
    const parent = at === 0 ? null : path[at - 1]!;
    const found = table.find(keyWords(n), 0);
    if (found !== NO_NODE && table.isResident(found, Tier.ram)) return found;
    const block = source(n, parent);
    return table.insertResident(block, 0, SPACE, parent !== null, Tier.ram) as NodeId;
  });
}

function evict(table: BlockTable, capacity: number): number[] {
  const key = new Uint32Array(8);
  const evicted: number[] = [];
  while (table.residentBlocks(Tier.ram) > capacity) {
    const victim = table.oldest(Tier.ram);
    table.readKey(victim, key, 0);
    evicted.push(key[0]! - 1);
    table.removeResidency(victim, Tier.ram);
  }
  return evicted;
}

function touchLast(table: BlockTable, nodes: readonly NodeId[]): void {
  table.touchPath(nodes.at(-1)!);
}

/** What a request does that reads its blocks: locks all, lets go of them in any order. */
function lockAndLetGo(random: Random) {
  return (table: BlockTable, nodes: readonly NodeId[]): void => {
    for (const node of nodes) table.lock(node);
    const left = [...nodes];
    while (left.length > 0) table.unlock(left.splice(randomBelow(random, left.length), 1)[0]!);
  };
}

describe("the recency list", () => {
  for (const capacity of [25, 60, 150]) {
    for (const way of ["touched", "locked"] as const) {
      test(`evicts as the book says: ${capacity} blocks, paths ${way}`, () => {
        const random = seededRandom(capacity);
        const parents = drawTree(random);
        const table = new BlockTable({ nodesMax: BLOCKS, random });
        const classic = new ClassicLru();
        const use = way === "touched" ? touchLast : lockAndLetGo(random);
        for (let request = 0; request < REQUESTS; request++) {
          const path = pathTo(parents, randomBelow(random, BLOCKS));
          for (const n of path) {
            const node = table.find(keyWords(n), 0);
            expect(node !== NO_NODE && table.isResident(node, Tier.ram)).toBe(classic.has(n));
          }
          use(table, store(table, path));
          classic.use(path);
          expect(evict(table, capacity)).toEqual(classic.evict(capacity));
        }
        verifyTable(table);
      });
    }
  }

  test("finds no victim where all is protected or nothing is there", () => {
    const table = new BlockTable({ nodesMax: 4, random: seededRandom(1) });
    expect(table.oldest(Tier.ram)).toBe(NO_NODE);
    const [, last] = store(table, [1, 2]);
    table.pin(last!);
    expect(table.oldest(Tier.ram)).toBe(NO_NODE);
    table.unpin(last!);
    expect(table.oldest(Tier.ram)).toBe(last!);
  });
});
