import { expect, test } from "bun:test";
import { LAYER_ALL, type NamespaceIndex } from "../../../src/core/index.ts";
import type { PulledBlock } from "../../../src/store/index.ts";
import { describeNative } from "../../support/index.ts";
import { BLOCK_BYTES, digestOf, parentOf } from "../names.ts";
import { namespaceKey, openStoreKit, PAGE, type StoreKit } from "../store-kit.ts";
import { PeerHost } from "./peer-kit.ts";

const SLOTS = 8;
const NAMESPACE = 1 as NamespaceIndex;

function open(slots = SLOTS): { kit: StoreKit; peer: PeerHost } & AsyncDisposable {
  const kit = openStoreKit({ arenaBytes: slots * 2 * PAGE });
  return {
    kit,
    peer: new PeerHost(kit.store),
    [Symbol.asyncDispose]: () => kit[Symbol.asyncDispose](),
  };
}

describeNative("blocks from other hosts", () => {
  test("are readable like any other block after verification", async () => {
    await using it = open();
    const { kit, peer } = it;
    for (const name of ["a", "a/b", "a/b/c"]) peer.pull(name);
    const engine = kit.engine();
    expect(engine.match(["a", "a/b", "a/b/c"])).toEqual([3, 2, 2, 2]);
    expect(engine.get("a", "a/b", "a/b/c")).toEqual(["ok", "ok", "ok"]);
    expect(kit.engine(2).get("a")).toEqual(["miss"]);
    const { stats } = kit.snapshot();
    expect(stats).toMatchObject({ pulledBlocks: 3, pulledBytes: 3 * BLOCK_BYTES });
    kit.expectNothingLeft();
  });

  test("are invisible before their commit and after an abandon", async () => {
    await using it = open();
    const { kit, peer } = it;
    const engine = kit.engine();
    const landing = peer.place("a");
    expect(kit.snapshot()).toMatchObject({ slotsUsed: 1, tableNodes: 0 });
    expect(engine.get("a")).toEqual(["miss"]);
    landing.abandon();
    expect(engine.get("a")).toEqual(["miss"]);
    expect(() => landing.abandon()).toThrow("an incoming block is finished once");
    expect(() => peer.commit("a", landing)).toThrow("an incoming block is finished once");
    expect(kit.snapshot()).toMatchObject({ slotsUsed: 0, tableNodes: 0 });
    kit.expectNothingLeft();
  });

  const lies: [string, Partial<PulledBlock>, string][] = [
    ["another block", { digest: digestOf("b") }, "digest differs from the request"],
    [
      "a digest cut short",
      { digest: digestOf("a").subarray(1) },
      "digest differs from the request",
    ],
    ["another layer", { layer: 3 }, "layer differs from the request"],
    ["another namespace", { namespace: namespaceKey(2) }, "namespace differs from the request"],
    ["no length", { bytes: 0 }, "invalid length"],
    ["a broken length", { bytes: 7.5 }, "invalid length"],
    ["more than was asked for", { bytes: BLOCK_BYTES + 1 }, "longer than requested"],
    ["other bytes", { checksum: 1n }, "checksum mismatch"],
    ["itself as its parent", { parent: digestOf("a") }, "block is its own parent"],
    ["a parent cut short", { parent: new Uint8Array(31) }, "invalid parent digest"],
    ["a name that is none", { aliases: [new Uint8Array(9)] }, "invalid alias length"],
    ["nine names", { aliases: Array(9).fill(new Uint8Array(8)) }, "too many aliases"],
  ];
  for (const [what, lie, why] of lies) {
    test(`${what} is rejected`, async () => {
      await using it = open();
      const { kit, peer } = it;
      expect(peer.commit("a", peer.place("a"), lie)).toEqual({ kind: "corrupt", why });
      expect(kit.engine().get("a", "b")).toEqual(["miss", "miss"]);
      expect(kit.snapshot().stats).toMatchObject({ peerCorruptBlocks: 1, pulledBlocks: 0 });
      expect(kit.snapshot()).toMatchObject({ slotsUsed: 0, tableNodes: 0 });
      kit.expectNothingLeft();
    });
  }

  test("are rejected for a namespace that is unknown to this process", async () => {
    await using it = open();
    const { kit, peer } = it;
    const landing = peer.place("a", { namespace: 9 });
    const said = { namespace: namespaceKey(9) };
    expect(peer.commit("a", landing, said)).toMatchObject({ kind: "corrupt" });
    kit.expectNothingLeft();
  });

  test("arrive with their aliases and the transient flag", async () => {
    await using it = open();
    const { kit, peer } = it;
    const hash = new Uint8Array(8).fill(5);
    const page = new Uint8Array(32).fill(6);
    const arrival = peer.bring("a", {}, { transient: true, aliases: [hash, page] });
    peer.release(arrival);
    const { peerBlocks, table } = kit.store;
    for (const name of [hash, page]) {
      const digest = new Uint8Array(digestOf("a"));
      expect(peerBlocks.find(name, 8)).toMatchObject([
        { namespace: namespaceKey(1), digest, layer: LAYER_ALL, tiers: 2 },
      ]);
    }
    expect(peerBlocks.find(hash, 0)).toEqual([]);
    expect(peerBlocks.find(new Uint8Array(8).fill(9), 8)).toEqual([]);
    expect(peerBlocks.find(new Uint8Array(7), 8)).toEqual([]);
    expect(table.aliasesOf(arrival.node)).toHaveLength(2);
    const loan = await peer.borrow("a");
    expect(loan).toMatchObject({ transient: true, parent: null });
    expect(loan.aliases).toHaveLength(2);
    loan.release();
    kit.expectNothingLeft();
  });

  test("stay locked until their arrival is released, and one release has an effect", async () => {
    await using it = open(2);
    const { kit, peer } = it;
    const engine = kit.engine();
    const arrival = peer.bring("a");
    expect(await engine.put("x", "y")).toEqual(["ok", "full"]);
    peer.release(arrival);
    peer.release(arrival);
    expect(await engine.put("y", "z")).toEqual(["ok", "ok"]);
    expect(engine.get("a")).toEqual(["miss"]);
    kit.expectNothingLeft();
  });

  test("stay locked by one reader if another one releases twice", async () => {
    await using it = open(2);
    const { kit, peer } = it;
    const engine = kit.engine();
    const arrival = peer.bring("a");
    const held = engine.acquire(["a"]);
    arrival.release(true);
    arrival.release(true);
    expect(kit.store.table.locksOf(arrival.node)).toBe(1);
    engine.release(held);
    kit.expectNothingLeft();
  });

  test("evict unlocked blocks, and are full if there are none", async () => {
    await using it = open(4);
    const { kit, peer } = it;
    const engine = kit.engine();
    await engine.put("a", "b", "c", "d");
    const held = engine.acquire(["a", "b", "c"]);
    const landing = peer.place("e");
    expect(peer.land("f")).toBe("full");
    expect(engine.get("a", "b", "c", "d")).toEqual(["ok", "ok", "ok", "miss"]);
    expect(peer.commit("e", landing)).toMatchObject({ kind: "ok" });
    engine.release(held);
  });

  test("reserve at most half of the arena, so that engines can write meanwhile", async () => {
    await using it = open(4);
    const { kit, peer } = it;
    const engine = kit.engine();
    const incoming = ["a", "b"].map((name) => peer.place(name));
    expect(peer.land("c")).toBe("full");
    expect(await engine.put("x", "y")).toEqual(["ok", "ok"]);
    for (const landing of incoming) landing.abandon();
    expect(typeof peer.land("c")).toBe("object");
  });

  test("end no session to get room", async () => {
    await using it = open(2);
    const { kit, peer } = it;
    const engine = kit.engine();
    await engine.put("a", "a/b");
    engine.sessionCommit(7n, "a/b");
    expect(peer.land("c")).toBe("full");
    expect(kit.snapshot().sessions).toBe(1);
    expect(await engine.put("d")).toEqual(["ok"]);
    expect(kit.snapshot().sessions).toBe(0);
  });

  test("are refused with a length that no block can have", async () => {
    await using it = open();
    const { kit, peer } = it;
    const most = kit.store.blockBytesMax;
    for (const bytes of [0, -1, Number.NaN, most + 1]) {
      expect(peer.land("a", { bytes })).toBe("tooLong");
    }
    expect(kit.snapshot().slotsUsed).toBe(0);
  });

  test("move to a slot of their size class if they are much shorter than announced", async () => {
    // Two size classes need two extents.
    await using it = open((192 * 2 ** 20) / (2 * PAGE));
    const { kit, peer } = it;
    const landing = peer.place("a", { bytes: 5 * PAGE });
    const committed = peer.commit("a", landing, { bytes: 100 });
    expect(committed).toMatchObject({ kind: "ok" });
    const { node } = (committed as { arrival: { node: number } }).arrival;
    const { table, slots } = kit.store;
    expect(slots.slotBytesOf(table.slotOf(node as never))).toBe(PAGE);
    expect(kit.engine().get("a")).toEqual(["ok"]);
    (committed as { arrival: { release(used: boolean): void } }).arrival.release(false);
    kit.expectNothingLeft();
  });

  test("need no slot if they are present, and do not reveal other namespaces' keys", async () => {
    await using it = open();
    const { kit, peer } = it;
    await kit.engine().put("a");
    expect(peer.land("a")).toBe("present");
    expect(peer.land("a", { namespace: 2 })).toBe("full");
    expect(kit.snapshot().slotsUsed).toBe(1);
  });

  test("do not delay an engine that writes the same block, whose copy stays", async () => {
    await using it = open();
    const { kit, peer } = it;
    const engine = kit.engine();
    const landing = peer.place("a");
    const handles = engine.reserve("a");
    expect(handles[0]).toMatchObject({ outcome: "ok" });
    engine.write(handles);
    const other = peer.place("a");
    expect(peer.commit("a", other)).toMatchObject({ kind: "unwanted" });
    expect(await engine.commit(handles)).toEqual(["ok"]);
    const committed = peer.commit("a", landing);
    expect(committed).toMatchObject({ kind: "ok" });
    expect(kit.snapshot()).toMatchObject({ slotsUsed: 1, ramBlocks: 1 });
    expect(engine.get("a")).toEqual(["ok"]);
    if (committed.kind === "ok") peer.release(committed.arrival);
    expect(kit.snapshot().stats.pulledBlocks).toBe(0);
    kit.expectNothingLeft();
  });

  test("link to an unknown parent when the parent arrives", async () => {
    await using it = open();
    const { kit, peer } = it;
    peer.pull("a/b/c");
    expect(kit.snapshot()).toMatchObject({ ramBlocks: 1, tableNodes: 2 });
    peer.pull("a/b", "a");
    expect(kit.snapshot()).toMatchObject({ ramBlocks: 3, tableNodes: 3 });
    expect(parentOf("a/b")).toBe("a");
    kit.expectNothingLeft();
  });

  test("are unwanted if their parent link forms a cycle or crosses namespaces", async () => {
    await using it = open();
    const { kit, peer } = it;
    await kit.engine().put("a/b");
    await kit.engine(2).put("z");
    const why = "its parent link would form a cycle";
    for (const parent of ["a/b", "z"]) {
      const landing = peer.place("a");
      const told = peer.commit("a", landing, { parent: digestOf(parent) });
      expect(told).toEqual({ kind: "unwanted", why });
    }
    kit.expectNothingLeft();
  });

  test("evict old entries of a full table, and are refused if no entry becomes free", async () => {
    await using kit = openStoreKit({ arenaBytes: SLOTS * 2 * PAGE, blocksMax: 3 });
    const peer = new PeerHost(kit.store);
    const engine = kit.engine();
    await engine.put("a", "b", "c");
    const held = engine.acquire(["a", "b"]);
    peer.pull("d");
    expect(engine.get("c")).toEqual(["miss"]);
    const more = engine.acquire(["d"]);
    expect(peer.commit("e", peer.place("e"))).toEqual({
      kind: "unwanted",
      why: "the block table is full",
    });
    engine.release([...held, ...more]);
    kit.expectNothingLeft();
  });

  test("leave with their last reader if they are not to be kept", async () => {
    await using it = open();
    const { kit, peer } = it;
    const engine = kit.engine();
    const names = ["a", "a/b"];
    const arrivals = names.map((name) => peer.bring(name, { keep: false }));
    const held = engine.acquire(names);
    for (const arrival of arrivals.reverse()) peer.release(arrival, true);
    expect(engine.get("a", "a/b")).toEqual(["ok", "ok"]);
    engine.release(held);
    expect(kit.snapshot()).toMatchObject({ ramBlocks: 0, slotsUsed: 0, tableNodes: 0 });
    // An unused block is dropped immediately, unless a descendant is stored.
    peer.release(peer.bring("b", { keep: false }));
    expect(kit.snapshot().ramBlocks).toBe(0);
    const arrival = peer.bring("c", { keep: false });
    await engine.put("c/d");
    peer.release(arrival);
    expect(engine.get("c", "c/d")).toEqual(["ok", "ok"]);
    kit.expectNothingLeft();
  });

  test("are counted, listed and measured by namespace", async () => {
    await using it = open();
    const { kit, peer } = it;
    const { peerBlocks } = kit.store;
    expect(peerBlocks.changesOf(NAMESPACE)).toBe(0);
    expect(peerBlocks.usualBytes(NAMESPACE, LAYER_ALL)).toBe(0);
    peer.pull("a");
    await kit.engine().put("b");
    await kit.engine(2).put({ name: "c", bytes: BLOCK_BYTES - 1 });
    expect(peerBlocks.changesOf(NAMESPACE)).toBe(2);
    expect(peerBlocks.usualBytes(NAMESPACE, LAYER_ALL)).toBe(BLOCK_BYTES);
    expect(peerBlocks.usualBytes(2 as NamespaceIndex, LAYER_ALL)).toBe(BLOCK_BYTES - 1);
    const keys = new Set<string>();
    const signal = new AbortController().signal;
    await peerBlocks.eachKey(NAMESPACE, (key) => keys.add(key.toHex()), signal);
    expect(keys.size).toBe(2);
    const wanted = ["a", "b", "c", "d"].map((name) => ({
      digest: digestOf(name),
      layer: LAYER_ALL,
    }));
    const copies = peerBlocks.has(NAMESPACE, wanted);
    expect(copies.map(({ tiers, bytes }) => [tiers, bytes])).toEqual([
      [2, BLOCK_BYTES],
      [2, BLOCK_BYTES],
      [0, 0],
      [0, 0],
    ]);
    const loan = await peer.borrow("a");
    expect({ ...loan }).toMatchObject({
      generation: copies[0]!.generation,
      checksum: copies[0]!.checksum,
    });
    loan.release();
    kit.expectNothingLeft();
  });
});
