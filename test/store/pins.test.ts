import { expect, test } from "bun:test";
import { NO_NODE, type NodeId } from "../../src/core/index.ts";
import { Tier } from "../../src/store/blocks/index.ts";
import { describeNative } from "../support/index.ts";
import { type BlockName, batchOf, chain } from "./names.ts";
import { openStoreKit, PAGE, type StoreKit } from "./store-kit.ts";

const SLOTS = 8;
const open = () => openStoreKit({ arenaBytes: SLOTS * 2 * PAGE });
const names = (prefix: string, count: number) =>
  Array.from({ length: count }, (_, i) => `${prefix}${i}`);

function nodeOf({ store }: StoreKit, name: BlockName): NodeId {
  const batch = batchOf([name]);
  store.deriveKeys(batch, false);
  return store.table.find(batch.keys, 0);
}

function pin(kit: StoreKit, ...blocks: BlockName[]): NodeId[] {
  const nodes = blocks.map((name) => nodeOf(kit, name));
  for (const node of nodes) expect(kit.store.table.pin(node)).toBe(true);
  return nodes;
}

async function flood(kit: StoreKit, prefix: string): Promise<void> {
  const engine = kit.engine();
  for (const name of names(prefix, 3 * SLOTS)) await engine.put(name);
}

describeNative("PIN without an SSD tier", () => {
  test("a pinned block and its ancestors stay in RAM under a flood", async () => {
    await using kit = open();
    const engine = kit.engine();
    await engine.put(...chain("a/b/c"), "a/other", "d");
    const [node] = pin(kit, "a/b/c");
    expect(kit.store.table.keptInRamAloneBytes).toBe(3 * 5_000);
    await flood(kit, "x");
    expect(engine.get(...chain("a/b/c"), "a/other", "d")).toEqual([
      "ok",
      "ok",
      "ok",
      "miss",
      "miss",
    ]);
    kit.store.table.unpin(node!);
    await flood(kit, "y");
    expect(engine.get("a", "a/b", "a/b/c")).toEqual(["miss", "miss", "miss"]);
    kit.expectNothingLeft();
  });

  test("a block pinned twice must be unpinned twice", async () => {
    await using kit = open();
    const engine = kit.engine();
    await engine.put("a");
    const [node] = pin(kit, "a", "a");
    kit.store.table.unpin(node!);
    await flood(kit, "x");
    expect(engine.get("a")).toEqual(["ok"]);
    kit.store.table.unpin(node!);
    await flood(kit, "y");
    expect(engine.get("a")).toEqual(["miss"]);
    kit.expectNothingLeft();
  });

  test("evicted blocks are listed among the departures", async () => {
    await using kit = open();
    await kit.engine().put("a");
    await flood(kit, "x");
    const batch = batchOf(["a"]);
    kit.store.deriveKeys(batch, false);
    expect(kit.store.departures.find(batch.keys, 0)).toEqual({
      reason: "evicted",
      tier: "ram",
      by: null,
      atSeconds: kit.store.nowSeconds(),
    });
  });
});

/** Pins that end on request, those of each level in order. */
class Pins {
  readonly asked: string[] = [];
  readonly soft: NodeId[] = [];
  readonly hard: NodeId[] = [];

  constructor({ store }: StoreKit) {
    store.setPinEviction((tier, why, level) => {
      this.asked.push(level);
      expect(tier).toBe("ram");
      expect(why).toBe(
        `all ${SLOTS} blocks in RAM are protected, ` +
          `${SLOTS * 8192} of ${SLOTS * 8192} bytes are in ` +
          "use, 5000 more are needed",
      );
      const node = this[level].shift();
      if (node !== undefined) store.table.unpin(node);
      return node !== undefined;
    });
  }
}

describeNative("over-pinning", () => {
  test("soft pins end first, then sessions, then pins: admission is always possible", async () => {
    await using kit = open();
    const engine = kit.engine();
    const [soft, sessions, hard] = [names("soft", 2), names("session", 2), names("hard", 4)];
    await engine.put(...soft, ...sessions, ...hard);
    sessions.forEach((name, i) => {
      engine.sessionCommit(BigInt(i + 1), name);
    });
    const pins = new Pins(kit);
    pins.soft.push(...pin(kit, ...soft));
    pins.hard.push(...pin(kit, ...hard));
    const left: BlockName[] = [];
    const all = [...soft, ...sessions, ...hard];
    const held: NodeId[] = [];
    for (let i = 0; i < SLOTS; i++) {
      expect(await engine.put(`new${i}`)).toEqual(["ok"]);
      // Pin the new block, so that it is not evicted next.
      held.push(...pin(kit, `new${i}`));
      left.push(...all.filter((name) => nodeOf(kit, name) === NO_NODE && !left.includes(name)));
    }
    expect(left).toEqual(all);
    expect(pins.asked.filter((level) => level === "hard")).toHaveLength(4);
    for (const node of held) kit.store.table.unpin(node);
    kit.expectNothingLeft();
  });

  test("pin eviction that frees no room stops, and the outcome is full", async () => {
    await using kit = open();
    const engine = kit.engine();
    const blocks = names("a", SLOTS);
    await engine.put(...blocks);
    const read = engine.acquire(blocks);
    const nodes = pin(kit, ...blocks);
    let reliefs = 0;
    kit.store.setPinEviction(() => ++reliefs > 0);
    expect(await engine.put("x")).toEqual(["full"]);
    expect(reliefs).toBe(16);
    engine.release(read);
    for (const node of nodes) kit.store.table.unpin(node);
    expect(await engine.put("x")).toEqual(["ok"]);
    kit.expectNothingLeft();
  });

  test("no pin ends for room that needs none", async () => {
    await using kit = open();
    const engine = kit.engine();
    const blocks = names("a", SLOTS);
    await engine.put(...blocks);
    const read = engine.acquire(blocks);
    let reliefs = 0;
    kit.store.setPinEviction(() => ++reliefs > 0);
    expect(await engine.put("x")).toEqual(["full"]);
    expect(reliefs).toBe(0);
    engine.release(read);
    kit.expectNothingLeft();
  });

  test("pinned blocks are evictable from RAM again when SSD has a copy", async () => {
    await using kit = open();
    const engine = kit.engine();
    await engine.put("a");
    const [node] = pin(kit, "a");
    const { table } = kit.store;
    expect(table.isProtected(node!, Tier.ram)).toBe(true);
    // Simulates a copy: the block becomes evictable, and protected again when the copy is lost.
    table.addResidency(node!, Tier.ssd);
    expect(table.isProtected(node!, Tier.ram)).toBe(false);
    expect(table.isProtected(node!, Tier.ssd)).toBe(true);
    table.removeResidency(node!, Tier.ssd);
    expect(table.isProtected(node!, Tier.ram)).toBe(true);
    await flood(kit, "x");
    expect(engine.get("a")).toEqual(["ok"]);
    table.unpin(node!);
    kit.expectNothingLeft();
  });
});
