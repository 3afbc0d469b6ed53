import { describe, expect, test } from "bun:test";
import type { NamespaceIndex } from "../../../src/core/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import type { SessionPage } from "../../../src/store/pins/index.ts";
import { block, must, OTHER_SPACE, SPACE } from "../blocks/blocks.ts";
import { BLOCK_BYTES, SmallTier } from "./small-tier.ts";

const numbers = (page: SessionPage) => page.sessions.map(({ session }) => session);

function withSessions(count: number): SmallTier {
  const tier = new SmallTier(64);
  for (let n = 1; n <= count; n++) {
    tier.put([n]);
    tier.commit(BigInt(n), n);
  }
  return tier;
}

describe("turns", () => {
  test("a turn moves the session on; one that comes late or twice takes nothing from it", () => {
    const tier = new SmallTier(8);
    tier.put([1, 2, 3, 4]);
    for (const [n, blocks] of [
      [2, 2],
      [4, 4],
      [3, 4],
      [4, 4],
      [1, 4],
    ] as const) {
      expect(tier.commit(1n, n)).toBe("ok");
      expect(tier.blocksOf(1n)).toBe(blocks);
      expect(tier.locks()).toBe(1);
    }
  });

  test("a turn that goes another way moves the session there", () => {
    const tier = new SmallTier(8);
    tier.put([1, 2, 3, 4]);
    tier.put([1, 2, 5]);
    tier.commit(1n, 4);
    tier.commit(1n, 5);
    expect(tier.blocksOf(1n)).toBe(3);
    expect(tier.put([100, 101, 102, 103, 104])).toEqual([4, 3]);
    expect(tier.match([1, 2, 5])).toBe(3);
  });

  test("a commit that comes late is a sign of life", () => {
    const tier = withSessions(1);
    tier.clock.advance(3_000_000);
    tier.commit(1n, 1);
    tier.clock.advance(3_000_000);
    tier.sessions.endIdle();
    expect(tier.sessions.size).toBe(1);
  });

  test("one more session than there may be is refused, those that are there go on", () => {
    const tier = new SmallTier(8);
    tier.put([1, 2]);
    for (let n = 0; n < 65_536; n++) tier.sessions.commit(SPACE, BigInt(n + 1), tier.node(1));
    expect(tier.commit(99_999n, 1)).toBe("full");
    expect(tier.commit(5n, 2)).toBe("ok");
    expect(tier.sessions.size).toBe(65_536);
    expect(tier.locks()).toBe(65_536);
  });
});

describe("idle sessions", () => {
  test("end after the time that is set, also when it is set later", () => {
    const tier = withSessions(3);
    tier.clock.advance(60_000);
    tier.commit(2n, 2);
    tier.sessions.endIdle();
    expect(tier.sessions.size).toBe(3);
    tier.sessions.setIdle(60_000);
    tier.sessions.endIdle();
    expect(numbers(tier.sessions.list({ namespace: null, after: 0, max: 9 }))).toEqual([2n]);
    expect(tier.locks()).toBe(1);
  });

  test("a wall clock that jumps ends none", () => {
    const tier = withSessions(1);
    tier.clock.jumpWall(365 * 86_400_000);
    tier.sessions.endIdle();
    expect(tier.sessions.size).toBe(1);
  });
});

describe("sessions by the block they end in", () => {
  test("are named, and ended, by it alone", () => {
    const tier = new SmallTier(8);
    tier.put([1, 2, 3]);
    for (const [session, n] of [
      [1n, 3],
      [2n, 3],
      [3n, 2],
    ] as const)
      tier.commit(session, n);
    const holders = (n: number) => tier.sessions.holdersOf(tier.node(n)).map(({ name }) => name);
    expect([holders(1), holders(2), holders(3)]).toEqual([[], ["3"], ["1", "2"]]);
    expect(tier.sessions.holdersOf(tier.node(2))).toEqual([{ kind: "session", name: "3" }]);
    expect(tier.sessions.endAt(new Set([tier.node(1), tier.node(3)]))).toBe(2);
    expect([holders(2), holders(3), tier.locks()]).toEqual([["3"], [], 1]);
    tier.commit(3n, 3);
    expect([holders(2), holders(3)]).toEqual([[], ["3"]]);
    tier.commit(3n, 1);
    expect(holders(3)).toEqual(["3"]);
    tier.release(3n);
    expect([holders(3), tier.locks()]).toEqual([[], 0]);
    tier.commit(4n, 2);
    tier.sessions.endOldest();
    expect(tier.sessions.endAt(new Set([tier.node(2)]))).toBe(0);
  });

  test("at most 64 are named; all are ended, and their blocks may go", () => {
    const tier = new SmallTier(8);
    tier.put([1, 2]);
    for (let session = 1n; session <= 1_000n; session++) tier.commit(session, 2);
    expect(tier.sessions.holdersOf(tier.node(2))).toHaveLength(64);
    expect(tier.sessions.endAt(new Set([tier.node(2)]))).toBe(1_000);
    expect([tier.sessions.size, tier.locks()]).toEqual([0, 0]);
    expect(tier.order()).toEqual([2, 1]);
  });
});

describe("status", () => {
  test("a session status counts its blocks tier by tier", () => {
    const tier = new SmallTier(8);
    tier.put([1, 2, 3]);
    tier.commit(1n, 3);
    tier.clock.advance(1_500);
    for (const n of [1, 2]) tier.table.addResidency(tier.node(n), Tier.ssd);
    tier.table.removeResidency(tier.node(1), Tier.ram);
    const ram = { blocks: 2, bytes: 2 * BLOCK_BYTES };
    const ssd = { blocks: 2, bytes: 2 * BLOCK_BYTES };
    const state = { depth: 3, ram, ssd };
    expect(tier.sessions.state(SPACE, 1n)).toEqual(state);
    expect(tier.sessions.find(1n)).toEqual([
      { namespace: SPACE, session: 1n, idleMs: 1_500, state },
    ]);
    expect(tier.sessions.state(SPACE, 2n)).toBeNull();
    expect(tier.sessions.find(2n)).toEqual([]);
  });

  test("finds a number in each namespace that has it", () => {
    const tier = withSessions(1);
    const source = block(50, null, BLOCK_BYTES);
    const other = must(tier.table.insertResident(source, 0, OTHER_SPACE, false, Tier.ram));
    tier.sessions.commit(OTHER_SPACE, 1n, other);
    expect(tier.sessions.find(1n).map(({ namespace }) => namespace)).toEqual([SPACE, OTHER_SPACE]);
    const list = (namespace: NamespaceIndex | null) =>
      tier.sessions.list({ namespace, after: 0, max: 9 }).sessions.length;
    expect([list(null), list(SPACE), list(OTHER_SPACE)]).toEqual([2, 1, 1]);
  });
});

describe("the list", () => {
  test("begins with the one committed to longest ago, page by page", () => {
    const tier = withSessions(5);
    tier.commit(1n, 1);
    const pages: bigint[][] = [];
    for (let after: number | null = 0; after !== null; ) {
      const page: SessionPage = tier.sessions.list({ namespace: null, after, max: 2 });
      pages.push(numbers(page));
      after = page.next;
    }
    expect(pages).toEqual([[2n, 3n], [4n, 5n], [1n]]);
  });

  test("misses none that stays, whatever comes, goes and moves between two pages", () => {
    const tier = withSessions(6);
    const first = tier.sessions.list({ namespace: null, after: 0, max: 3 });
    expect(numbers(first)).toEqual([1n, 2n, 3n]);
    tier.commit(3n, 3);
    tier.release(2n);
    tier.release(4n);
    tier.commit(5n, 5);
    tier.put([40]);
    tier.commit(40n, 40);
    const second = tier.sessions.list({ namespace: null, after: first.next!, max: 9 });
    expect(numbers(second)).toEqual([6n, 3n, 5n, 40n]);
    expect(second.next).toBeNull();
  });

  test("stops a page early where sessions are deep", () => {
    const tier = new SmallTier(256);
    const path = Array.from({ length: 200 }, (_, n) => n);
    tier.put(path);
    for (let session = 1n; session <= 1_000n; session++) tier.commit(session, 199);
    const page = tier.sessions.list({ namespace: null, after: 0, max: 1_000 });
    expect(page.sessions).toHaveLength(Math.ceil(65_536 / 200));
    expect(page.next).not.toBeNull();
  });
});
