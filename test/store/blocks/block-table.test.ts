import { describe, expect, test } from "bun:test";
import { HearthError, NO_NODE, type NodeId, seededRandom } from "../../../src/core/index.ts";
import {
  ALIASES_PER_NODE_MAX,
  BlockTable,
  InsertRefusal,
  NODES_PER_ALIAS_MAX,
  RECENCY_TIERS,
  TIERS_ALL,
  Tier,
  USES_MAX,
} from "../../../src/store/blocks/index.ts";
import { block, keyWords, must, OTHER_SPACE, pageBytes, SPACE } from "./blocks.ts";
import { verifyTable } from "./verify-table.ts";

function tableOf(nodesMax: number): BlockTable {
  return new BlockTable({ nodesMax, random: seededRandom(nodesMax) });
}

/** Makes block `n` resident in RAM. */
function store(table: BlockTable, n: number, parent: number | null = null, bytes = 4096): NodeId {
  const source = block(n, parent, bytes);
  return must(table.insertResident(source, 0, SPACE, parent !== null, Tier.ram));
}

function internal(run: () => void): void {
  expect(run).toThrow(HearthError);
  expect(run).toThrow(/invariant broken/);
}

describe("room", () => {
  test("a full table refuses and stays as it was", () => {
    const table = tableOf(2);
    store(table, 1);
    const withParent = block(2, 9);
    expect(table.insertWriting(withParent, 0, SPACE, true)).toBe(InsertRefusal.full);
    expect(table.nodeCount).toBe(1);
    expect(table.find(keyWords(2), 0)).toBe(NO_NODE);
    store(table, 2, 1);
    expect(table.insertResident(block(3), 0, SPACE, false, Tier.ssd)).toBe(InsertRefusal.full);
    expect(must(table.insertResident(block(2), 0, SPACE, false, Tier.ssd))).toBeGreaterThan(0);
    verifyTable(table);
  });

  test("an adoption that needs a ghost more than there is room is refused", () => {
    const table = tableOf(2);
    store(table, 2, 1);
    expect(table.insertResident(block(1, 0), 0, SPACE, true, Tier.ram)).toBe(InsertRefusal.full);
    expect(table.isGhost(table.find(keyWords(1), 0))).toBe(true);
  });

  test("sizes outside 1 to 2^26 are a bug of the caller", () => {
    internal(() => tableOf(0));
    internal(() => tableOf(2 ** 26 + 1));
  });

  test("an id used again has another generation", () => {
    const table = tableOf(1);
    const first = store(table, 1);
    const generation = table.generationOf(first);
    table.removeResidency(first, Tier.ram);
    expect(table.isLive(first, generation)).toBe(false);
    expect(store(table, 2)).toBe(first);
    expect(table.isLive(first, generation)).toBe(false);
    expect(table.isLive(first, table.generationOf(first))).toBe(true);
  });

  test("any whole number may be asked whether it lives", () => {
    const table = tableOf(1);
    const node = store(table, 1);
    const generation = table.generationOf(node);
    for (const id of [0, -1, 2, 2 ** 40, Number.NaN]) {
      expect(table.isLive(id as NodeId, generation)).toBe(false);
    }
  });
});

describe("tree", () => {
  test("refuses a cycle of any length, through ghosts too", () => {
    const table = tableOf(8);
    expect(table.insertWriting(block(1, 1), 0, SPACE, true)).toBe(InsertRefusal.cycle);
    store(table, 2, 1);
    store(table, 3, 2);
    expect(table.insertWriting(block(1, 3), 0, SPACE, true)).toBe(InsertRefusal.cycle);
    expect(table.isGhost(table.find(keyWords(1), 0))).toBe(true);
    verifyTable(table);
  });

  test("a parent is set once", () => {
    const table = tableOf(8);
    const node = store(table, 3, 2);
    store(table, 1);
    store(table, 3, 1);
    expect(table.parentOf(node)).toBe(table.find(keyWords(2), 0));
  });

  test("a path of 60,000 blocks comes and goes without recursion", () => {
    const table = tableOf(60_000);
    for (let n = 1; n <= 60_000; n++) store(table, n, n === 1 ? null : n - 1);
    const last = table.find(keyWords(60_000), 0);
    let depth = 0;
    for (let up = table.parentOf(last); up !== NO_NODE; up = table.parentOf(up)) depth++;
    expect(depth).toBe(59_999);
    table.lock(last);
    expect(table.evictableBlocks(Tier.ram)).toBe(0);
    table.unlock(last);
    expect(table.evictableBlocks(Tier.ram)).toBe(60_000);
    expect(table.oldest(Tier.ram)).toBe(last);
    for (let n = 1; n < 60_000; n++) table.removeResidency(table.find(keyWords(n), 0), Tier.ram);
    expect(table.nodeCount).toBe(60_000);
    table.removeResidency(last, Tier.ram);
    expect(table.nodeCount).toBe(0);
  });

  test("a leaf is told by looking at few", () => {
    const table = tableOf(100);
    for (let n = 1; n <= 70; n++) store(table, n, n === 1 ? null : n - 1);
    const first = table.find(keyWords(1), 0);
    const tenth = table.find(keyWords(10), 0);
    expect(table.isLeafOn(first, Tier.ram)).toBe(false);
    expect(table.isLeafOn(tenth, Tier.ssd)).toBe(true);
    // 69 descendants on no SSD: more than are looked at, so not settled.
    expect(table.isLeafOn(first, Tier.ssd)).toBe(false);
  });
});

describe("keys", () => {
  test("keys that differ in one word only are all found, while half of them go", () => {
    const table = tableOf(20_000);
    for (let n = 0; n < 20_000; n++) store(table, n);
    for (let n = 0; n < 20_000; n += 2) table.removeResidency(table.find(keyWords(n), 0), Tier.ram);
    verifyTable(table);
    for (let n = 0; n < 20_000; n++) {
      const found = table.find(keyWords(n), 0);
      expect(found !== NO_NODE).toBe(n % 2 === 1);
    }
  });

  test("another seed gives another order in the index", () => {
    const placesOf = (seed: number) => {
      const table = new BlockTable({ nodesMax: 64, random: seededRandom(seed) });
      for (let n = 0; n < 64; n++) store(table, n);
      const { index } = table as unknown as { index: { entries: Int32Array } };
      return index.entries.join();
    };
    expect(placesOf(1)).toBe(placesOf(1));
    expect(placesOf(1)).not.toBe(placesOf(2));
  });

  test("a crowd at one place of the index is refused before searches get long", () => {
    const table = tableOf(3000);
    const { index } = table as unknown as {
      index: { hash(words: Uint32Array, at: number): number; mask: number };
    };
    const place = (n: number) => index.hash(keyWords(n), 0) & index.mask;
    const crowd: number[] = [];
    for (let n = 0; crowd.length < 1025; n++) if (place(n) === 0) crowd.push(n);
    const last = crowd.pop()!;
    for (const n of crowd) store(table, n);
    expect(table.insertWriting(block(last), 0, SPACE, false)).toBe(InsertRefusal.full);
    const elsewhere = Array.from({ length: 9 }, (_, n) => n).find((n) => place(n) !== 0)!;
    const orphan = block(elsewhere, last);
    expect(table.insertWriting(orphan, 0, SPACE, true)).toBe(InsertRefusal.full);
    expect(table.nodeCount).toBe(crowd.length);
    verifyTable(table);
    table.removeResidency(table.find(keyWords(crowd[500]!), 0), Tier.ram);
    store(table, last);
    for (const n of crowd) expect(table.find(keyWords(n), 0) === NO_NODE).toBe(n === crowd[500]);
    verifyTable(table);
  });

  test("match ends at the first key that is absent, elsewhere, or of another namespace", () => {
    const table = tableOf(300);
    const words = new Uint32Array(200 * 8);
    for (let n = 0; n < 200; n++) {
      words.set(keyWords(n), n * 8);
      store(table, n, n === 0 ? null : n - 1);
    }
    const best = new Uint8Array(200);
    const match = (tiers: number, space = SPACE) =>
      table.matchLeading(words, 200, space, tiers, best);
    expect(match(TIERS_ALL)).toBe(200);
    expect([...new Set(best)]).toEqual([Tier.ram]);
    expect(match(Tier.ssd | Tier.peer)).toBe(0);
    expect(match(TIERS_ALL, OTHER_SPACE)).toBe(0);
    table.addGpuHolder(table.find(keyWords(1), 0));
    table.addResidency(table.find(keyWords(2), 0), Tier.ssd);
    table.addResidency(table.find(keyWords(70), 0), Tier.peer);
    for (const n of [70, 71]) table.removeResidency(table.find(keyWords(n), 0), Tier.ram);
    expect(match(TIERS_ALL)).toBe(71);
    expect([...best.subarray(0, 3)]).toEqual([Tier.ram, Tier.gpu, Tier.ram]);
    expect(best[70]).toBe(Tier.peer);
    expect(match(Tier.ram)).toBe(70);
    expect(match(Tier.gpu)).toBe(0);
  });

  test("what is being written is not matched", () => {
    const table = tableOf(4);
    const node = must(table.insertWriting(block(1), 0, SPACE, false));
    const best = new Uint8Array(1);
    expect(table.matchLeading(keyWords(1), 1, SPACE, TIERS_ALL, best)).toBe(0);
    expect(table.insertWriting(block(1), 0, SPACE, false)).toBe(InsertRefusal.busy);
    table.addResidency(node, Tier.ram);
    table.endWrite(node);
    expect(table.matchLeading(keyWords(1), 1, SPACE, TIERS_ALL, best)).toBe(1);
  });

  test("many keys are found as one by one", () => {
    const table = tableOf(100);
    const words = new Uint32Array(150 * 8);
    for (let n = 0; n < 150; n++) words.set(keyWords(n), n * 8);
    for (let n = 0; n < 150; n += 2) store(table, n);
    const out = new Int32Array(150).fill(-1);
    table.findMany(words, 150, out);
    expect([...out]).toEqual(Array.from({ length: 150 }, (_, n) => table.find(words, n * 8)));
  });
});

describe("counters and lengths", () => {
  test("uses stop at their maximum", () => {
    const table = tableOf(1);
    const node = store(table, 1);
    for (let i = 0; i < USES_MAX + 5; i++) table.markUsed(node, i);
    expect(table.usesOf(node)).toBe(USES_MAX);
    expect(table.lastUsedOf(node)).toBe(USES_MAX + 4);
  });

  test("one holder too many is refused", () => {
    const table = tableOf(1);
    const onGpu = () => table.insertResident(block(1), 0, SPACE, false, Tier.gpu);
    const node = must(onGpu());
    for (let i = 1; i < 65_535; i++) expect(table.addGpuHolder(node)).toBe(true);
    expect(table.addGpuHolder(node)).toBe(false);
    expect(onGpu()).toBe(InsertRefusal.full);
    for (let i = 0; i < 65_535; i++) table.removeGpuHolder(node);
    expect(table.nodeCount).toBe(0);
  });

  test("a length told by an engine gives way to the writer's, a stored one does not", () => {
    const table = tableOf(2);
    const node = must(table.insertResident(block(1, null, 10), 0, SPACE, false, Tier.gpu));
    must(table.insertWriting(block(1, null, 20), 0, SPACE, false));
    expect([table.bytesOf(node), table.residentBytes(Tier.gpu)]).toEqual([20, 20]);
    must(table.insertResident(block(1, null, 30), 0, SPACE, false, Tier.gpu));
    table.addResidency(node, Tier.ram);
    table.endWrite(node);
    must(table.insertWriting(block(1, null, 40), 0, SPACE, false));
    expect(table.bytesOf(node)).toBe(20);
    expect(table.residentBytes(Tier.ram)).toBe(20);
  });

  test("what was never begun cannot be ended", () => {
    const table = tableOf(3);
    const node = store(table, 2, 1);
    const ghost = table.find(keyWords(1), 0);
    internal(() => table.unlock(node));
    internal(() => table.unpin(node));
    internal(() => table.endWrite(node));
    internal(() => table.removeGpuHolder(node));
    internal(() => table.removeResidency(node, Tier.ssd));
    internal(() => table.addResidency(node, Tier.gpu));
    internal(() => table.addResidency(ghost, Tier.ram));
    internal(() => table.lock(3 as NodeId));
    verifyTable(table);
  });

  test("a namespace beyond 16 bits is a bug of the caller", () => {
    const table = tableOf(2);
    for (const space of [0, 0x1_0000]) {
      internal(() => table.insertWriting(block(1), 0, space as typeof SPACE, false));
    }
  });
});

describe("aliases", () => {
  test("one name leads to several nodes, up to a limit", () => {
    const table = tableOf(NODES_PER_ALIAS_MAX + 1);
    const out = new Int32Array(100);
    for (let n = 0; n < NODES_PER_ALIAS_MAX; n++) {
      expect(table.addAlias(store(table, n), 1, 2)).toBe("added");
    }
    expect(table.addAlias(store(table, 1000), 1, 2)).toBe("full");
    expect(table.addAlias(table.find(keyWords(5), 0), 1, 2)).toBe("present");
    expect(table.nodesOfAlias(1, 2, out)).toBe(NODES_PER_ALIAS_MAX);
    expect(table.nodesOfAlias(2, 1, out)).toBe(0);
    expect(table.nodesOfAlias(1, 2, out.subarray(0, 3))).toBe(3);
  });

  test("one node has several names, up to a limit; all go with it", () => {
    const table = tableOf(100);
    const node = store(table, 1);
    for (let n = 0; n < ALIASES_PER_NODE_MAX; n++) {
      expect(table.addSha256(node, pageBytes(n), 3)).toBe("added");
    }
    expect(table.addSha256(node, pageBytes(999), 3)).toBe("full");
    const out = new Int32Array(2);
    expect(table.nodesOfSha256(pageBytes(7), 3, out)).toBe(1);
    expect(out[0]).toBe(node);
    table.removeResidency(node, Tier.ram);
    expect(table.nodesOfSha256(pageBytes(7), 3, out)).toBe(0);
    expect(table.aliasCount).toBe(0);
    verifyTable(table);
  });

  test("a full table of names refuses the next", () => {
    const table = new BlockTable({ nodesMax: 4, aliasesMax: 1, random: seededRandom(1) });
    const node = store(table, 1);
    expect(table.addAlias(node, 1, 1)).toBe("added");
    expect(table.addAlias(node, 1, 1)).toBe("present");
    expect(table.addAlias(node, 2, 1)).toBe("full");
    expect(table.addSha256(node, pageBytes(1), 3)).toBe("added");
  });
});

describe("verifyTable", () => {
  type Columns = Record<string, Record<number, number>> & {
    lists: { newer: Int32Array; blocks: number; bytes: number }[];
  };
  const breaks: Record<string, (columns: Columns, node: NodeId) => void> = {
    "a child knows its parent": (columns, node) => {
      columns.firstChild![columns.parent![node]!] = columns.parent![node]!;
    },
    "protected children are counted": (columns, node) => {
      columns.protectedChildren![node] = 1;
    },
    "kept children are counted": (columns, node) => {
      columns.keptChildren![node] = 1;
    },
    "the kept flag matches pins and children": (columns, node) => {
      columns.pins![node] = 1;
    },
    "kept bytes are counted": (columns) => {
      Object.assign(columns, { keptBytes: 1 });
    },
    "bytes kept in RAM alone are counted": (columns) => {
      Object.assign(columns, { keptInRamAloneBytes: 1 });
    },
    "the protection flag matches locks and children": (columns, node) => {
      columns.locks![node] = 1;
    },
    "the GPU tier is set by its holders": (columns, node) => {
      columns.gpuHolders![node] = 1;
    },
    "a node is found by its key": (columns, node) => {
      columns.keys![node * 8] = 1;
    },
    "evictable bytes are counted": (columns) => {
      columns.lists[0]!.bytes++;
    },
    "evictable blocks are counted": (columns) => {
      columns.lists[0]!.blocks++;
    },
    "a recency list is linked both ways": (columns, node) => {
      columns.lists[0]!.newer[node] = node;
    },
    "the bytes of a tier are counted": (columns) => {
      columns.residentBytes![1] = 7;
    },
    "no node is lost": (columns) => {
      columns.highest = 5 as never;
    },
  };

  for (const [what, damage] of Object.entries(breaks)) {
    test(`names it: ${what}`, () => {
      const table = tableOf(8);
      store(table, 1);
      const node = store(table, 2, 1);
      store(table, 3, 2);
      verifyTable(table);
      damage((table as unknown as { columns: Columns }).columns, node);
      expect(() => verifyTable(table)).toThrow(what);
    });
  }

  test("names it: a node older than its descendant", () => {
    const table = tableOf(8);
    const parent = store(table, 1);
    const child = store(table, 2, 1);
    const { lists } = (table as unknown as { columns: { lists: Record<string, Int32Array>[] } })
      .columns;
    const { newer, older } = lists[RECENCY_TIERS.indexOf(Tier.ram)] as never as Record<
      "newer" | "older",
      Int32Array
    >;
    [older[0], older[child], older[parent]] = [child, parent, 0];
    [newer[0], newer[child], newer[parent]] = [parent, 0, child];
    expect(() => verifyTable(table)).toThrow("a node is newer than its descendants");
  });
});
