import { expect, test } from "bun:test";
import { describeNative } from "../support/index.ts";
import { chain } from "./names.ts";
import { openStoreKit, PAGE, type StoreKit } from "./store-kit.ts";

const SLOTS = 8;

function open(): StoreKit {
  return openStoreKit({ arenaBytes: SLOTS * 2 * PAGE });
}

/** More blocks than RAM has room for. */
const flood = (prefix: string) => Array.from({ length: 12 }, (_, i) => `${prefix}${i}`);

async function press(kit: StoreKit, prefix: string): Promise<void> {
  const other = kit.engine();
  for (const name of flood(prefix)) await other.put(name);
}

describeNative("sessions", () => {
  test("lock their last block and all its ancestors, and outlive the engine", async () => {
    await using kit = open();
    const engine = kit.engine();
    await engine.put(...chain("a/b/c"));
    expect(engine.sessionCommit(1n, "a/b")).toBe("ok");
    engine.die();
    await press(kit, "x");
    const other = kit.engine();
    expect(other.match(chain("a/b/c"))[0]).toBe(2);
    expect(other.holder.sessionStatus(1n)).toEqual({ known: true, blocks: 2, bytes: 10_000 });
    expect(other.sessionRelease(1n)).toBe("ok");
    kit.expectNothingLeft();
  });

  test("I1: after a release matching depends only on the tree", async () => {
    await using kit = open();
    const engine = kit.engine();
    await engine.put(...chain("a/b"));
    engine.sessionCommit(1n, "a/b");
    expect(engine.sessionRelease(1n)).toBe("ok");
    // Released blocks are found until their room is needed.
    expect(engine.get("a", "a/b")).toEqual(["ok", "ok"]);
    expect(engine.holder.sessionStatus(1n).known).toBe(false);
    expect(engine.sessionRelease(1n)).toBe("miss");
    await press(kit, "x");
    expect(engine.get("a", "a/b")).toEqual(["miss", "miss"]);
  });

  test("I2: a commit never reduces the blocks of the session", async () => {
    await using kit = open();
    const engine = kit.engine();
    const turns = chain("a/b/c/d");
    await engine.put("a");
    engine.sessionCommit(1n, "a");
    for (const [turn, block] of turns.entries()) {
      await engine.put(block);
      await press(kit, `x${turn}-`);
      expect(engine.sessionCommit(1n, block)).toBe(engine.match([block])[0] === 1 ? "ok" : "miss");
      expect(engine.match(turns)[0]).toBeGreaterThanOrEqual(1);
    }
    // A missing block leaves the session unchanged.
    expect(engine.sessionCommit(1n, "elsewhere")).toBe("miss");
    await press(kit, "y");
    expect(engine.get("a")).toEqual(["ok"]);
  });

  test("I2: the lock moves forward with each turn, and not back for a late one", async () => {
    await using kit = open();
    const engine = kit.engine();
    await engine.put(...chain("a/b/c"));
    for (const block of ["a", "a/b", "a/b/c"]) {
      engine.sessionCommit(1n, block);
      expect(engine.holder.sessionStatus(1n).blocks).toBe(block.split("/").length);
    }
    await press(kit, "x");
    expect(engine.match(chain("a/b/c"))[0]).toBe(3);
    expect(engine.sessionCommit(1n, "a")).toBe("ok");
    await press(kit, "y");
    expect(engine.match(chain("a/b/c"))[0]).toBe(3);
  });

  test("I3: matching changes nothing", async () => {
    await using kit = open();
    const engine = kit.engine();
    await engine.put(...chain("a/b"));
    await engine.put("z");
    const before = kit.snapshot();
    for (let i = 0; i < 5; i++) expect(engine.match(chain("a/b"))[0]).toBe(2);
    const { stats, ...rest } = kit.snapshot();
    expect(rest).toEqual({ ...rest, tableNodes: before.tableNodes, slotsUsed: before.slotsUsed });
    expect(stats.matchBlocks).toBe(before.stats.matchBlocks + 10);
    // The eviction order is unchanged too: a/b was the oldest and is evicted first.
    for (let i = 0; i < 6; i++) await engine.put(`x${i}`);
    expect(engine.match(chain("a/b"))[0]).toBe(1);
  });

  test("I4: engines without a session are unaffected", async () => {
    const outcomes: unknown[] = [];
    for (const withSession of [false, true]) {
      await using kit = open();
      const [engine, other] = [kit.engine(), kit.engine()];
      if (withSession) {
        await other.put("s");
        other.sessionCommit(9n, "s");
        other.sessionRelease(9n);
        other.gpuEvicted("s");
      }
      outcomes.push([await engine.put("a", "b"), engine.get("a", "b", "c"), engine.match(["a"])]);
    }
    expect(outcomes[1]).toEqual(outcomes[0]);
  });

  test("I5: every lock is released, also if several sessions end in one block", async () => {
    await using kit = open();
    const engine = kit.engine();
    await engine.put(...chain("a/b"));
    for (const session of [1n, 2n, 3n]) engine.sessionCommit(session, "a/b");
    engine.sessionCommit(3n, "a/b");
    for (const session of [1n, 2n]) engine.sessionRelease(session);
    await press(kit, "x");
    expect(engine.match(chain("a/b"))[0]).toBe(2);
    engine.sessionRelease(3n);
    await press(kit, "y");
    expect(engine.match(chain("a/b"))[0]).toBe(0);
    expect(kit.snapshot().sessions).toBe(0);
  });

  test("end oldest first if nothing else can free room", async () => {
    await using kit = open();
    const engine = kit.engine();
    const names = flood("s").slice(0, SLOTS);
    await engine.put(...names);
    names.forEach((name, i) => {
      expect(engine.sessionCommit(BigInt(i + 1), name)).toBe("ok");
    });
    expect(engine.sessionCommit(1n, names[0]!)).toBe("ok");
    expect(await engine.put("x")).toEqual(["ok"]);
    expect(engine.match([names[0]!])[0]).toBe(1);
    expect(engine.match([names[1]!])[0]).toBe(0);
    expect(engine.sessionRelease(2n)).toBe("miss");
    expect(engine.sessionRelease(1n)).toBe("ok");
    for (let i = 3; i <= SLOTS; i++) expect(engine.sessionRelease(BigInt(i))).toBe("ok");
    kit.expectNothingLeft();
  });

  test("end an hour after the last commit", async () => {
    await using kit = open();
    const engine = kit.engine();
    await engine.put("a", "b");
    kit.store.evictor.start(1_000);
    engine.sessionCommit(1n, "a");
    kit.clock.advance(3_000_000);
    engine.sessionCommit(2n, "b");
    kit.clock.advance(700_000);
    expect(engine.sessionRelease(1n)).toBe("miss");
    expect(engine.sessionRelease(2n)).toBe("ok");
    kit.expectNothingLeft();
  });

  test("have a non-zero number, which is local to the namespace", async () => {
    await using kit = open();
    const [mine, theirs] = [kit.engine(1), kit.engine(2)];
    await mine.put("a");
    await theirs.put("b");
    expect(mine.sessionCommit(0n, "a")).toBe("rejected");
    expect(mine.sessionCommit(2n ** 64n - 1n, "a")).toBe("ok");
    expect(theirs.sessionCommit(2n ** 64n - 1n, "b")).toBe("ok");
    expect(mine.sessionRelease(2n ** 64n - 1n)).toBe("ok");
    expect(theirs.holder.sessionStatus(2n ** 64n - 1n).known).toBe(true);
  });
});
