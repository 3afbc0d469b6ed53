import { describe, expect, test } from "bun:test";
import { NO_NODE, type NodeId, yieldToLoop } from "../../../src/core/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { type PinInfo, subtreeHolders } from "../../../src/store/pins/index.ts";
import { block, must, SPACE } from "../blocks/blocks.ts";
import { BLOCK_BYTES, expectDone, HoldKit, outcomes } from "./hold-kit.ts";
import { verifyPins } from "./verify-pins.ts";

const list = { kind: null, owner: null, after: 0, max: 100 } as const;

describe("counting", () => {
  test("one owner never takes away what another holds", () => {
    const kit = new HoldKit();
    kit.put([1]);
    kit.pin("a", [1]);
    expect(kit.unpin("b", [1])).toEqual([false]);
    kit.pin("b", [1]);
    expect(kit.unpin("b", [1, 1])).toEqual([true, false]);
    expect(kit.pins(1)).toEqual([1]);
    expect(kit.evict()).toEqual([]);
    kit.verify();
  });

  test("a soft pin is not taken back by an unpin, nor a pin by the end of a preference", () => {
    const kit = new HoldKit();
    kit.put([1]);
    kit.pin("a", [1]);
    kit.retain("a", [1], 50, 60_000);
    expect(kit.pins(1)).toEqual([2]);
    expect(kit.holds.letGo("retain", "a", kit.nodes(1, 1))).toEqual([true, false]);
    expect(kit.unpin("a", [1, 1])).toEqual([true, false]);
    expect(kit.evict()).toEqual([1]);
    kit.verify();
  });

  test("of several pins that goes which would end first, and of those that stay the newest", () => {
    const kit = new HoldKit();
    kit.put([1, 2]);
    const ids = [null, 9_000, 3_000, null, 6_000].map((ttl) => kit.pin("a", [1, 2], ttl).id!);
    const gone = ids.map(() => {
      const before = kit.holds.list(list).holds.map(({ id }) => id);
      kit.unpin("a", [1, 2]);
      kit.verify();
      const after = new Set(kit.holds.list(list).holds.map(({ id }) => id));
      return before.find((id) => !after.has(id));
    });
    expect(gone).toEqual([ids[2], ids[4], ids[1], ids[3], ids[0]]);
    expect(kit.pins(1, 2)).toEqual([0, 0]);
  });

  test("thousands of pins on one block cost no more for it", () => {
    const kit = new HoldKit();
    kit.put([1]);
    for (let i = 0; i < 20_000; i++) kit.pin(`owner-${i % 100}`, [1], i % 3 === 0 ? 1e6 + i : null);
    expect(kit.holds.holdersOf(kit.node(1))).toHaveLength(64);
    for (let i = 0; i < 20_000; i++) expect(kit.unpin(`owner-${i % 100}`, [1])[0]).toBe(true);
    kit.verify();
    expect([kit.pins(1), kit.holds.counts().pin.holds]).toEqual([[0], 0]);
  });

  test("a block named twice in one request is held once", () => {
    const kit = new HoldKit();
    kit.put([1]);
    expect(outcomes(kit.pin("a", [1, 1]))).toEqual(["done", "already"]);
    expect(kit.unpin("a", [1, 1])).toEqual([true, false]);
  });

  test("a hold whose blocks go one by one is over with the last", () => {
    const kit = new HoldKit();
    kit.put([1, 2, 3]);
    expectDone(kit.pin("a", [1, 2, 3]));
    kit.unpin("a", [2]);
    expect(kit.holds.list(list).holds).toMatchObject([{ blocks: 2, bytes: 2 * BLOCK_BYTES }]);
    kit.unpin("a", [1, 3]);
    expect(kit.holds.list(list).holds).toEqual([]);
    kit.verify();
  });
});

function isInLease(kit: HoldKit, name: string, n: number): boolean {
  return kit.holds.pinTable.leases.get(name)?.nodes.has(kit.node(n)) ?? false;
}

describe("leases", () => {
  test("a lease is extended, renewed and revoked by its name", async () => {
    const kit = new HoldKit();
    kit.put([1, 2, 3]);
    expectDone(kit.lease("night", [2], 60_000));
    expect(outcomes(kit.holds.extend("night", "router", kit.nodes(2, 3)))).toEqual([
      "already",
      "done",
    ]);
    expect([1, 2, 3].map((n) => isInLease(kit, "night", n))).toEqual([false, true, true]);
    kit.clock.advance(30_000);
    expect(kit.holds.lease("night")).toMatchObject({
      kind: "lease",
      owner: "router",
      blocks: 2,
      bytes: 2 * BLOCK_BYTES,
      remainingMs: 30_000,
      ageMs: 30_000,
    });
    expect(kit.holds.renew("night", 50_000)).toBe(true);
    expect(kit.holds.lease("night")!.remainingMs).toBe(50_000);
    kit.verify();
    expect((await kit.holds.endLease("night"))!.nodes).toEqual(kit.nodes(2, 3));
    expect([kit.pins(1, 2, 3), kit.holds.lease("night")]).toEqual([[0, 0, 0], null]);
    kit.verify();
  });

  test("what is not there is told apart from what is", async () => {
    const kit = new HoldKit();
    kit.put([1]);
    expect(kit.holds.renew("night", 1_000)).toBe(false);
    expect(await kit.holds.endLease("night")).toBeNull();
    expect(isInLease(kit, "night", 1)).toBe(false);
    expect(kit.holds.extend("night", "router", kit.nodes(1)).results).toEqual([
      { outcome: "rejected", reason: "missing: no lease of this name" },
    ]);
    kit.lease("night", [1]);
    expect(kit.lease("night", [1]).results[0]!.reason).toMatch(/^exists: /);
    expect(kit.pins(1)).toEqual([1]);
  });

  test("take blocks of their owner only, and are renewed and ended by anybody", async () => {
    const kit = new HoldKit();
    kit.put([1, 2]);
    kit.lease("night", [1], 60_000);
    const added = kit.holds.extend("night", "another", kit.nodes(2));
    expect(added).toMatchObject({ id: null, figures: { ownerUsedBytes: 0 } });
    expect(added.results[0]!.reason).toMatch(/^owner: /);
    expect([kit.pins(1, 2), kit.holds.lease("night")!.blocks]).toEqual([[1, 0], 1]);
    expect(kit.holds.figures("router").ownerUsedBytes).toBe(BLOCK_BYTES);
    expect(kit.holds.renew("night", 30_000)).toBe(true);
    expect(await kit.holds.endLease("night")).toMatchObject({ info: { owner: "router" } });
  });

  test("last as long as the configuration allows, and that long where nothing is said", () => {
    const kit = new HoldKit();
    kit.leaseTtlMaxMs = 10_000;
    kit.put([1]);
    kit.lease("a", [1]);
    kit.lease("b", [1], 99_999);
    kit.lease("c", [1], 5_000);
    const left = () => ["a", "b", "c"].map((name) => kit.holds.lease(name)!.remainingMs);
    expect(left()).toEqual([10_000, 10_000, 5_000]);
    kit.holds.renew("c", 77_777);
    expect(left()).toEqual([10_000, 10_000, 10_000]);
  });

  test("answer, when they end, only blocks that the table still knows", async () => {
    const kit = new HoldKit();
    kit.put([1, 2]);
    kit.lease("night", [1, 2]);
    kit.table.removeResidency(kit.node(2), Tier.ram);
    expect(kit.pins(2)).toEqual([1]);
    expect((await kit.holds.endLease("night"))!.nodes).toEqual(kit.nodes(1));
    expect(kit.node(2)).toBe(NO_NODE);
    kit.verify();
  });
});

describe("limits", () => {
  const reason = (kit: HoldKit, owner: string) => kit.pin(owner, [1]).results[0]!.reason;

  test("holds, owners, names and blocks have one each, and beyond it nothing changes", () => {
    const kit = new HoldKit({ pinsMax: 2 });
    kit.put([1]);
    expect(reason(kit, "o".repeat(129))).toMatch(/^limit: /);
    expect(reason(kit, "é".repeat(65))).toMatch(/^limit: /);
    expect(kit.lease("l".repeat(129), [1]).results[0]!.reason).toMatch(/^limit: /);
    expect(reason(kit, "é".repeat(64))).toBeUndefined();
    expect(reason(kit, "b")).toBeUndefined();
    expect(kit.pin("c", [1])).toMatchObject({
      id: null,
      results: [{ outcome: "rejected", reason: "limit: at most 2 pins" }],
      figures: { hostUsedBytes: BLOCK_BYTES },
    });
    expect(kit.pins(1)).toEqual([2]);
    kit.verify();
  });

  test("65,536 owners", () => {
    const kit = new HoldKit();
    kit.put([1]);
    for (let n = 0; n < 65_536; n++) kit.pin(`owner-${n}`, [1]);
    expect(reason(kit, "one more")).toMatch(/^limit: at most 65536 owners/);
    expect(reason(kit, "owner-7")).toBeUndefined();
    kit.unpin("owner-8", [1]);
    expect(reason(kit, "one more")).toBeUndefined();
  });

  test("65,536 blocks in one hold", () => {
    const count = 65_540;
    const kit = new HoldKit({ nodesMax: count });
    kit.capacityBytes = 1e12;
    const nodes: NodeId[] = [];
    for (let n = 1; n <= count; n++)
      nodes.push(must(kit.table.insertResident(block(n), 0, SPACE, false, Tier.ram)));
    const none = { name: null, ttlMs: null, priority: null, idleMs: null };
    const { results } = kit.holds.add({ kind: "pin", owner: "a", nodes, ...none });
    expect(results.filter(({ outcome }) => outcome === "done")).toHaveLength(65_536);
    expect(results.at(-1)!.reason).toBe("limit: at most 65536 blocks per pin");
    verifyPins(kit.holds);
  });
});

describe("who holds what", () => {
  test("is said by kind, owner and name, an owner's pins together", () => {
    const kit = new HoldKit();
    kit.put([1]);
    kit.pin("a", [1]);
    kit.pin("a", [1]);
    kit.retain("b", [1], 9, 1_000);
    kit.lease("night", [1]);
    kit.lease("day", [1]);
    expect(kit.holds.holdersOf(kit.node(1))).toEqual([
      { kind: "pin", owner: "a" },
      { kind: "retain", owner: "b" },
      { kind: "lease", owner: "router", name: "night" },
      { kind: "lease", owner: "router", name: "day" },
    ]);
    kit.unpin("a", [1]);
    kit.holds.endLease("night");
    kit.holds.letGo("retain", "b", kit.nodes(1));
    expect(kit.holds.holdersOf(kit.node(1)).map(({ kind }) => kind)).toEqual(["pin", "lease"]);
  });

  test("also below a block, where something is held", () => {
    const kit = new HoldKit();
    kit.put([1, 2, 3, 4]);
    kit.put([1, 2, 5]);
    kit.put([1, 6]);
    kit.pin("a", [4]);
    kit.lease("night", [5]);
    const below = (n: number) => subtreeHolders(kit.table, kit.node(n), [kit.holds]);
    const pin = { kind: "pin" as const, owner: "a" };
    const lease = { kind: "lease" as const, owner: "router", name: "night" };
    expect(below(3)).toEqual([pin]);
    expect(below(5)).toEqual([lease]);
    expect(new Set(below(1))).toEqual(new Set([pin, lease]));
    expect(below(6)).toEqual([]);
  });

  test("a search below a block ends, however much is held", () => {
    const kit = new HoldKit({ nodesMax: 5_000 });
    kit.capacityBytes = 1e9;
    kit.put([1]);
    for (let n = 2; n < 4_000; n++) kit.put([1, n]);
    for (let n = 2; n < 4_000; n++) kit.pin(`owner-${n % 400}`, [n]);
    const found = subtreeHolders(kit.table, kit.node(1), [kit.holds]);
    expect(found).toHaveLength(16);
    expect(new Set(found.map(({ owner }) => owner)).size).toBe(16);
  });

  test("a lost block is said for each holder, and held again when it comes back", async () => {
    const kit = new HoldKit();
    kit.put([1, 2]);
    kit.pin("a", [2]);
    kit.lease("night", [2]);
    kit.table.removeResidency(kit.node(2), Tier.ram);
    kit.holds.lost(kit.node(2), "its checksum is wrong");
    await yieldToLoop();
    const why = "its checksum is wrong";
    expect(kit.said()).toEqual([
      { kind: "hold_lost", hold: "pin", owner: "a", name: null, blocks: 1, why },
      { kind: "hold_lost", hold: "lease", owner: "router", name: "night", blocks: 1, why },
    ]);
    expect(kit.warnings).toHaveLength(2);
    expect(kit.holds.counts().lost).toBe(2);
    kit.put([1, 2]);
    expect(kit.evict()).toEqual([]);
    kit.verify();
  });

  test("what is lost in one turn is said once for each holder and reason", async () => {
    const kit = new HoldKit();
    const path = Array.from({ length: 100 }, (_, i) => i + 1);
    kit.put(path);
    kit.pin("a", [...path, 50]);
    kit.lease("night", [1]);
    for (const n of path) kit.holds.lost(kit.node(n), n === 3 ? "bits" : "gone");
    await yieldToLoop();
    const told = kit.said().map((event) => event.kind === "hold_lost" && { ...event });
    expect(told).toMatchObject([
      { owner: "a", name: null, blocks: 99, why: "gone" },
      { owner: "router", name: "night", blocks: 1, why: "gone" },
      { owner: "a", name: null, blocks: 1, why: "bits" },
    ]);
    expect([kit.warnings.length, kit.holds.counts().lost]).toEqual([3, 101]);
    kit.holds.lost(kit.node(1), "gone");
    await yieldToLoop();
    expect(kit.said()).toHaveLength(5);
  });
});

describe("the list", () => {
  test("is in pages, of one kind, of one owner", () => {
    const kit = new HoldKit();
    kit.put([1]);
    for (let i = 0; i < 10; i++) kit.pin(`owner-${i % 2}`, [1]);
    kit.lease("night", [1]);
    const pages: number[][] = [];
    for (let after: number | null = 0; after !== null; ) {
      const page = kit.holds.list({ kind: "pin", owner: "owner-1", after, max: 2 });
      pages.push(page.holds.map(({ id }: PinInfo) => id));
      after = page.next;
    }
    expect(pages.flat()).toEqual([2, 4, 6, 8, 10]);
    expect(pages.every((page) => page.length <= 2)).toBe(true);
    expect(kit.holds.list({ ...list, kind: "lease" }).holds).toMatchObject([{ name: "night" }]);
    expect(kit.holds.list({ ...list, after: 10 }).holds).toMatchObject([{ id: 11 }]);
  });

  test("a page looks at so many holds and no more", () => {
    const kit = new HoldKit();
    kit.put([1]);
    for (let i = 0; i < 70_000; i++) kit.pin("a", [1]);
    kit.lease("night", [1]);
    const first = kit.holds.list({ ...list, kind: "lease" });
    expect(first).toEqual({ holds: [], next: 65_536 });
    const second = kit.holds.list({ ...list, kind: "lease", after: first.next! });
    expect(second.holds).toHaveLength(1);
    expect(second.next).toBeNull();
  });

  test("goes on where it was, whatever ended in between", () => {
    const kit = new HoldKit();
    kit.put([1]);
    for (let i = 0; i < 5_000; i++) kit.pin("a", [1], 1_000 + i);
    const first = kit.holds.list({ ...list, max: 3_000 });
    for (let i = 0; i < 4_500; i++) kit.unpin("a", [1]);
    const second = kit.holds.list({ ...list, after: first.next!, max: 3_000 });
    expect(second.holds.map(({ id }) => id)).toEqual(
      Array.from({ length: 500 }, (_, i) => 4_501 + i),
    );
  });
});
