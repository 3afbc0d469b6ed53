import { describe, expect, test } from "bun:test";
import { CommitFlag, type CopyEnd } from "../../src/store/index.ts";
import { handleBatch } from "./store-engine.ts";
import { openStoreKit, PAGE } from "./store-kit.ts";

const SLOTS = 8;
const open = () => openStoreKit({ arenaBytes: 4 * SLOTS * PAGE });

/** A reserved slot with its bytes written, and a device copy under way. */
function lend(kit: ReturnType<typeof open>, name: string) {
  const engine = kit.engine();
  const handles = engine.reserve(name);
  engine.write(handles);
  const lent = engine.holder.copyTarget(handleBatch(handles), 0)!;
  return { engine, handles, lent };
}

describe("a slot that a device copies to", () => {
  test("is committed when the copy has ended, not before", async () => {
    await using kit = open();
    const { engine, handles, lent } = lend(kit, "a");
    expect(lent).toMatchObject({ offset: handles[0]!.offset, bytes: handles[0]!.bytes });
    const later = engine.commit(handles);
    await new Promise((resolve) => setImmediate(resolve));
    expect(engine.match(["a"])[0]).toBe(0);
    lent.end("done");
    expect(await later).toEqual(["ok"]);
    expect(await engine.get("a")).toEqual(["ok"]);
    kit.expectNothingLeft();
  });

  test.each<CopyEnd>(["failed", "leaked"])("is not stored where the copy %s", async (how) => {
    await using kit = open();
    const { engine, handles, lent } = lend(kit, "a");
    lent.end(how);
    expect(await engine.commit(handles)).toEqual(["corrupt"]);
    expect(await engine.get("a")).toEqual(["miss"]);
    // A copy that cannot be stopped occupies its slot permanently.
    expect(kit.snapshot().slotsQuarantined).toBe(how === "leaked" ? 1 : 0);
    expect(engine.holder.held).toBe(0);
  });

  test("waits for all of several copies, and one failure makes it corrupt", async () => {
    await using kit = open();
    const { engine, handles, lent } = lend(kit, "a");
    const other = engine.holder.copyTarget(handleBatch(handles), 0)!;
    const later = engine.commit(handles);
    lent.end("failed");
    expect(engine.holder.held).toBe(1);
    other.end("done");
    expect(await later).toEqual(["corrupt"]);
    kit.expectNothingLeft();
  });

  test("is reused after an abort only when the copy has ended", async () => {
    await using kit = open();
    const { engine, handles, lent } = lend(kit, "a");
    expect(engine.abort(handles)).toEqual(["ok"]);
    expect(engine.abort(handles)).toEqual(["stale"]);
    expect(kit.snapshot().slotsQuarantined).toBe(1);
    expect(engine.holder.held).toBe(1);
    lent.end("done");
    expect(kit.snapshot()).toMatchObject({ slotsQuarantined: 0, slotsUsed: 0 });
    kit.expectNothingLeft();
  });

  test("is reused after its process has exited only when the copy has ended", async () => {
    await using kit = open();
    const { engine, lent } = lend(kit, "a");
    engine.die();
    expect(kit.snapshot()).toMatchObject({ slotsQuarantined: 1, slotsUsed: 1 });
    lent.end("done");
    expect(kit.snapshot()).toMatchObject({ slotsQuarantined: 0, slotsUsed: 0 });
    kit.expectNothingLeft();
  });

  test("is not published if its process exits while the commit waits", async () => {
    await using kit = open();
    const { engine, handles, lent } = lend(kit, "a");
    const batch = handleBatch(handles);
    batch.flags[0] = CommitFlag.checksumGiven;
    batch.checksum[0] = engine.checksumsOf(handles)[0]!;
    const later = engine.holder.commit(batch);
    engine.die();
    lent.end("done");
    await later;
    expect(kit.engine().match(["a"])[0]).toBe(0);
    kit.expectNothingLeft();
  });

  test("must be reserved: committed, acquired and unknown slots are refused", async () => {
    await using kit = open();
    const engine = kit.engine();
    await engine.put("a");
    const read = engine.acquire(["a"]);
    expect(engine.holder.copyTarget(handleBatch(read), 0)).toBeNull();
    const other = kit.engine().reserve("b");
    expect(engine.holder.copyTarget(handleBatch(other), 0)).toBeNull();
    expect(engine.holder.copySource(handleBatch(other), 0)).toBeNull();
    engine.release(read);
    expect(engine.holder.copySource(handleBatch(read), 0)).toBeNull();
    kit.expectNothingLeft();
  });
});

describe("a slot that a device copies from", () => {
  test("stays locked after its reader has released it", async () => {
    await using kit = open();
    const engine = kit.engine();
    await engine.put("a");
    const handles = engine.acquire(["a"]);
    const lent = engine.holder.copySource(handleBatch(handles), 0)!;
    engine.release(handles);
    // Every other block may be evicted for these, but not the source of the copy.
    const wanted = Array.from({ length: 2 * SLOTS }, (_, i) => `other${i}`);
    for (const name of wanted) await engine.put(name);
    expect(engine.match(["a"])[0]).toBe(1);
    expect(await lent.isWhole()).toBe(true);
    lent.end("done");
    for (const name of wanted) await engine.put(`more-${name}`);
    expect(engine.match(["a"])[0]).toBe(0);
    kit.expectNothingLeft();
  });

  test.each([5_000, 300_000])("of %d bytes is whole, or not", async (bytes) => {
    await using kit = openStoreKit({ arenaBytes: 2 ** 20 });
    const engine = kit.engine();
    await engine.put({ name: "a", bytes });
    const handles = engine.acquire(["a"]);
    const lent = engine.holder.copySource(handleBatch(handles), 0)!;
    expect(await lent.isWhole()).toBe(true);
    kit.region.fill(lent.offset + bytes - 8, 8, 99n);
    expect(await lent.isWhole()).toBe(false);
    lent.end("done");
    engine.release(handles);
    kit.expectNothingLeft();
  });
});
