import { describe, expect, test } from "bun:test";
import { NO_NODE, type NodeId } from "../../../src/core/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { OTHER_SPACE, SPACE } from "../blocks/blocks.ts";
import { expectDone, HoldKit } from "./hold-kit.ts";

/** Blocks of one prompt, each with the 64-bit hash an engine knows it by. */
function prompt(kit: HoldKit, path: readonly number[]): void {
  kit.put(path);
  for (const n of path) kit.table.addAlias(kit.node(n), 1_000 + n, 7);
}

/** The block of the namespace that an engine knows by this hash; NO_NODE without one. */
function named(kit: HoldKit, n: number, namespace = SPACE): NodeId {
  const found = new Int32Array(8);
  const count = kit.table.nodesOfAlias(1_000 + n, 7, found);
  const nodes = [...found.subarray(0, count)] as NodeId[];
  return nodes.find((node) => kit.table.namespaceOf(node) === namespace) ?? NO_NODE;
}

/** As a command does: by hash, leaving out what leads nowhere. */
function pinByHash(kit: HoldKit, hashes: number[]): number {
  const nodes = hashes.map((n) => named(kit, n)).filter((node) => node !== NO_NODE);
  const none = { name: null, ttlMs: null, priority: null, idleMs: null };
  const { results } = kit.holds.add({ kind: "pin", owner: "a", nodes, ...none });
  return results.filter(({ outcome }) => outcome === "done").length;
}

function unpinByHash(kit: HoldKit, hashes: number[]): number {
  const nodes = hashes.map((n) => named(kit, n)).filter((node) => node !== NO_NODE);
  return kit.holds.letGo("pin", "a", nodes).filter(Boolean).length;
}

describe("pinning by hash", () => {
  test("test_block_hash_index_populated_on_insert: a hash leads to the block put under it", () => {
    const kit = new HoldKit();
    expect(named(kit, 1)).toBe(NO_NODE);
    prompt(kit, [1]);
    expect(named(kit, 1)).toBe(kit.node(1));
    expect(named(kit, 1, OTHER_SPACE)).toBe(NO_NODE);
  });

  test("test_block_hash_index_multiple_pages: each block of a prompt has its entry", () => {
    const kit = new HoldKit();
    prompt(kit, [1, 2, 3, 4]);
    expect([1, 2, 3, 4].map((n) => named(kit, n))).toEqual(kit.nodes(1, 2, 3, 4));
    expect(kit.table.aliasCount).toBe(4);
    expect(pinByHash(kit, [1, 2, 3, 4])).toBe(4);
  });

  test("test_index_cleared_on_reset: when pins and blocks are gone, so is every trace", () => {
    const kit = new HoldKit();
    prompt(kit, [1, 2, 3]);
    pinByHash(kit, [1, 2, 3]);
    expect(kit.evict()).toEqual([]);
    unpinByHash(kit, [1, 2, 3]);
    kit.evict();
    expect([kit.table.nodeCount, kit.table.aliasCount, kit.table.keptBytes]).toEqual([0, 0, 0]);
    expect(kit.holds.counts().pin).toEqual({ holds: 0, blocks: 0, bytes: 0 });
    kit.verify();
  });

  test("test_index_cleared_on_evict: an evicted block's hash leads nowhere", () => {
    const kit = new HoldKit();
    prompt(kit, [1, 2]);
    expect(kit.evict(Tier.ram, 1)).toEqual([2]);
    expect([named(kit, 1), named(kit, 2)]).toEqual([kit.node(1), NO_NODE]);
  });

  test("test_pin_unknown_hash: pins nothing and changes nothing", () => {
    const kit = new HoldKit();
    prompt(kit, [1]);
    expect(pinByHash(kit, [55])).toBe(0);
    expect(kit.holds.counts().pin.holds).toBe(0);
    expect(kit.evict()).toEqual([1]);
    kit.verify();
  });

  test("test_unpin_unknown_hash: lets nothing go", () => {
    const kit = new HoldKit();
    prompt(kit, [1]);
    expect(unpinByHash(kit, [55])).toBe(0);
    expect(unpinByHash(kit, [1])).toBe(0);
    pinByHash(kit, [1]);
    expect(unpinByHash(kit, [55])).toBe(0);
    expect(kit.pins(1)).toEqual([1]);
  });

  test("test_pin_sets_lock_ref_and_removes_from_evictable: counted, and in no list", () => {
    const kit = new HoldKit();
    prompt(kit, [1, 2]);
    pinByHash(kit, [2]);
    expect(kit.pins(2)).toEqual([1]);
    expect(kit.table.isProtected(kit.node(2), Tier.ram)).toBe(true);
    expect(kit.table.evictableBlocks(Tier.ram)).toBe(0);
    expect(kit.table.oldest(Tier.ram)).toBe(NO_NODE);
  });

  test("test_unpin_restores_evictable_status: uncounted, and back in the list", () => {
    const kit = new HoldKit();
    prompt(kit, [1, 2]);
    pinByHash(kit, [2]);
    expect(unpinByHash(kit, [2])).toBe(1);
    expect(kit.pins(2)).toEqual([0]);
    expect(kit.table.isProtected(kit.node(2), Tier.ram)).toBe(false);
    expect(kit.table.evictableBlocks(Tier.ram)).toBe(2);
    expect(kit.table.oldest(Tier.ram)).toBe(kit.node(2));
  });

  test("test_pin_survives_eviction_unpin_does_not: A stays while pinned, B goes", () => {
    const kit = new HoldKit();
    prompt(kit, [1]);
    prompt(kit, [2]);
    pinByHash(kit, [1]);
    expect(kit.evict()).toEqual([2]);
    unpinByHash(kit, [1]);
    expect(kit.evict()).toEqual([1]);
  });

  test("test_double_pin_requires_double_unpin: once is not enough", () => {
    const kit = new HoldKit();
    prompt(kit, [1]);
    pinByHash(kit, [1]);
    pinByHash(kit, [1]);
    unpinByHash(kit, [1]);
    expect(kit.evict()).toEqual([]);
    unpinByHash(kit, [1]);
    expect(kit.evict()).toEqual([1]);
    expect(unpinByHash(kit, [1])).toBe(0);
  });

  test("test_pin_protects_ancestors: a pinned leaf keeps what it builds upon", () => {
    const kit = new HoldKit();
    prompt(kit, [1, 2, 3]);
    prompt(kit, [1, 2, 4]);
    pinByHash(kit, [3]);
    expect(kit.evict()).toEqual([4]);
    expect([1, 2, 3].map((n) => kit.table.isKept(kit.node(n)))).toEqual([true, true, true]);
    unpinByHash(kit, [3]);
    expect(kit.evict()).toEqual([3, 2, 1]);
  });
});

describe("pins and tiers", () => {
  test("RAM gives up what SSD has; SSD never does", () => {
    const kit = new HoldKit();
    kit.put([1, 2]);
    expectDone(kit.pin("a", [2]));
    for (const n of [1, 2]) kit.table.addResidency(kit.node(n), Tier.ssd);
    expect(kit.evict(Tier.ram)).toEqual([2, 1]);
    expect(kit.evict(Tier.ssd)).toEqual([]);
    for (const n of [1, 2]) kit.table.addResidency(kit.node(n), Tier.ram);
    expect(kit.evict(Tier.ram)).toEqual([2, 1]);
    kit.unpin("a", [2]);
    expect(kit.evict(Tier.ssd)).toEqual([2, 1]);
    expect(kit.table.nodeCount).toBe(0);
  });

  test("what is only on SSD can be pinned and unpinned", () => {
    const kit = new HoldKit();
    kit.put([1, 2], Tier.ssd);
    expectDone(kit.pin("a", [1]));
    expect(kit.evict(Tier.ssd)).toEqual([2]);
    expect(kit.unpin("a", [1])).toEqual([true]);
    expect(kit.evict(Tier.ssd)).toEqual([1]);
    kit.verify();
  });
});
