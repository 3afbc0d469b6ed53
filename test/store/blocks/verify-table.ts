import { assert } from "../../../src/core/index.ts";
import {
  ALIASES_PER_NODE_MAX,
  type AliasIndex,
  type BlockTable,
  type HashIndex,
  NODES_PER_ALIAS_MAX,
  type NodeColumns,
  NodeFlag,
  PROBE_MAX,
  type RecencyList,
  successor,
  TIERS_ALL,
  Tier,
  tierIndex,
} from "../../../src/store/blocks/index.ts";

/** Checks every invariant of the table. Throws INTERNAL with the first violation. */
export function verifyTable(table: BlockTable): void {
  const { columns } = table;
  verifyFreeNodes(columns);
  verifyTree(columns);
  const live: number[] = [];
  for (let node = 1; node <= columns.highest; node++) if (columns.meta[node] !== 0) live.push(node);
  for (const node of live) {
    verifyHeld(columns, node);
    verifyProtection(columns, node);
    const at = node * table.index.width;
    const found = table.index.find(columns.keys, at, table.index.hash(columns.keys, at));
    assert(found === node, "a node is found by its key");
  }
  for (const list of columns.lists) verifyList(columns, list, live);
  verifyTotals(columns, live);
  verifyIndex(table.index, columns.count, (node) => columns.meta[node] !== 0);
  verifyAliases(table.hashes, columns);
  verifyAliases(table.pageKeys, columns);
}

function verifyFreeNodes(columns: NodeColumns): void {
  const { meta, highest, nodesMax } = columns;
  assert(highest <= nodesMax, "nodes in use exist");
  assert(meta[0] === 0 && columns.parent[0] === 0 && columns.firstChild[0] === 0, "node 0 is none");
  let free = 0;
  for (let node = columns.firstFree; node !== 0; node = columns.nextSibling[node]!) {
    assert(meta[node] === 0 && node <= highest, "a node in the free list is free");
    assert(columns.parent[node] === 0 && columns.firstChild[node] === 0, "a free node is alone");
    assert(++free <= highest, "the free list ends");
  }
  assert(free + columns.count === highest, "no node is lost");
}

/** Every live node is reachable from exactly one root, over consistent links. */
function verifyTree(columns: NodeColumns): void {
  const { meta, parent, firstChild, nextSibling, prevSibling } = columns;
  let reached = 0;
  for (let root = 1; root <= columns.highest; root++) {
    if (meta[root] === 0 || parent[root] !== 0) continue;
    assert(nextSibling[root] === 0 && prevSibling[root] === 0, "a root has no siblings");
    for (let node = root; node !== 0; node = successor(columns, node, root)) {
      assert(meta[node] !== 0, "a node in the tree is live");
      assert(++reached <= columns.count, "a node is in the tree once");
      let before = 0;
      for (let child = firstChild[node]!; child !== 0; child = nextSibling[child]!) {
        assert(parent[child] === node, "a child knows its parent");
        assert(prevSibling[child] === before, "siblings are linked both ways");
        assert(meta[child]! >>> 16 === meta[node]! >>> 16, "a path lies in one namespace");
        before = child;
      }
    }
  }
  assert(reached === columns.count, "every live node is in the tree");
}

function verifyHeld(columns: NodeColumns, node: number): void {
  const { meta, gpuHolders, locks, pins, firstChild, parent } = columns;
  const marks = meta[node]!;
  const holds =
    (marks & (TIERS_ALL | NodeFlag.writing)) + locks[node]! + pins[node]! + firstChild[node]!;
  assert(holds !== 0, "a live node has a reason to live");
  assert(marks >>> 16 !== 0, "a live node has a namespace");
  assert(
    gpuHolders[node]! > 0 === ((marks & Tier.gpu) !== 0),
    "the GPU tier is set by its holders",
  );
  if ((marks & NodeFlag.ghost) === 0) return;
  assert((marks & (TIERS_ALL | NodeFlag.writing)) === 0, "a ghost is not resident");
  assert(parent[node] === 0, "a ghost has no parent");
}

function verifyProtection(columns: NodeColumns, node: number): void {
  const { meta, locks, pins, firstChild, nextSibling, protectedChildren, keptChildren } = columns;
  let guarded = 0;
  let kept = 0;
  for (let child = firstChild[node]!; child !== 0; child = nextSibling[child]!) {
    if ((meta[child]! & NodeFlag.ramProtected) !== 0) guarded++;
    if ((meta[child]! & NodeFlag.kept) !== 0) kept++;
  }
  assert(guarded === protectedChildren[node], "protected children are counted");
  assert(kept === keptChildren[node], "kept children are counted");
  const marks = meta[node]!;
  const isKept = pins[node]! > 0 || kept > 0;
  assert(isKept === ((marks & NodeFlag.kept) !== 0), "the kept flag matches pins and children");
  const stays = isKept && (marks & Tier.ram) !== 0 && (marks & Tier.ssd) === 0;
  const wanted = locks[node]! > 0 || guarded > 0 || stays;
  assert(
    wanted === ((marks & NodeFlag.ramProtected) !== 0),
    "the protection flag matches locks and children",
  );
}

function verifyList(columns: NodeColumns, list: RecencyList, live: readonly number[]): void {
  const { meta, parent } = columns;
  const age = new Map<number, number>();
  let bytes = 0;
  let before = 0;
  for (let node = list.older[0]!; node !== 0; node = list.older[node]!) {
    assert(list.newer[node] === before, "a recency list is linked both ways");
    assert(!age.has(node), "a recency list ends");
    age.set(node, age.size);
    bytes += columns.bytes[node]!;
    before = node;
  }
  assert(list.newer[0] === before, "the oldest is the end of its list");
  assert(age.size === list.blocks, "evictable blocks are counted");
  assert(bytes === list.bytes, "evictable bytes are counted");
  for (const node of live) {
    const marks = meta[node]!;
    const isHere = (marks & list.tier) !== 0;
    const guards =
      list.tier === Tier.ssd ? NodeFlag.kept | NodeFlag.ramProtected : NodeFlag.ramProtected;
    const listed = isHere && (marks & guards) === 0;
    assert(listed === age.has(node), "unprotected residents are in their list");
    if (!listed) continue;
    for (let above = parent[node]!; above !== 0; above = parent[above]!) {
      const older = age.get(above) ?? -1;
      assert(older < age.get(node)!, "a node is newer than its descendants");
    }
  }
}

function verifyTotals(columns: NodeColumns, live: readonly number[]): void {
  assert(live.length === columns.count, "live nodes are counted");
  const kept = live.filter((node) => (columns.meta[node]! & NodeFlag.kept) !== 0);
  const onTiers = kept.filter((node) => (columns.meta[node]! & (Tier.ram | Tier.ssd)) !== 0);
  assert(bytesOf(columns, onTiers) === columns.keptBytes, "kept bytes are counted");
  const alone = onTiers.filter((node) => (columns.meta[node]! & Tier.ssd) === 0);
  const aloneBytes = bytesOf(columns, alone);
  assert(aloneBytes === columns.keptInRamAloneBytes, "bytes kept in RAM alone are counted");
  for (const tier of Object.values(Tier)) {
    const residents = live.filter((node) => (columns.meta[node]! & tier) !== 0);
    const bytes = bytesOf(columns, residents);
    const at = tierIndex(tier);
    assert(residents.length === columns.residentBlocks[at], "the blocks of a tier are counted");
    assert(bytes === columns.residentBytes[at], "the bytes of a tier are counted");
  }
}

function bytesOf(columns: NodeColumns, nodes: readonly number[]): number {
  return nodes.reduce((total, node) => total + columns.bytes[node]!, 0);
}

/** Every entry has a different live id and is reachable from its home without an empty place. */
function verifyIndex(index: HashIndex, count: number, isLive: (id: number) => boolean): void {
  const { entries, mask, idMask } = index;
  const seen = new Set<number>();
  for (let place = 0; place <= mask; place++) {
    const entry = entries[place]!;
    if (entry === 0) continue;
    const id = entry & idMask;
    assert(isLive(id), "an indexed id is live");
    assert(!seen.has(id), "an id is indexed once");
    seen.add(id);
    const hash = index.hash(index.words, id * index.width);
    assert((entry & ~idMask) === (hash & ~idMask), "a tag matches the hash of its words");
    const steps = (place - hash) & mask;
    assert(steps < PROBE_MAX, "an entry stands near its home");
    for (let step = 0; step < steps; step++) {
      assert(entries[(hash + step) & mask] !== 0, "no empty place before an entry");
    }
  }
  assert(seen.size === count, "every live id is indexed");
}

/** Every alias is in the chain of one live node, and the limits hold. */
function verifyAliases(aliases: AliasIndex, columns: NodeColumns): void {
  const { firstOfNode, nextOfNode, nodes, width, words } = aliases;
  const sharing = new Map<string, number>();
  let named = 0;
  for (let node = 0; node <= columns.nodesMax; node++) {
    let names = 0;
    for (let entry = firstOfNode[node]!; entry !== 0; entry = nextOfNode[entry]!) {
      assert(columns.meta[node] !== 0, "a named node is live");
      assert(nodes[entry] === node, "an alias belongs to the node that lists it");
      assert(++names <= ALIASES_PER_NODE_MAX, "a node has few aliases");
      const name = words.subarray(entry * width, (entry + 1) * width).join();
      sharing.set(name, (sharing.get(name) ?? 0) + 1);
      named++;
    }
  }
  assert(named === aliases.count, "aliases are counted");
  for (const nodesOfName of sharing.values()) {
    assert(nodesOfName <= NODES_PER_ALIAS_MAX, "an alias has few nodes");
  }
  let free = 0;
  for (let entry = aliases.firstFree; entry !== 0; entry = nextOfNode[entry]!) {
    assert(nodes[entry] === 0, "a free alias has no node");
    assert(++free <= aliases.highest, "the list of free aliases ends");
  }
  assert(free + aliases.count === aliases.highest, "no alias is lost");
  verifyIndex(aliases.index, aliases.count, (entry) => nodes[entry] !== 0);
}
