import { expect } from "bun:test";
import { Tier } from "../../../src/store/blocks/index.ts";
import type { PeerTier, SourceHas } from "../../../src/store/index.ts";
import { waitFor } from "../../support/index.ts";
import { Neighbour } from "../exchange/neighbour.ts";
import { type BlockName, chain } from "../names.ts";
import type { SsdKit } from "../ssd/ssd-kit.ts";
import { describeSsd } from "../ssd/use-kit.ts";
import { figuresOf, lookUp, RAM, rankOf, SSD } from "./lookup-kit.ts";

const ID = "0123456789abcdef0123456789abcdef";
const PROMPT = chain("a/b/c/d");

/** Opens a connection of the engine. */
function member(kit: SsdKit, namespace = 1) {
  const engine = kit.engine(namespace);
  expect(engine.holder.engine.join(ID, 0)).toBeNumber();
  return engine;
}

const isInRam = (kit: SsdKit, name: BlockName) =>
  kit.nodeOf(name) !== 0 && kit.store.table.isResident(kit.nodeOf(name), Tier.ram);

describeSsd("a lookup", (it) => {
  it("matches blocks, and reserves the leading ones in RAM until they are acquired", {
    slots: 16,
  }, async ({ kit }) => {
    const [scheduler, worker, writer] = [member(kit), member(kit), kit.engine(2)];
    await worker.put(...PROMPT);
    const { lookup } = lookUp(kit.store, scheduler.holder, [...PROMPT, "x"], { hold: true });
    expect(lookup.isOver).toBe(true);
    expect(figuresOf(lookup.state)).toEqual([4, 4, 0]);
    expect(lookup.state.hold).toBeGreaterThan(0);
    expect([...lookup.state.best]).toEqual([RAM, RAM, RAM, RAM, 0]);
    expect(kit.store.engines.book.stats.bytes).toBe(4 * 8192);
    await kit.settled();
    // Three times the size of RAM.
    for (let i = 0; i < 48; i++) await writer.put(`flood${i}`);
    expect(PROMPT.map((name) => isInRam(kit, name))).toEqual([true, true, true, true]);
    expect(worker.get(...PROMPT)).toEqual(["ok", "ok", "ok", "ok"]);
    expect(kit.store.engines.book.stats).toMatchObject({ bytes: 0, takenBlocks: 4 });
    await kit.settled();
    for (let i = 0; i < 48; i++) await writer.put(`more${i}`);
    expect(PROMPT.some((name) => isInRam(kit, name))).toBe(false);
  });

  it("reserves for the requested number of acquisitions", {}, async ({ kit }) => {
    const [scheduler, worker] = [member(kit), member(kit)];
    await worker.put("a");
    lookUp(kit.store, scheduler.holder, ["a"], { hold: true, readers: 2 });
    worker.get("a");
    expect(kit.store.engines.book.stats.bytes).toBe(8192);
    worker.get("a");
    expect(kit.store.engines.book.stats.bytes).toBe(0);
  });

  it("does not let another engine use its reservation", {}, async ({ kit }) => {
    const [scheduler, stranger] = [member(kit), kit.engine()];
    await stranger.put("a");
    lookUp(kit.store, scheduler.holder, ["a"], { hold: true });
    stranger.get("a");
    expect(kit.store.engines.book.stats.bytes).toBe(8192);
    scheduler.holder.engine.claims.endAll();
  });

  it("has a reservation that expires", {}, async ({ kit }) => {
    const scheduler = member(kit);
    await scheduler.put("a");
    lookUp(kit.store, scheduler.holder, ["a"], { hold: true, holdMs: 500 });
    kit.clock.advance(499);
    expect(kit.store.engines.book.stats.bytes).toBe(8192);
    kit.clock.advance(1);
    expect(kit.store.engines.book.stats).toMatchObject({ bytes: 0, unusedBlocks: 1 });
  });

  it("has a reservation that ends with the last connection of the engine", {}, async ({ kit }) => {
    const [scheduler, worker] = [member(kit), member(kit)];
    await worker.put("a");
    lookUp(kit.store, scheduler.holder, ["a"], { hold: true });
    scheduler.die();
    expect(kit.store.engines.book.stats.bytes).toBe(8192);
    worker.die();
    expect(kit.store.engines.book.stats.bytes).toBe(0);
    expect(kit.store.engines.size).toBe(0);
  });

  it("reserves within its engine's limit, and reports where it ended", {}, async ({ kit }) => {
    const [scheduler, other] = [member(kit), kit.engine()];
    other.holder.engine.join("ff".repeat(16), 0);
    kit.store.engines.book.limits = { bytesMax: 2 * 8192, bytesMaxAll: 3 * 8192 };
    await scheduler.put(...PROMPT);
    const { lookup } = lookUp(kit.store, scheduler.holder, PROMPT, { hold: true });
    expect(figuresOf(lookup.state)).toEqual([4, 2, 0]);
    expect(lookup.state.isBudgetReached).toBe(true);
    // Blocks that are reserved already do not count again.
    const again = lookUp(kit.store, scheduler.holder, PROMPT.slice(0, 2), { hold: true }).lookup;
    expect(again.state).toMatchObject({ ready: 2, isBudgetReached: false });
    // The limit of all engines together.
    const late = lookUp(kit.store, other.holder, PROMPT.slice(0, 3), { hold: true }).lookup;
    expect(late.state).toMatchObject({ leading: 3, ready: 1, isBudgetReached: true });
    expect(scheduler.holder.engine.claims.endById(lookup.state.hold)).toBe(true);
    expect(scheduler.holder.engine.claims.endById(lookup.state.hold)).toBe(false);
    scheduler.die();
    other.die();
  });

  it("answers for the rank with the fewest blocks", { slots: 16 }, async ({ kit }) => {
    const [scheduler, second] = [member(kit), kit.engine(2)];
    // Block names differ between namespaces, as digests do.
    await scheduler.put("a", "b", "c");
    await second.put("r", "s");
    const ranks = [rankOf(kit.store, ["a", "b", "c"]), rankOf(kit.store, ["r", "s", "t"], 2)];
    const { lookup } = lookUp(kit.store, scheduler.holder, ["a", "b", "c"], { ranks, hold: true });
    expect(figuresOf(lookup.state)).toEqual([2, 2, 0]);
    expect(kit.store.engines.book.stats.bytes).toBe(4 * 8192);
    scheduler.holder.engine.claims.endAll();
  });

  it("reads blocks from SSD and reports its progress", { depth: 1, slots: 16 }, async ({
    kit,
    faults,
  }) => {
    const [scheduler, worker] = [member(kit), member(kit)];
    await worker.put(...PROMPT);
    await kit.settled();
    kit.leaveRam();
    faults("load.read:3:freeze");
    const { lookup, partial } = lookUp(kit.store, scheduler.holder, PROMPT, {
      ...{ hold: true, fetch: true },
    });
    expect(lookup.isOver).toBe(false);
    expect(figuresOf(lookup.state)).toEqual([4, 0, 0]);
    expect([...lookup.state.best]).toEqual([SSD, SSD, SSD, SSD]);
    await waitFor(() => lookup.state.ready === 2);
    kit.clock.advance(25);
    expect(partial.at(-1)).toMatchObject({ leading: 4, ready: 2, hold: lookup.state.hold });
    kit.clock.advance(25);
    expect(partial.length).toBeGreaterThanOrEqual(2);
    faults("");
    await lookup.done;
    expect(figuresOf(lookup.state)).toEqual([4, 4, 0]);
    expect(worker.get(...PROMPT)).toEqual(["ok", "ok", "ok", "ok"]);
    expect(kit.store.stats.acquireHitsSsd).toBe(4);
    expect(kit.store.engines.book.stats.bytes).toBe(0);
  });

  it("sends no more heartbeats while the disk hangs", { depth: 1 }, async ({ kit, faults }) => {
    const scheduler = member(kit);
    await scheduler.put("a");
    await kit.settled();
    kit.leaveRam();
    faults("load.read:1:freeze");
    const { lookup, partial } = lookUp(kit.store, scheduler.holder, ["a"], {
      ...{ hold: true, fetch: true },
    });
    for (let i = 0; i < 40; i++) kit.clock.advance(25);
    expect(partial.length).toBeGreaterThan(5);
    expect(partial.length).toBeLessThan(15);
    faults("");
    await lookup.done;
    expect(lookup.state.ready).toBe(1);
    scheduler.die();
  });

  it("answers with the current state at its deadline", { depth: 1 }, async ({ kit, faults }) => {
    const scheduler = member(kit);
    await scheduler.put("a", "b");
    await kit.settled();
    kit.leaveRam();
    await scheduler.fetch(["a"]).then((handles) => scheduler.release(handles));
    faults("load.read:1:freeze");
    const { lookup } = lookUp(kit.store, scheduler.holder, ["a", "b"], {
      ...{ hold: true, fetch: true, deadlineMs: 300 },
    });
    expect(lookup.isOver).toBe(false);
    kit.clock.advance(300);
    await lookup.done;
    expect(figuresOf(lookup.state)).toEqual([2, 1, 0]);
    faults("");
    await kit.settled();
    expect(kit.store.engines.book.stats.bytes).toBe(8192);
    scheduler.die();
  });

  it("ends before a block that cannot be read", {}, async ({ kit, faults }) => {
    const scheduler = member(kit);
    await scheduler.put("a", "b", "c");
    await kit.settled();
    kit.leaveRam();
    faults("load.read:2:EIO");
    const { lookup } = lookUp(kit.store, scheduler.holder, ["a", "b", "c"], {
      ...{ hold: true, fetch: true },
    });
    await lookup.done;
    expect(lookup.state.ready).toBeLessThan(3);
    expect(kit.store.engines.book.stats.bytes).toBe(lookup.state.ready * 8192);
    faults("");
    scheduler.die();
    await kit.settled();
  });

  it("waits for blocks that are being written", {}, async ({ kit }) => {
    const [scheduler, writer] = [member(kit), kit.engine()];
    await writer.put("a");
    const handles = writer.reserve("b", "c");
    const { lookup, partial } = lookUp(kit.store, scheduler.holder, ["a", "b", "c", "d"], {
      ...{ hold: true, wait: true },
    });
    expect(lookup.isOver).toBe(false);
    expect(figuresOf(lookup.state)).toEqual([1, 1, 2]);
    writer.write(handles);
    expect(await writer.commit(handles.slice(0, 1))).toEqual(["ok"]);
    await waitFor(() => lookup.state.ready === 2);
    kit.clock.advance(25);
    expect(partial.at(-1)).toMatchObject({ leading: 2, ready: 2, announced: 1 });
    await writer.commit(handles.slice(1));
    await lookup.done;
    expect(figuresOf(lookup.state)).toEqual([3, 3, 0]);
    scheduler.die();
  });

  it("stops waiting if the writer aborts", {}, async ({ kit }) => {
    const [scheduler, writer] = [member(kit), kit.engine()];
    const handles = writer.reserve("a");
    const { lookup } = lookUp(kit.store, scheduler.holder, ["a"], { wait: true });
    expect(lookup.isOver).toBe(false);
    writer.abort(handles);
    kit.clock.advance(25);
    await lookup.done;
    expect(figuresOf(lookup.state)).toEqual([0, 0, 0]);
  });

  it("waits for announced blocks while the announcement is renewed", {}, async ({ kit }) => {
    const [scheduler, producer] = [member(kit), kit.engine()];
    producer.holder.engine.join("ee".repeat(16), 0);
    const { announced } = producer.holder.engine.group!;
    const { keys } = rankOf(kit.store, ["a", "b"]);
    for (const i of [0, 1]) announced.add(keys, i, 200);
    const ask = () => lookUp(kit.store, scheduler.holder, ["a", "b"], { hold: true, wait: true });
    const { lookup, partial } = ask();
    expect(figuresOf(lookup.state)).toEqual([0, 0, 2]);
    for (let i = 0; i < 20; i++) {
      kit.clock.advance(50);
      for (const at of [0, 1]) announced.add(keys, at, 200);
    }
    expect(lookup.isOver).toBe(false);
    expect(partial.length).toBeGreaterThan(15);
    await producer.put("a");
    await waitFor(() => lookup.state.ready === 1);
    kit.clock.advance(200);
    await lookup.done;
    expect(figuresOf(lookup.state)).toEqual([1, 1, 0]);
    // The announcement of a stored block has been removed.
    expect(kit.store.engines.announcements.size).toBe(0);
    scheduler.die();
  });

  it("stops waiting if the announcing engine has disconnected", {}, async ({ kit }) => {
    const [scheduler, producer] = [member(kit), kit.engine()];
    producer.holder.engine.join("ee".repeat(16), 0);
    const { keys } = rankOf(kit.store, ["a"]);
    producer.holder.engine.group!.announced.add(keys, 0, 60_000);
    const { lookup } = lookUp(kit.store, scheduler.holder, ["a"], { wait: true });
    kit.clock.advance(1_000);
    expect(lookup.isOver).toBe(false);
    producer.die();
    kit.clock.advance(25);
    await lookup.done;
    expect(lookup.state.leading).toBe(0);
  });

  it("ends soon if its source sends nothing while blocks arrive from elsewhere", {
    slots: 64,
  }, async ({ kit }) => {
    const [scheduler, other] = [member(kit), kit.engine(2)];
    kit.store.setPeers(new Neighbour(kit.store, kit.store));
    const wish = { fetch: true, wait: true, source: "elsewhere" };
    const { lookup } = lookUp(kit.store, scheduler.holder, ["a"], wish);
    for (let i = 0; i < 19; i++) {
      expect(lookup.isOver).toBe(false);
      await other.put(`other${i}`);
      kit.clock.advance(25);
    }
    await other.put("other19");
    kit.clock.advance(25);
    expect(lookup.isOver).toBe(true);
    expect(figuresOf(lookup.state)).toEqual([0, 0, 0]);
    kit.store.setPeers(null);
    scheduler.die();
  });

  it("sends heartbeats until it gives up a source whose answers are late", {}, async ({ kit }) => {
    const scheduler = member(kit);
    const peers: PeerTier = new Neighbour(kit.store, kit.store);
    kit.store.setPeers(peers);
    // The first answer promises the block; the second never arrives.
    const answers: Promise<SourceHas[] | null>[] = [Promise.resolve(["coming"])];
    peers.whatHas = () => answers.pop() ?? new Promise(() => undefined);
    const wish = { fetch: true, wait: true, source: "elsewhere" };
    const { lookup, partial } = lookUp(kit.store, scheduler.holder, ["a"], wish);
    await Bun.sleep(0);
    for (let tick = 1; tick < 20; tick++) {
      kit.clock.advance(25);
      await Bun.sleep(0);
      // One heartbeat per tick: a client gives up after 100 ms without one.
      expect([tick, lookup.isOver, partial.length]).toEqual([tick, false, tick]);
    }
    kit.clock.advance(25);
    await lookup.done;
    kit.store.setPeers(null);
    scheduler.die();
  });

  it("ends soon if its source no longer computes the blocks", {}, async ({ kit }) => {
    const scheduler = member(kit);
    const peers: PeerTier = new Neighbour(kit.store, kit.store);
    kit.store.setPeers(peers);
    let said: SourceHas = "coming";
    peers.whatHas = () => Promise.resolve([said]);
    const wish = { fetch: true, wait: true, source: "elsewhere" };
    const { lookup } = lookUp(kit.store, scheduler.holder, ["a"], wish);
    const ticks = async (count: number) => {
      for (let i = 0; i < count; i++) {
        await Bun.sleep(0);
        kit.clock.advance(25);
      }
    };
    await ticks(80);
    expect(lookup.isOver).toBe(false);
    said = "absent";
    await ticks(6);
    await lookup.done;
    expect(figuresOf(lookup.state)).toEqual([0, 0, 0]);
    kit.store.setPeers(null);
    scheduler.die();
  });

  it("fails if its partial answer cannot be written", {}, async ({ kit }) => {
    const [scheduler, writer] = [member(kit), kit.engine()];
    await writer.put("a");
    const handles = writer.reserve("b");
    const wish = { ...{ hold: true, fetch: false, wait: true }, layer: 0xffff_ffff };
    const lookup = scheduler.holder.lookup(
      {
        ...{ ranks: [rankOf(kit.store, ["a", "b"])], count: 2, tiers: RAM, source: "" },
        ...{ ...wish, deadlineMs: 60_000, holdMs: 10_000, readers: 1 },
      },
      () => {
        throw new Error("no room for the answer");
      },
    );
    const ended = lookup.done.catch((thrown: unknown) => thrown);
    kit.clock.advance(25);
    expect(await ended).toEqual(new Error("no room for the answer"));
    expect(kit.store.engines.book.stats.bytes).toBe(0);
    writer.abort(handles);
  });

  it("leaves no locks or reservations when its connection closes", { depth: 1 }, async ({
    kit,
    faults,
  }) => {
    const scheduler = member(kit);
    await scheduler.put("a", "b");
    await kit.settled();
    kit.leaveRam();
    faults("load.read:1:freeze");
    const { lookup } = lookUp(kit.store, scheduler.holder, ["a", "b"], {
      ...{ hold: true, fetch: true },
    });
    scheduler.die();
    await lookup.done;
    expect(kit.store.engines.book.stats.bytes).toBe(0);
    expect(kit.store.engines.lookups.size).toBe(0);
    faults("");
    await kit.settled();
  });

  it("without a reservation reads blocks and locks none afterwards", {}, async ({ kit }) => {
    const engine = kit.engine();
    await engine.put("a", "b");
    await kit.settled();
    kit.leaveRam();
    const { lookup } = lookUp(kit.store, engine.holder, ["a", "b"], { fetch: true });
    await lookup.done;
    expect(lookup.state).toMatchObject({ leading: 2, ready: 2, hold: 0 });
    expect(kit.store.engines.book.stats.bytes).toBe(0);
    expect(engine.get("a", "b")).toEqual(["ok", "ok"]);
  });
});
