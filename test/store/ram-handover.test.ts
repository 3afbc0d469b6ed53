import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import fc from "fast-check";
import { LAYER_ALL, seededRandom } from "../../src/core/index.ts";
import { loadNative } from "../../src/native/index.ts";
import type { RetentionRow } from "../../src/store/index/index.ts";
import {
  adoptRam,
  decodeRamRecord,
  describeRam,
  encodeRamRecord,
  Namespaces,
  type RamRecord,
  TieredStore,
} from "../../src/store/index.ts";
import { describeNative } from "../support/index.ts";
import { batchOf, chain, digestOf } from "./names.ts";
import { StoreEngine } from "./store-engine.ts";
import { openStoreKit, PAGE, type StoreKit } from "./store-kit.ts";
import { verifyStore } from "./verify-store.ts";

const NAMESPACE = new Uint8Array(32).fill(7);

/** A store of 16 slots and the namespaces of its engines. */
function open() {
  const namespaces = new Namespaces();
  const kit = openStoreKit({ arenaBytes: 32 * PAGE });
  return { kit, namespaces, namespace: namespaces.indexOf(NAMESPACE)! };
}

/** A store of the next process over the same memory. */
function successor({ region, queue, clock }: StoreKit, arenaBytes = region.bytes): TieredStore {
  const store = new TieredStore({
    native: loadNative(),
    region,
    queue,
    clock,
    random: seededRandom(8),
    blocksMax: 256,
    gpuWindowBlocks: 0,
    policy: "lru",
    marks: { high: 1, low: 1 },
  });
  store.slots.addReady(arenaBytes);
  return store;
}

function recordOf(kit: StoreKit, namespaces: Namespaces): RamRecord {
  return decodeRamRecord(encodeRamRecord(describeRam(kit.store, namespaces, "arena-1")!))!;
}

describeNative("RAM after a handover", () => {
  test("has every block byte for byte, with its attributes", async () => {
    const { kit, namespaces, namespace } = open();
    await using _ = kit;
    const engine = kit.engine(namespace);
    await engine.put(...chain("a/b/c"), { name: "x", bytes: 8_000 }, ...chain("a/d"));
    expect(engine.alias("a/b", 77n)).toBe("ok");
    engine.die();
    const record = recordOf(kit, namespaces);
    expect(record).toMatchObject({ arena: "arena-1", count: 5 });
    const store = successor(kit);
    const theirs = new Namespaces();
    expect(adoptRam(store, theirs, record)).toBe(true);
    verifyStore(store);
    const index = theirs.indexOf(NAMESPACE)!;
    const holder = store.openEngineSession({ namespace: index, handlesMax: 100 });
    const reader = new StoreEngine(store, kit.region, holder);
    expect(reader.get(...chain("a/b/c"), "x", "a/d")).toEqual(["ok", "ok", "ok", "ok", "ok"]);
    expect(reader.acquire(["x"])[0]!.bytes).toBe(8_000);
    const digests = new Uint8Array(32);
    holder.resolve(new Uint8Array(new BigUint64Array([77n]).buffer), 1, LAYER_ALL, digests);
    expect(digests.toHex()).toBe(digestOf("a/b").toHex());
    await store[Symbol.asyncDispose]();
  });

  test("has the namespaces with a MAC key, also those without blocks", async () => {
    const { kit, namespaces, namespace } = open();
    await using _ = kit;
    namespaces.indexOf(new Uint8Array(32).fill(8));
    namespaces.setMacKeyId(namespace, "ab".repeat(16));
    const record = recordOf(kit, namespaces);
    const store = successor(kit);
    const theirs = new Namespaces();
    expect(adoptRam(store, theirs, record)).toBe(true);
    const ids = [7, 8].map((n) => theirs.macKeyIdOf(theirs.find(new Uint8Array(32).fill(n))!));
    expect(ids).toEqual(["ab".repeat(16), null]);
    await store[Symbol.asyncDispose]();
  });

  test("keeps the order of use", async () => {
    const { kit, namespaces, namespace } = open();
    await using _ = kit;
    const engine = kit.engine(namespace);
    for (const name of ["old", "older", "new"]) await engine.put(name);
    for (const name of ["older", "old", "new"]) {
      kit.clock.advance(1_000);
      engine.get(name);
    }
    const store = successor(kit);
    expect(adoptRam(store, new Namespaces(), recordOf(kit, namespaces))).toBe(true);
    const holder = store.openEngineSession({ namespace, handlesMax: 100 });
    const reader = new StoreEngine(store, kit.region, holder);
    store.ram.dropOne();
    expect(["old", "older", "new"].map((name) => reader.match([name])[0])).toEqual([1, 0, 1]);
    store.ram.dropOne();
    expect(["old", "older", "new"].map((name) => reader.match([name])[0])).toEqual([0, 0, 1]);
    await store[Symbol.asyncDispose]();
  });

  test("has the pinned blocks, which can be pinned again", async () => {
    const { kit, namespaces, namespace } = open();
    await using _ = kit;
    const engine = kit.engine(namespace);
    await engine.put(...chain("a/b"), "c");
    const batch = batchOf(["a/b"]);
    kit.store.deriveKeys(batch, false);
    expect(kit.store.table.pin(kit.store.table.find(batch.keys, 0))).toBe(true);
    engine.die();
    const store = successor(kit);
    expect(adoptRam(store, new Namespaces(), recordOf(kit, namespaces))).toBe(true);
    // Pins are restored from their own records; the table starts without protection.
    expect(store.table.keptBytes).toBe(0);
    store.table.pin(store.table.find(batch.keys, 0));
    expect(store.table.keptBytes).toBe(2 * 5_000);
    const reader = new StoreEngine(
      store,
      kit.region,
      store.openEngineSession({ namespace, handlesMax: 100 }),
    );
    for (let i = 0; i < 40; i++) await reader.put(`x${i}`);
    expect(reader.get(...chain("a/b"), "c")).toEqual(["ok", "ok", "miss"]);
    await store[Symbol.asyncDispose]();
  });

  test("is not handed over while a slot is in use or the arena is growing", async () => {
    const { kit, namespaces, namespace } = open();
    await using _ = kit;
    const engine = kit.engine(namespace);
    await engine.put("a");
    const [slot] = engine.reserve("b");
    expect(describeRam(kit.store, namespaces, "arena-1")).toBeNull();
    engine.abort([slot!]);
    expect(describeRam(kit.store, namespaces, "arena-1")).not.toBeNull();
    engine.reserve("b");
    // The process may still write to the slot, which is freed when the process exits.
    engine.holder.abandon();
    expect(describeRam(kit.store, namespaces, "arena-1")).toBeNull();
    engine.holder.buried();
  });

  test("is refused by an arena of another size, and if the record is invalid", async () => {
    const { kit, namespaces, namespace } = open();
    await using _ = kit;
    await kit.engine(namespace).put(...chain("a/b"));
    const record = recordOf(kit, namespaces);
    const small = successor(kit, PAGE);
    expect(adoptRam(small, new Namespaces(), record)).toBe(false);
    const other = { ...record, arenaBytes: record.arenaBytes + PAGE };
    const store = successor(kit);
    expect(adoptRam(store, new Namespaces(), other)).toBe(false);
    record.namespaces.fill(99);
    expect(adoptRam(store, new Namespaces(), record)).toBe(false);
    await small[Symbol.asyncDispose]();
    await store[Symbol.asyncDispose]();
  });
});

describe("the handover record", () => {
  const record = (count: number): RamRecord => ({
    arena: "boot/1:2",
    arenaBytes: 2 ** 40,
    extentBytes: 2 ** 26,
    namespaceKeys: ["ab".repeat(32)],
    macKeyIds: ["cd".repeat(16)],
    count,
    digests: new Uint8Array(count * 32).fill(1),
    parents: new Uint8Array(count * 32),
    layers: new Uint32Array(count).fill(0xffff_ffff),
    namespaces: new Uint32Array(count),
    bytes: new Uint32Array(count).fill(4_097),
    lastSeen: new Uint32Array(count).fill(1_700_000_000),
    uses: new Uint32Array(count).fill(65_535),
    flags: new Uint32Array(count).fill(1),
    checksums: new BigUint64Array(count).fill(0xfedc_ba98_7654_3210n),
    macs: new Uint8Array(count * 16).fill(7),
    offsets: Float64Array.from({ length: count }, (_, i) => i * 8192),
    aliases: new Uint8Array(count * 40).fill(9),
    holds: null,
  });

  test("round-trips", () => {
    for (const count of [0, 1, 77]) {
      expect(decodeRamRecord(encodeRamRecord(record(count)))).toEqual(record(count));
    }
  });

  const hold = (id: number, blocks: number, more: Partial<RetentionRow> = {}): RetentionRow => ({
    ...{ id, kind: "pin", owner: "a \u{1f525}", name: null, deadlineBootMs: null, bootId: "boot" },
    ...{ priority: null, idleMs: null, createdWallMs: 1_700_000_000_000 },
    purges: id === 5,
    blocks: new Uint8Array(blocks * 36).fill(id),
    ...more,
  });
  const holds = {
    holds: [
      hold(1, 2),
      hold(5, 1, { kind: "lease", name: "night", deadlineBootMs: 123_456.5 }),
      hold(9, 3, { kind: "retain", priority: 7, idleMs: 60_000 }),
    ],
    lastSeen: { bootId: "boot", bootMs: 99_000.25 },
  };

  test("includes pins and leases", () => {
    for (const count of [0, 3]) {
      const written = { ...record(count), holds };
      expect(decodeRamRecord(encodeRamRecord(written))).toEqual(written);
      const none = { ...record(count), holds: { holds: [], lastSeen: null } };
      expect(decodeRamRecord(encodeRamRecord(none))).toEqual(none);
    }
  });

  test("of version 1 is readable: it had no holds and no MACs", () => {
    const text = readFileSync(join(import.meta.dir, "golden/ram-record-1.hex"), "utf8");
    const bytes = Uint8Array.fromHex(text.replaceAll("\n", ""));
    expect(decodeRamRecord(bytes)).toEqual({
      ...{ ...record(3), macKeyIds: [] },
      macs: new Uint8Array(3 * 16),
    });
  });

  test("of a later version is refused", () => {
    const bytes = encodeRamRecord(record(3));
    const view = new DataView(bytes.buffer);
    view.setUint32(8, view.getUint32(8, true) + 1, true);
    const sumAt = bytes.length - 8;
    view.setBigUint64(sumAt, Bun.hash.xxHash3(bytes.subarray(0, sumAt)), true);
    expect(decodeRamRecord(bytes)).toBeNull();
  });

  test("is refused as a whole if one bit differs or it is truncated", () => {
    const good = encodeRamRecord({ ...record(3), holds });
    fc.assert(
      fc.property(fc.integer({ min: 0, max: good.length * 8 - 1 }), (bit) => {
        const bad = good.slice();
        bad[bit >> 3] = bad[bit >> 3]! ^ (1 << (bit & 7));
        expect(decodeRamRecord(bad)).toBeNull();
      }),
      { numRuns: 2_000 },
    );
    for (const length of [0, 7, 16, 100, good.length - 1]) {
      expect(decodeRamRecord(good.subarray(0, length))).toBeNull();
    }
  });
});
