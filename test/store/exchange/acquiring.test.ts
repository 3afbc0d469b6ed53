import { expect, test } from "bun:test";
import { Tier } from "../../../src/store/blocks/index.ts";
import { describeNative, waitFor } from "../../support/index.ts";
import { chain } from "../names.ts";
import type { Handle, StoreEngine } from "../store-engine.ts";
import { openStoreKit, PAGE, type StoreKit } from "../store-kit.ts";
import { Neighbour } from "./neighbour.ts";

const PROMPT = chain("a/b/c/d/e");
const ALL = 15;

interface Two extends AsyncDisposable {
  readonly here: StoreKit;
  readonly there: StoreKit;
  readonly neighbour: Neighbour;
  readonly engine: StoreEngine;
}

/** Two hosts; the second one has the prompt. */
async function open(options: { slots?: number; handles?: number } = {}): Promise<Two> {
  const { slots = 8, handles = 1_000 } = options;
  const here = openStoreKit({ arenaBytes: slots * 2 * PAGE });
  const there = openStoreKit({ arenaBytes: 16 * 2 * PAGE });
  await there.engine().put(...PROMPT);
  const neighbour = new Neighbour(here.store, there.store);
  here.store.setPeers(neighbour);
  return {
    ...{ here, there, neighbour, engine: here.engine(1, handles) },
    async [Symbol.asyncDispose]() {
      here.expectNothingLeft();
      there.expectNothingLeft();
      await here[Symbol.asyncDispose]();
      await there[Symbol.asyncDispose]();
    },
  };
}

const outcomesOf = (handles: readonly Handle[]) => handles.map(({ outcome }) => outcome);

describeNative("requests with peers below SSD", () => {
  test("acquire a block of a peer, which is stored here afterwards", async () => {
    await using it = await open();
    const { here, neighbour, engine } = it;
    await engine.put("a", "a/b");
    expect(await engine.load(...PROMPT)).toEqual(Array(5).fill("ok"));
    expect(neighbour.promised).toEqual([{ from: 2, count: 3 }]);
    expect(neighbour.fetched.map(({ count }) => count)).toEqual([3]);
    expect(here.snapshot().stats).toMatchObject({
      ...{ acquireHits: 5, acquireHitsPeer: 3, acquireHitsSsd: 0, acquireMisses: 0 },
      ...{ pulledBlocks: 3, peerCorruptBlocks: 0 },
    });
    expect(engine.get(...PROMPT)).toEqual(Array(5).fill("ok"));
    expect(neighbour.fetched).toHaveLength(1);
  });

  test("ask no peer if the request forbids it, or no peer is known", async () => {
    await using it = await open();
    const { here, neighbour, engine } = it;
    for (const tiers of [Tier.ram, Tier.ram | Tier.ssd]) {
      expect(outcomesOf(engine.acquire(["a"], { tiers }))).toEqual(["miss"]);
    }
    here.store.setPeers(null);
    expect(outcomesOf(engine.acquire(["a"]))).toEqual(["miss"]);
    expect(neighbour.promised).toEqual([]);
    here.store.setPeers(neighbour);
    const handles = await engine.fetch(["a"], { tiers: Tier.peer });
    expect(outcomesOf(handles)).toEqual(["ok"]);
    engine.release(handles);
  });

  test("miss immediately if no peer promises the block", async () => {
    await using it = await open();
    const { neighbour, engine } = it;
    neighbour.claims = 0;
    expect(outcomesOf(engine.acquire(PROMPT, { stopAtMiss: true }))).toEqual([
      "miss",
      ...Array(4).fill("skipped"),
    ]);
    expect(neighbour.fetched).toEqual([]);
    // A request for any available block does not query the peers without end.
    const many = Array.from({ length: 40 }, (_, i) => `x${i}`);
    expect(new Set(outcomesOf(engine.acquire(many)))).toEqual(new Set(["miss"]));
    expect(neighbour.promised).toHaveLength(1 + 16);
  });

  test("miss if a promise is not kept, and release the later blocks", async () => {
    await using it = await open();
    const { here, there, neighbour, engine } = it;
    const other = there.engine();
    await other.put("z", "z/y", "z/y/x/w");
    neighbour.claims = 4;
    const names = chain("z/y/x/w");
    const handles = await engine.fetch(names, { stopAtMiss: true });
    expect(outcomesOf(handles)).toEqual(["ok", "ok", "miss", "skipped"]);
    engine.release(handles.slice(0, 2));
    expect(engine.holder.held).toBe(0);
    expect(here.snapshot().stats).toMatchObject({ acquireHitsPeer: 2, pulledBlocks: 3 });
    // Blocks fetched for nothing are evictable.
    expect(here.store.table.evictableBlocks(Tier.ram)).toBe(3);
    const whole = await engine.fetch(names);
    expect(outcomesOf(whole)).toEqual(["ok", "ok", "miss", "ok"]);
    engine.release(whole.filter(({ outcome }) => outcome === "ok"));
  });

  test("continue after local blocks in the middle of a run", async () => {
    await using it = await open();
    const { neighbour, engine } = it;
    await engine.put("a", "a/b", "a/b/c");
    const middle = engine.acquire(["a/b/c"]);
    neighbour.claims = 1;
    const handles = await engine.fetch(PROMPT, { stopAtMiss: true });
    expect(outcomesOf(handles)).toEqual(Array(5).fill("ok"));
    expect(handles.every((handle) => engine.proves(handle))).toBe(true);
    expect(neighbour.promised).toEqual([
      { from: 3, count: 2 },
      { from: 4, count: 1 },
    ]);
    engine.release([...middle, ...handles]);
  });

  test("do not fetch a block that a local engine is writing", async () => {
    await using it = await open();
    const { neighbour, engine } = it;
    const handles = engine.reserve("a");
    expect(outcomesOf(engine.acquire(["a"]))).toEqual(["miss"]);
    expect(neighbour.promised).toEqual([]);
    engine.abort(handles);
  });

  test("miss a block of another namespace, on any host", async () => {
    await using it = await open();
    const { here, neighbour } = it;
    await here.engine(2).put("a");
    neighbour.claims = 5;
    expect(outcomesOf(it.engine.acquire(["a"]))).toEqual(["miss"]);
    expect(neighbour.promised).toEqual([]);
  });

  test("are late and cancel the fetch at the deadline, and leave no locks", async () => {
    await using it = await open();
    const { here, neighbour, engine } = it;
    const stuck = Promise.withResolvers<void>();
    neighbour.before = (at) => (at === 1 ? stuck.promise : Promise.resolve());
    const fetching = engine.fetch(["a", "a/b"], { deadlineMs: 500 });
    await waitFor(() => here.snapshot().stats.pulledBlocks === 1);
    here.clock.advance(549);
    expect(neighbour.fetched[0]!.options.signal.aborted).toBe(false);
    expect(neighbour.fetched[0]!.options.deadlineMs).toBe(500);
    here.clock.advance(1);
    const handles = await fetching;
    // Blocks that arrived before the deadline are in RAM.
    expect(outcomesOf(handles)).toEqual(["ok", "late"]);
    engine.release(handles.slice(0, 1));
    expect(neighbour.fetched[0]!.options.signal.aborted).toBe(true);
    expect(engine.holder.held).toBe(0);
    stuck.resolve();
    // Blocks that arrive after the deadline are unlocked.
    await waitFor(() => here.store.table.evictableBlocks(Tier.ram) === 2);
    expect(engine.get("a", "a/b")).toEqual(["ok", "ok"]);
  });

  test("cancel the fetch when the engine disconnects", async () => {
    await using it = await open();
    const { here, neighbour } = it;
    const engine = here.engine();
    const stuck = Promise.withResolvers<void>();
    neighbour.before = () => stuck.promise;
    const fetching = engine.fetch(["a", "a/b"]);
    await waitFor(() => neighbour.fetched.length === 1);
    engine.die();
    expect(neighbour.fetched[0]!.options.signal.aborted).toBe(true);
    expect(outcomesOf(await fetching)).toEqual(["skipped", "skipped"]);
    stuck.resolve();
    await waitFor(() => here.store.table.evictableBlocks(Tier.ram) === 2);
    expect(engine.holder.held).toBe(0);
  });

  test("leave no locks if the engine disconnects after all blocks have arrived", async () => {
    await using it = await open();
    const { here } = it;
    const engine = here.engine();
    const fetching = engine.fetch(["a", "a/b"]);
    await waitFor(() => here.snapshot().stats.pulledBlocks === 2);
    engine.abandon();
    await fetching;
    engine.die();
    expect(here.store.table.evictableBlocks(Tier.ram)).toBe(2);
  });

  test("count a handle from the start of the fetch", async () => {
    await using it = await open({ handles: 3 });
    const { engine } = it;
    const fetching = engine.fetch(PROMPT);
    expect(engine.holder.held).toBe(3);
    const handles = await fetching;
    expect(outcomesOf(handles)).toEqual(["ok", "ok", "ok", "rejected", "rejected"]);
    expect(outcomesOf(engine.acquire(["a"]))).toEqual(["rejected"]);
    engine.release(handles.slice(0, 3));
  });

  test("are full if RAM has no room, and keep their other blocks", async () => {
    await using it = await open({ slots: 2 });
    const { engine } = it;
    await engine.put("a", "a/b");
    const handles = await engine.fetch(PROMPT.slice(0, 3));
    expect(outcomesOf(handles)).toEqual(["ok", "ok", "full"]);
    expect(handles.slice(0, 2).every((handle) => engine.proves(handle))).toBe(true);
    engine.release(handles.slice(0, 2));
  });

  test("miss after a fault of the fetch, and for a block without an answer", async () => {
    await using it = await open();
    const { here, neighbour, engine } = it;
    neighbour.before = () => Promise.reject(new Error("the wire is cut"));
    expect(await engine.load("a", "a/b")).toEqual(["miss", "miss"]);
    const broken = {
      promising: () => 2,
      fetch: () => {
        throw new Error("it is broken");
      },
    };
    here.store.setPeers(broken);
    expect(await engine.load("a", "a/b")).toEqual(["miss", "miss"]);
    const short = { promising: () => 2, fetch: () => Promise.resolve([]) };
    here.store.setPeers(short);
    expect(await engine.load("a", "a/b")).toEqual(["miss", "miss"]);
  });

  test("hit a block that an engine writes during the fetch", async () => {
    await using it = await open();
    const { here, neighbour, engine } = it;
    const asked = Promise.withResolvers<void>();
    neighbour.before = () => asked.promise;
    neighbour.lie = () => ({ layer: 3 });
    const fetching = engine.fetch(["a", "b"]);
    neighbour.claims = 2;
    const both = engine.fetch(["a", "b"]);
    await here.engine().put("a");
    asked.resolve();
    for (const handles of [await fetching, await both]) {
      expect(outcomesOf(handles)).toEqual(["ok", "miss"]);
      engine.release(handles.slice(0, 1));
    }
    expect(here.snapshot().stats).toMatchObject({ acquireHits: 2, acquireHitsPeer: 0 });
    // Only if RAM may answer.
    neighbour.before = () => here.engine().put("c");
    expect(outcomesOf(await engine.fetch(["c"], { tiers: Tier.peer }))).toEqual(["miss"]);
  });

  test("miss a block with false attributes", async () => {
    await using it = await open();
    const { here, neighbour, engine } = it;
    neighbour.lie = ({ checksum }) => ({ checksum: checksum ^ 1n });
    expect(await engine.load("a")).toEqual(["miss"]);
    expect(here.snapshot().stats).toMatchObject({ peerCorruptBlocks: 1, acquireHitsPeer: 0 });
    expect(here.snapshot().slotsUsed).toBe(0);
  });

  test("drop a block that is not to be kept after the request", async () => {
    await using it = await open();
    const { here, neighbour, engine } = it;
    neighbour.keep = false;
    expect(await engine.load(...PROMPT)).toEqual(Array(5).fill("ok"));
    expect(here.snapshot()).toMatchObject({ ramBlocks: 0, slotsUsed: 0, tableNodes: 0 });
    expect(await engine.load("a")).toEqual(["ok"]);
    expect(here.snapshot().stats.acquireHitsPeer).toBe(6);
  });

  test("count blocks of peers in a match only if the peer tier is named", async () => {
    await using it = await open();
    const { neighbour, engine } = it;
    await engine.put("a", "a/b", "a/b/c", "x");
    expect(engine.match(PROMPT)).toEqual([3, 2, 2, 2, 0, 0]);
    expect(neighbour.promised).toEqual([]);
    expect(engine.match(PROMPT, ALL)).toEqual([5, 2, 2, 2, 8, 8]);
    expect(engine.match([...PROMPT, "q"], ALL)).toEqual([5, 2, 2, 2, 8, 8, 0]);
    expect(engine.match(PROMPT, Tier.peer)).toEqual([5, 8, 8, 8, 8, 8]);
    neighbour.claims = 1;
    expect(engine.match(["q", "x", "p"], Tier.ram | Tier.peer)).toEqual([3, 8, 2, 8]);
    expect(neighbour.fetched).toEqual([]);
  });
});
