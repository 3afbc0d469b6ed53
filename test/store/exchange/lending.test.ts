import { expect } from "bun:test";
import { LAYER_ALL, type NamespaceIndex } from "../../../src/core/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import { purgeBlocks } from "../../../src/store/index.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import { chain, digestOf } from "../names.ts";
import type { SsdKit } from "../ssd/ssd-kit.ts";
import { useSsdKit } from "../ssd/use-kit.ts";
import { openStoreKit } from "../store-kit.ts";
import { Neighbour } from "./neighbour.ts";
import { PeerHost } from "./peer-kit.ts";

const NAMESPACE = 1 as NamespaceIndex;

async function onSsd(kit: SsdKit, ...names: string[]): Promise<void> {
  await kit.engine().put(...names);
  await kit.settled();
  kit.leaveRam();
}

const tiersOf = (kit: SsdKit, name: string): number =>
  kit.store.peerBlocks.has(NAMESPACE, [{ digest: digestOf(name), layer: LAYER_ALL }])[0]!.tiers;

describeNative("blocks served to peers", () => {
  const it = useSsdKit();

  it("come from RAM immediately, with all their attributes", {}, async ({ kit }) => {
    const peer = new PeerHost(kit.store);
    await kit.engine().put("a", { name: "a/b", alias: 7n, transient: true }, "q/r");
    const loan = peer.lend("a/b");
    if (loan instanceof Promise || typeof loan === "string") throw new Error("it is in RAM");
    expect(peer.proves("a/b", loan)).toBe(true);
    expect(loan).toMatchObject({ layer: LAYER_ALL, bytes: 5_000, transient: true });
    expect([loan.digest, loan.parent]).toEqual(
      ["a/b", "a"].map((name) => new Uint8Array(digestOf(name))),
    );
    expect(loan.aliases).toEqual([new Uint8Array(Uint8Array.of(7, 0, 0, 0, 0, 0, 0, 0))]);
    loan.release();
    // The parent is named but was never stored.
    const orphan = await peer.borrow("q/r");
    expect(orphan.parent).toEqual(new Uint8Array(32));
    orphan.release();
    expect(await peer.lend("none")).toBe("absent");
    expect(await peer.lend("a", { namespace: 2 })).toBe("absent");
    expect(kit.store.snapshot().stats).toMatchObject({ lentBlocks: 2, lentBytes: 10_000 });
  });

  it("are checked after being served, and damaged ones read from SSD", {}, async (t) => {
    const { kit } = t;
    const peer = new PeerHost(kit.store);
    const engine = kit.engine();
    await engine.put("a");
    await kit.settled();
    const [handle] = engine.acquire(["a"]);
    engine.flip(handle!);
    engine.release([handle!]);
    const loan = await peer.borrow("a");
    expect(peer.proves("a", loan)).toBe(false);
    await kit.until(() => kit.store.checks.stats.damaged.peer === 1, "the check");
    // The client may still be receiving the block.
    expect(kit.store.slots.quarantinedSlots).toBe(1);
    loan.release();
    expect(kit.store.slots.quarantinedSlots).toBe(0);
    const again = await peer.borrow("a");
    expect(peer.proves("a", again)).toBe(true);
    again.release();
    expect(kit.health.raised.size).toBe(0);
  });

  it("have at most eight of their aliases", {}, async ({ kit }) => {
    const peer = new PeerHost(kit.store);
    const engine = kit.engine();
    await engine.put("a");
    for (let hash = 1n; hash <= 12n; hash++) engine.alias("a", hash);
    const loan = await peer.borrow("a");
    expect(loan.aliases).toHaveLength(8);
    loan.release();
  });

  it("are not evicted meanwhile, nor their ancestors", { slots: 3 }, async ({ kit }) => {
    const peer = new PeerHost(kit.store);
    const engine = kit.engine();
    await engine.put("a", "a/b");
    const loans = await Promise.all([peer.borrow("a/b"), peer.borrow("a/b")]);
    expect(await engine.put("x", "y")).toEqual(["ok", "full"]);
    await kit.settled();
    loans[0]!.release();
    loans[0]!.release();
    expect(await engine.put("y")).toEqual(["ok"]);
    expect(loans.every((loan) => peer.proves("a/b", loan))).toBe(true);
    loans[1]!.release();
    await kit.settled();
    expect(await engine.put("z", "w")).toEqual(["ok", "ok"]);
    await kit.settled();
  });

  it("keep their generation until they are stored anew", {
    writePolicy: "write_back",
  }, async (test) => {
    const { kit } = test;
    const peer = new PeerHost(kit.store);
    const { peerBlocks, table } = kit.store;
    const wanted = [{ digest: digestOf("a"), layer: LAYER_ALL }];
    await kit.engine().put("a");
    const first = peerBlocks.has(NAMESPACE, wanted)[0]!;
    expect(first.generation).not.toBe(0n);
    const loan = await peer.borrow("a");
    expect(loan.generation).toBe(first.generation);
    loan.release();
    kit.store.ram.drop(kit.nodeOf("a"));
    await kit.engine().put("a");
    expect(peerBlocks.has(NAMESPACE, wanted)[0]!.generation).not.toBe(first.generation);
    expect(table.residentBlocks(Tier.ram)).toBe(1);
  });

  it("are read from SSD into RAM", {}, async ({ kit }) => {
    const peer = new PeerHost(kit.store);
    await onSsd(kit, ...chain("a/b"));
    const { peerBlocks } = kit.store;
    const wanted = [{ digest: digestOf("a/b"), layer: LAYER_ALL }];
    const [copy] = peerBlocks.has(NAMESPACE, wanted);
    expect(copy).toMatchObject({ tiers: Tier.ssd, bytes: 5_000, generation: 0n });
    const loans = await Promise.all([peer.borrow("a/b"), peer.borrow("a/b")]);
    for (const loan of loans) {
      expect(peer.proves("a/b", loan)).toBe(true);
      expect(loan.checksum).toBe(copy!.checksum);
      loan.release();
    }
    expect(kit.store.ssdStats).toMatchObject({ readBlocks: 1, sharedReads: 1 });
    expect(tiersOf(kit, "a/b")).toBe(Tier.ram | Tier.ssd);
    // The block is in the eviction order as not yet requested.
    expect(kit.store.table.evictableBlocks(Tier.ram)).toBe(1);
    const keys: string[] = [];
    const signal = new AbortController().signal;
    await peerBlocks.eachKey(NAMESPACE, (key) => keys.push(key.toHex()), signal);
    expect(keys).toHaveLength(2);
    keys.length = 0;
    await peerBlocks.eachKey(NAMESPACE, (key) => keys.push(key.toHex()), AbortSignal.abort());
    expect(keys).toEqual([]);
  });

  it("are busy if RAM has no room", { slots: 2 }, async ({ kit }) => {
    const peer = new PeerHost(kit.store);
    await onSsd(kit, "a");
    const engine = kit.engine();
    await engine.put("x", "x/y");
    engine.sessionCommit(9n, "x/y");
    await kit.settled();
    expect(await peer.lend("a")).toBe("busy");
    // No session ends for a peer's request.
    expect(kit.store.sessions.size).toBe(1);
    engine.sessionRelease(9n);
    const loan = await peer.borrow("a");
    expect(peer.proves("a", loan)).toBe(true);
    loan.release();
  });

  it("are busy after the deadline if the disk is slow", {}, async (test) => {
    const { kit, faults } = test;
    const peer = new PeerHost(kit.store);
    await onSsd(kit, "a");
    faults("load.read:1:freeze");
    const lent = Promise.resolve(peer.lend("a", { deadlineMs: 100 }));
    await waitFor(() => kit.ssd.reader.reading === 1);
    await kit.clock.advanceAsync(100, 50);
    expect(await lent).toBe("busy");
    faults("");
    await kit.settled();
    // The read has completed, and its block is unlocked.
    expect(kit.store.table.evictableBlocks(Tier.ram)).toBe(1);
    (await peer.borrow("a")).release();
  });

  it("are busy if the disk hangs", {}, async ({ kit, faults }) => {
    const peer = new PeerHost(kit.store);
    await onSsd(kit, "a", "b");
    faults("load.read:1+:freeze");
    const lent = Promise.resolve(peer.lend("a", { deadlineMs: 1_000 }));
    await kit.clock.advanceAsync(6_000, 250);
    expect(await lent).toBe("busy");
    expect(await peer.lend("b")).toBe("busy");
    expect(tiersOf(kit, "b")).toBe(0);
    faults("");
    await kit.settled();
    await kit.until(() => kit.ssd.readable);
  });

  it("are never damaged", {}, async ({ kit, faults }) => {
    const peer = new PeerHost(kit.store);
    await onSsd(kit, "a");
    faults("load.read:1+:flip");
    expect(typeof (await peer.lend("a"))).toBe("string");
    faults("");
    await kit.settled();
    expect(await peer.lend("a")).toBe("absent");
  });
});

describeNative("blocks from other hosts above an SSD tier", () => {
  const it = useSsdKit();

  it("one request waits for SSD and peers at the same time, each within its deadline", {
    readDeadlineMs: 100,
  }, async ({ kit, faults }) => {
    await using there = openStoreKit({ arenaBytes: 2 ** 16 });
    await there.engine().put("a/b", "a/b/c");
    const neighbour = new Neighbour(kit.store, there.store);
    kit.store.setPeers(neighbour);
    const names = chain("a/b/c");
    await onSsd(kit, "a");
    const engine = kit.engine();
    const handles = await engine.fetch(names);
    expect(handles.map(({ outcome }) => outcome)).toEqual(["ok", "ok", "ok"]);
    expect(handles.every((handle) => engine.proves(handle))).toBe(true);
    expect(kit.store.stats).toMatchObject({ acquireHitsSsd: 1, acquireHitsPeer: 2 });
    engine.release(handles);
    // The SSD read is late after its 100 ms; the peer has until the request's deadline.
    await kit.settled();
    await purgeBlocks(
      kit.store,
      ["a/b/c", "a/b"].map((name) => ({ digest: digestOf(name), layer: LAYER_ALL })),
    );
    kit.clock.advance(30_000);
    kit.leaveRam();
    faults("load.read:1:freeze");
    const go = Promise.withResolvers<void>();
    neighbour.before = () => go.promise;
    const slow = engine.fetch(names, { deadlineMs: 1_000 });
    await waitFor(() => kit.ssd.reader.reading === 1 && neighbour.fetched.length === 2);
    await kit.clock.advanceAsync(900, 50);
    go.resolve();
    const later = await slow;
    expect(later.map(({ outcome }) => outcome)).toEqual(["late", "ok", "ok"]);
    engine.release(later.slice(1));
    faults("");
    await kit.settled();
    kit.store.setPeers(null);
  });

  it("have known lengths after a restart", {}, async ({ kit, reopen }) => {
    await onSsd(kit, "a");
    const again = await reopen();
    const { peerBlocks } = again.store;
    expect(peerBlocks.usualBytes(NAMESPACE, LAYER_ALL)).toBe(5_000);
    expect(peerBlocks.changesOf(NAMESPACE)).toBe(0);
  });

  it("are written to SSD like blocks of engines", {}, async ({ kit }) => {
    const peer = new PeerHost(kit.store);
    peer.pull("a", "a/b");
    await kit.settled();
    kit.leaveRam();
    expect(peer.land("a")).toBe("present");
    expect(await kit.engine().load("a", "a/b")).toEqual(["ok", "ok"]);
    peer.release(peer.bring("c", {}, { transient: true }));
    peer.release(peer.bring("d", { keep: false }));
    await kit.settled();
    expect(["c", "d"].map((name) => kit.ssdHolds(name))).toEqual([false, false]);
    // Its use does not write it to SSD either: it is dropped after the request.
    const engine = kit.engine();
    const arrival = peer.bring("d", { keep: false });
    const held = engine.acquire(["d"]);
    arrival.release(true);
    await kit.settled();
    expect(engine.proves(held[0]!)).toBe(true);
    engine.release(held);
    expect(engine.get("d")).toEqual(["miss"]);
    expect(kit.ssdHolds("d")).toBe(false);
  });

  it("are fetched from a peer if SSD cannot read them, and their file stays", {}, async (test) => {
    const { kit, faults } = test;
    const peer = new PeerHost(kit.store);
    await onSsd(kit, "a", "b");
    const { node } = await hang(kit, peer, faults);
    expect(node).toBe(kit.nodeOf("a"));
    expect(kit.ssdHolds("a")).toBe(true);
    expect(await kit.engine().load("a")).toEqual(["ok"]);
    // While "b" is being read, the read owns its slot in RAM.
    const reading = peer.place("b");
    expect(peer.commit("b", reading)).toMatchObject({ kind: "unwanted" });
    faults("");
    await kit.settled();
    await kit.until(() => kit.ssd.readable);
    kit.leaveRam();
    expect(await kit.engine().load("a", "b")).toEqual(["ok", "ok"]);
  });

  it("do not replace a readable file on SSD", {}, async ({ kit }) => {
    const peer = new PeerHost(kit.store);
    const landing = peer.place("a");
    await onSsd(kit, "a");
    const bytes = 4_999;
    expect(peer.commit("a", landing, { bytes })).toEqual({ kind: "unwanted", why: "it is on SSD" });
    expect(await kit.engine().load("a")).toEqual(["ok"]);
  });

  it("replace a file that is unreadable and differs", {}, async (test) => {
    const { kit, faults } = test;
    const peer = new PeerHost(kit.store);
    await onSsd(kit, "a", "b");
    await hang(kit, peer, faults, 4_999);
    expect(kit.ssdHolds("a")).toBe(false);
    faults("");
    await kit.settled();
    await kit.until(() => kit.ssd.readable);
    expect(await kit.engine().load("a")).toEqual(["ok"]);
    expect(kit.store.table.bytesOf(kit.nodeOf("a"))).toBe(4_999);
  });

  /** Makes the disk hang in a read of "b", while "a" arrives from a peer. */
  async function hang(kit: SsdKit, peer: PeerHost, faults: (text: string) => void, bytes = 5_000) {
    faults("load.read:1:freeze");
    const reading = kit.engine().fetch(["b"], { deadlineMs: 10 });
    await kit.clock.advanceAsync(6_000, 250);
    expect((await reading)[0]!.outcome).toBe("late");
    expect(kit.ssd.readable).toBe(false);
    const arrival = peer.bring("a", { bytes });
    arrival.release(false);
    return arrival;
  }
});
