import { expect } from "bun:test";
import { LAYER_ALL } from "../../../src/core/index.ts";
import { type IncomingBlock, type PulledBlock, purgeBlocks } from "../../../src/store/index.ts";
import { describeNative } from "../../support/index.ts";
import { hashed, type Life, named, ORIGIN, outcomes, useLife } from "../lifecycle/lifecycle-kit.ts";
import { digestOf } from "../names.ts";
import { PeerHost } from "./peer-kit.ts";

const purge = ({ store }: Life, ...names: string[]) =>
  purgeBlocks(
    store,
    names.map((name) => ({ digest: digestOf(name), layer: LAYER_ALL })),
  );

const REMOVED = { kind: "unwanted", why: "it was removed here during the fetch" } as const;
const PRUNED = { kind: "unwanted", why: "an ancestor was pruned during the fetch" } as const;

describeNative("a block removed during its fetch is discarded", () => {
  const it = useLife();

  const commit = (
    peer: PeerHost,
    name: string,
    at: IncomingBlock,
    said: Partial<PulledBlock> = {},
  ) => {
    const committed = peer.commit(name, at, said);
    if (committed.kind === "ok") peer.release(committed.arrival);
    return committed.kind === "ok" ? "ok" : committed;
  };

  it("after a purge by name, though it is not resident", {}, async ({ kit, life }) => {
    const peer = new PeerHost(kit.store);
    const [first, second, other] = [peer.place("a"), peer.place("a"), peer.place("b")];
    expect(await purge(life, "a")).toEqual(["missing"]);
    expect(commit(peer, "a", first)).toEqual(REMOVED);
    expect(commit(peer, "b", other)).toBe("ok");
    // A fetch that starts afterwards delivers a new block.
    expect(commit(peer, "a", peer.place("a"))).toBe("ok");
    expect(await purge(life, "a")).toEqual(["done"]);
    expect(commit(peer, "a", second)).toEqual(REMOVED);
    expect(kit.engine().get("a")).toEqual(["miss"]);
    expect(kit.store.incoming.areNone).toBe(true);
  });

  it("but an engine's copy written since the purge stays", {}, async ({ kit, life }) => {
    const peer = new PeerHost(kit.store);
    const landing = peer.place("a");
    await purge(life, "a");
    await kit.engine().put("a");
    expect(commit(peer, "a", landing)).toBe("ok");
    expect(kit.store.snapshot().stats.pulledBlocks).toBe(0);
  });

  it("after a flush, for every fetch under way", {}, async ({ kit, life }) => {
    const peer = new PeerHost(kit.store);
    const landing = peer.place("a");
    await life.own.flush(ORIGIN);
    const later = peer.place("b");
    expect(commit(peer, "a", landing)).toEqual(REMOVED);
    expect(commit(peer, "b", later)).toBe("ok");
  });

  it("after a prune of an ancestor", { slots: 32 }, async (test) => {
    const { kit, life } = test;
    const peer = new PeerHost(kit.store);
    const engine = kit.engine();
    await engine.put("a", "a/b", "x", "x/y");
    const names = ["a/b/c", "a/c", "x/y/z", "w", "q/r"];
    const incoming = names.map((name) => peer.place(name));
    expect(outcomes((await life.prune("a")).results)).toEqual(["done"]);
    const told = names.map((name, i) => commit(peer, name, incoming[i]!));
    // The parent of "q" is unknown here; "w" has no parent, according to the peer.
    expect(told).toEqual([PRUNED, PRUNED, "ok", "ok", PRUNED]);
    expect(commit(peer, "q/r", peer.place("q/r"))).toBe("ok");
    expect(engine.get("a")).toEqual(["ok"]);
  });

  it("and every fetch under way is discarded after too many prunes", {}, async ({ kit }) => {
    const { incoming } = kit.store;
    const peer = new PeerHost(kit.store);
    await kit.engine().put("a", "x");
    const before = peer.place("x/y");
    for (let i = 0; i < 4_097; i++) incoming.prunedBelow(`${i}`);
    const after = peer.place("x/y");
    expect(commit(peer, "x/y", before)).toEqual(PRUNED);
    expect(commit(peer, "x/y", after)).toBe("ok");
  });

  it("after a purge of transient blocks, under any name", {}, async ({ kit, life }) => {
    const peer = new PeerHost(kit.store);
    const [first, second] = [peer.place("a"), peer.place("b")];
    const report = await life.own.purgeTransient([hashed(77n), named("zz")], ORIGIN);
    expect(outcomes(report.results)).toEqual(["missing", "missing"]);
    expect(commit(peer, "a", first, { transient: true })).toEqual({
      kind: "unwanted",
      why: "transient blocks were removed during the fetch",
    });
    expect(commit(peer, "b", second)).toBe("ok");
  });

  it("after the revocation of its lease", {}, async ({ kit, life }) => {
    const peer = new PeerHost(kit.store);
    const landing = peer.place("a");
    await kit.engine().put("a");
    expect(outcomes((await life.pause("l", "a")).results)).toEqual(["done"]);
    const report = await life.own.revokeLease("l", ORIGIN);
    expect(outcomes(report.results)).toEqual(["done"]);
    expect(commit(peer, "a", landing)).toEqual(REMOVED);
  });
});
