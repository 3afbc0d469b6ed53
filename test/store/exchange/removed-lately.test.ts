import { expect } from "bun:test";
import { LAYER_ALL } from "../../../src/core/index.ts";
import { type PulledBlock, purgeBlocks } from "../../../src/store/index.ts";
import { describeNative } from "../../support/index.ts";
import { hashed, type Life, named, ORIGIN, outcomes, useLife } from "../lifecycle/lifecycle-kit.ts";
import { digestOf } from "../names.ts";
import { openStoreKit, PAGE, type StoreKit } from "../store-kit.ts";
import { Neighbour } from "./neighbour.ts";
import { PeerHost } from "./peer-kit.ts";

const SECONDS_30 = 30_000;
const PRUNED = { kind: "unwanted", why: "an ancestor was pruned during the fetch" } as const;

const purge = ({ store }: Pick<Life, "store">, ...names: string[]) =>
  purgeBlocks(
    store,
    names.map((name) => ({ digest: digestOf(name), layer: LAYER_ALL })),
  );

/** A peer that has not carried out the command yet. */
async function hostWith(...names: string[]): Promise<StoreKit> {
  const there = openStoreKit({ arenaBytes: 32 * 2 * PAGE });
  await there.engine().put(...names);
  return there;
}

/** Settings under which no block is being written, so that a test can drop a block from RAM. */
const RAM_ONLY = { writePolicy: "write_back" } as const;

describeNative("a recently removed block is not accepted from a slower peer", () => {
  const it = useLife();

  const pull = (peer: PeerHost, name: string, said: Partial<PulledBlock> = {}) => {
    const landing = peer.land(name);
    if (typeof landing === "string") return landing;
    const committed = peer.commit(name, landing, said);
    if (committed.kind !== "ok") return committed;
    peer.release(committed.arrival);
    return "ok";
  };

  it("after a purge by name, whether or not it was resident", {}, async ({ kit, life }) => {
    await using there = await hostWith("a", "b", "c");
    kit.store.setPeers(new Neighbour(kit.store, there.store));
    const engine = kit.engine();
    expect(await engine.load("a")).toEqual(["ok"]);
    expect(await purge(life, "a", "b")).toEqual(["done", "missing"]);
    for (const name of ["a", "b"]) expect(await engine.load(name)).toEqual(["miss"]);
    expect(await engine.load("c")).toEqual(["ok"]);
    kit.clock.advance(SECONDS_30 - 1);
    expect(await engine.load("a")).toEqual(["miss"]);
    kit.clock.advance(1);
    expect(await engine.load("a")).toEqual(["ok"]);
    kit.store.setPeers(null);
  });

  it("unless an engine has written it again", RAM_ONLY, async ({ kit, life }) => {
    await using there = await hostWith();
    kit.store.setPeers(new Neighbour(kit.store, there.store));
    const peer = new PeerHost(kit.store);
    await purge(life, "a", "b");
    await kit.engine().put("a");
    expect([peer.land("a"), peer.land("b")]).toEqual(["present", "removed"]);
    kit.store.ram.drop(kit.nodeOf("a"), { reason: "evicted", by: null });
    expect([pull(peer, "a"), pull(peer, "b")]).toEqual(["ok", "removed"]);
    kit.store.setPeers(null);
  });

  it("after a flush, for any block", {}, async ({ kit, life }) => {
    await using there = await hostWith("a");
    kit.store.setPeers(new Neighbour(kit.store, there.store));
    const engine = kit.engine();
    await life.own.flush(ORIGIN);
    expect(await engine.load("a")).toEqual(["miss"]);
    kit.clock.advance(SECONDS_30);
    expect(await engine.load("a")).toEqual(["ok"]);
    kit.store.setPeers(null);
  });

  it("after a purge of transient blocks, under any name", {}, async ({ kit, life }) => {
    await using there = await hostWith();
    kit.store.setPeers(new Neighbour(kit.store, there.store));
    const peer = new PeerHost(kit.store);
    const report = await life.own.purgeTransient([hashed(77n)], ORIGIN);
    expect(outcomes(report.results)).toEqual(["missing"]);
    expect(pull(peer, "a", { transient: true })).toMatchObject({ kind: "unwanted" });
    expect(pull(peer, "b")).toBe("ok");
    kit.clock.advance(SECONDS_30);
    expect(pull(peer, "a", { transient: true })).toBe("ok");
    kit.store.setPeers(null);
  });

  it("after a prune of an ancestor", { slots: 32 }, async ({ kit, life }) => {
    await using there = await hostWith("a", "a/b", "a/b/c", "x", "x/y");
    kit.store.setPeers(new Neighbour(kit.store, there.store));
    const engine = kit.engine();
    await engine.put("a", "a/b");
    expect(outcomes((await life.prune("a")).results)).toEqual(["done"]);
    expect(await engine.load("a", "a/b")).toEqual(["ok", "miss"]);
    expect(await engine.load("a/b/c")).toEqual(["miss"]);
    // Unrelated blocks arrive, from their root on.
    expect(await engine.load("x", "x/y")).toEqual(["ok", "ok"]);
    kit.clock.advance(SECONDS_30);
    expect(await engine.load("a", "a/b", "a/b/c")).toEqual(["ok", "ok", "ok"]);
    kit.store.setPeers(null);
  });

  for (const by of ["digest", "hash"] as const) {
    it(`after a ${by} of a block that was not resident`, {}, async ({ kit, life }) => {
      await using there = await hostWith("a", "a/b");
      there.engine().alias("a", 77n);
      kit.store.setPeers(new Neighbour(kit.store, there.store));
      const engine = kit.engine();
      const name = by === "hash" ? hashed(77n) : named("a");
      expect(outcomes((await life.own.prune(name, ORIGIN)).results)).toEqual(["missing"]);
      expect(await engine.load("a", "a/b")).toEqual(["ok", "miss"]);
      kit.clock.advance(SECONDS_30);
      expect(await engine.load("a", "a/b")).toEqual(["ok", "ok"]);
      kit.store.setPeers(null);
    });
  }

  it("if its sender does not know its ancestors", {}, async ({ kit, life }) => {
    await using there = await hostWith("a/b", "w");
    kit.store.setPeers(new Neighbour(kit.store, there.store));
    const engine = kit.engine();
    await engine.put("a");
    await life.prune("a");
    expect(await engine.load("a/b")).toEqual(["miss"]);
    expect(await engine.load("w")).toEqual(["ok"]);
    kit.store.setPeers(null);
  });

  it(
    "and no block is accepted if more were removed than are tracked",
    RAM_ONLY,
    async ({ kit }) => {
      await using there = await hostWith("x");
      kit.store.setPeers(new Neighbour(kit.store, there.store));
      const engine = kit.engine();
      const { incoming } = kit.store;
      const remove = (count: number) => {
        const words = new Uint32Array(8);
        for (words[0] = 0; words[0]! < count; words[0]!++) incoming.removed(words, 0);
      };
      remove(65_536);
      remove(65_536);
      expect(await engine.load("x")).toEqual(["ok"]);
      kit.store.ram.drop(kit.nodeOf("x"), { reason: "evicted", by: null });
      remove(65_537);
      expect(await engine.load("x")).toEqual(["miss"]);
      kit.clock.advance(SECONDS_30);
      expect(await engine.load("x")).toEqual(["ok"]);
      kit.store.ram.drop(kit.nodeOf("x"), { reason: "evicted", by: null });
      for (let i = 0; i < 4_097; i++) incoming.prunedBelow(`${i}`);
      expect(await engine.load("x")).toEqual(["miss"]);
      kit.clock.advance(SECONDS_30);
      expect(await engine.load("x")).toEqual(["ok"]);
      kit.store.setPeers(null);
    },
  );

  it("and prunes are forgotten after their time, also during fetches", {}, async ({ kit }) => {
    await using there = await hostWith();
    kit.store.setPeers(new Neighbour(kit.store, there.store));
    const peer = new PeerHost(kit.store);
    const { incoming } = kit.store;
    await kit.engine().put("x");
    let last = peer.place("x/y");
    for (let i = 0; i < 10_000; i++) {
      incoming.prunedBelow(`${i}`);
      if (i % 1_000 > 0) continue;
      kit.clock.advance(SECONDS_30);
      const next = peer.place("x/y");
      expect(peer.commit("x/y", last, { parent: digestOf("q") })).toEqual(PRUNED);
      last = next;
    }
    last.abandon();
    kit.clock.advance(SECONDS_30);
    expect(pull(peer, "x/y", { parent: digestOf("q") })).toBe("ok");
    kit.store.setPeers(null);
  });
});
