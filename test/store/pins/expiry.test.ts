import { describe, expect, test } from "bun:test";
import { type NodeId, yieldToLoop } from "../../../src/core/index.ts";
import { Tier } from "../../../src/store/blocks/index.ts";
import type { EndedPin, Purged } from "../../../src/store/pins/index.ts";
import { waitFor } from "../../support/index.ts";
import { HoldKit } from "./hold-kit.ts";
import { MemoryDisk } from "./memory-ledger.ts";

const TEN_YEARS_MS = 10 * 365 * 86_400_000;

describe("a hold with an end", () => {
  test("ends within a second of it, not before", () => {
    const kit = new HoldKit();
    kit.put([1, 2]);
    kit.pin("a", [2], 60_000);
    kit.pin("b", [1]);
    kit.clock.advance(59_999);
    expect(kit.pins(1, 2)).toEqual([1, 1]);
    kit.clock.advance(1_001);
    expect(kit.pins(1, 2)).toEqual([1, 0]);
    expect(kit.said()).toEqual([
      { kind: "hold_expired", hold: "pin", owner: "a", name: null, blocks: 1, purged: 0 },
    ]);
    expect(kit.holds.counts().expired).toBe(1);
    expect(kit.clock.pending).toBe(0);
    kit.verify();
  });

  test("is not moved by a wall clock that jumps ten years either way", () => {
    for (const jump of [TEN_YEARS_MS, -TEN_YEARS_MS]) {
      const kit = new HoldKit();
      kit.put([1]);
      kit.lease("night", [1], 60_000);
      kit.clock.advance(30_000);
      kit.clock.jumpWall(jump);
      kit.clock.advance(29_000);
      expect(kit.holds.lease("night")).toMatchObject({ remainingMs: 1_000, ageMs: 59_000 });
      kit.clock.advance(2_000);
      expect(kit.holds.lease("night")).toBeNull();
    }
  });

  test("ends soon after the machine wakes, though timers slept with it", () => {
    const kit = new HoldKit();
    kit.put([1]);
    kit.pin("a", [1], 3_600_000);
    const { bootMs } = kit.clock;
    kit.clock.bootMs = () => bootMs.call(kit.clock) + 4_000_000;
    kit.clock.advance(1_000);
    expect(kit.pins(1)).toEqual([0]);
  });

  test("has one timer with all the others, and the earliest counts", () => {
    const kit = new HoldKit();
    kit.put([1]);
    for (let i = 0; i < 1_000; i++) kit.pin("a", [1], 1_000_000 - i * 900);
    expect(kit.clock.pending).toBe(1);
    kit.clock.advance(101_000);
    expect(kit.pins(1)).toEqual([999]);
    kit.clock.advance(900_000);
    expect([kit.pins(1), kit.clock.pending]).toEqual([[0], 0]);
    kit.verify();
  });

  test("a renewal in time counts, a hundred thousand of them cost no memory", () => {
    const kit = new HoldKit();
    kit.put([1]);
    kit.lease("night", [1], 1_000);
    for (let i = 0; i < 100_000; i++) kit.holds.renew("night", 1_000 + (i % 7));
    kit.clock.advance(900);
    kit.holds.renew("night", 60_000);
    kit.clock.advance(59_000);
    expect(kit.holds.lease("night")).not.toBeNull();
    kit.clock.advance(2_000);
    expect(kit.holds.lease("night")).toBeNull();
  });

  test("many that end at once do not keep the event loop", () => {
    const kit = new HoldKit();
    kit.put([1]);
    for (let i = 0; i < 20_000; i++) kit.pin("a", [1], 1_000);
    let looks = 0;
    const { after } = kit.clock;
    kit.clock.after = (ms, run) => {
      looks++;
      return after.call(kit.clock, ms, run);
    };
    kit.clock.advance(3_000);
    expect(kit.pins(1)).toEqual([0]);
    expect(looks).toBeGreaterThan(5);
    kit.verify();
  });
});

describe("a lease that expires", () => {
  test("is handed over to be purged, and said with what that removed", async () => {
    const kit = new HoldKit();
    kit.put([1, 2]);
    kit.lease("night", [1, 2], 5_000);
    kit.clock.advance(6_000);
    expect(kit.ended).toMatchObject([
      { info: { name: "night", blocks: 2 }, nodes: kit.nodes(1, 2) },
    ]);
    expect(kit.pins(1, 2)).toEqual([0, 0]);
    await waitFor(() => kit.said().length === 1);
    expect(kit.said()).toEqual([
      { kind: "hold_expired", hold: "lease", owner: "router", name: "night", blocks: 2, purged: 2 },
    ]);
  });

  test("is forgotten only when that is done: a crash in between repeats it", async () => {
    const disk = new MemoryDisk();
    const purge = Promise.withResolvers<Purged>();
    const ledger = disk.open();
    const kit = new HoldKit({ ledger, onLeaseExpired: () => purge.promise });
    const fill = (world: HoldKit) => world.put([1]);
    fill(kit);
    kit.lease("night", [1], 5_000);
    await kit.holds.commit();
    kit.clock.advance(6_000);
    await kit.holds.commit();
    expect(disk.holds.size).toBe(1);
    const ended: EndedPin[] = [];
    const onLeaseExpired = async (one: EndedPin) => {
      ended.push(one);
      return { purged: 1, isDurable: true };
    };
    const next = await HoldKit.restarted(disk.open(), kit.clock, fill, { onLeaseExpired });
    kit.clock.advance(1_000);
    expect(ended).toMatchObject([{ info: { name: "night" } }]);
    await waitFor(() => next.said().length === 1);
    await next.holds.commit();
    expect(disk.holds.size).toBe(0);
    purge.resolve({ purged: 0, isDurable: true });
  });

  test("gives its name back at once: who takes it keeps it after a crash", async () => {
    const disk = new MemoryDisk();
    const never = new Promise<Purged>(() => undefined);
    const kit = new HoldKit({ ledger: disk.open(), onLeaseExpired: () => never });
    const fill = (world: HoldKit) => {
      world.put([1]);
      world.put([2]);
    };
    fill(kit);
    kit.lease("night", [1, 2], 5_000);
    await kit.holds.commit();
    kit.clock.advance(6_000);
    kit.lease("night", [2], 60_000);
    await kit.holds.commit();
    expect(disk.holds.size).toBe(2);
    const next = await HoldKit.restarted(disk.open(), kit.clock, fill);
    expect(next.holds.lease("night")).toMatchObject({ blocks: 1, remainingMs: 60_000 });
    expect(next.pins(1, 2)).toEqual([0, 1]);
    expect(next.ended).toMatchObject([{ info: { id: 1 }, nodes: next.nodes(1, 2) }]);
    await waitFor(() => next.said().length === 1);
    await next.holds.commit();
    expect([...disk.holds.keys()]).toEqual([2]);
  });

  test("an expired entry is purged again until the purge is complete, and remembered until then", async () => {
    const disk = new MemoryDisk();
    const answers: (Purged | Error)[] = [
      new Error("no such tier"),
      { purged: 1, isDurable: false },
      { purged: 2, isDurable: true },
    ];
    const asked: NodeId[][] = [];
    const onLeaseExpired = async ({ nodes }: EndedPin) => {
      asked.push([...nodes]);
      const answer = answers.shift()!;
      if (answer instanceof Error) throw answer;
      return answer;
    };
    const kit = new HoldKit({ ledger: disk.open(), onLeaseExpired });
    kit.put([1]);
    kit.put([2]);
    const nodes = kit.nodes(1, 2);
    kit.lease("night", [1, 2], 5_000);
    await kit.holds.commit();
    await kit.clock.advanceAsync(5_000, 1_000);
    await waitFor(() => kit.said().length === 1);
    expect(kit.pins(1, 2)).toEqual([0, 0]);
    kit.evict(Tier.ram, 1);
    await waitFor(() => kit.clock.pending === 1);
    await kit.clock.advanceAsync(1_000);
    await kit.holds.commit();
    expect([asked, disk.holds.size]).toEqual([[nodes, [nodes[1]!]], 1]);
    // The wait grows.
    await kit.clock.advanceAsync(1_999);
    expect(asked).toHaveLength(2);
    await kit.clock.advanceAsync(1);
    await kit.holds.commit();
    expect([asked.length, disk.holds.size, kit.clock.pending]).toEqual([3, 0, 0]);
    expect(kit.said()).toHaveLength(1);
  });

  test("with thousands of others is purged a few at a time", async () => {
    let [running, most] = [0, 0];
    const onLeaseExpired = async () => {
      most = Math.max(most, ++running);
      await yieldToLoop();
      running--;
      return { purged: 0, isDurable: true };
    };
    const kit = new HoldKit({ onLeaseExpired });
    kit.put([1]);
    for (let n = 0; n < 3_000; n++) kit.lease(`lease-${n}`, [1], 5_000);
    kit.clock.advance(6_000);
    await waitFor(() => kit.said().length === 3_000);
    expect([running, most]).toEqual([0, 4]);
  });

  test("whose purge fails is said all the same, and why", async () => {
    const onLeaseExpired = () => Promise.reject(new Error("no such tier"));
    const kit = new HoldKit({ onLeaseExpired });
    kit.put([1]);
    kit.lease("night", [1], 5_000);
    kit.clock.advance(6_000);
    await waitFor(() => kit.said().length === 1);
    expect(kit.said()).toMatchObject([{ kind: "hold_expired", purged: 0 }]);
    expect(kit.warnings).toMatchObject([{ fields: { lease: "night", why: "no such tier" } }]);
  });

  test("is waited for when the registry is put away, and nothing expires after", async () => {
    const purge = Promise.withResolvers<Purged>();
    const kit = new HoldKit({ onLeaseExpired: () => purge.promise });
    kit.put([1, 2]);
    kit.lease("night", [1], 5_000);
    kit.lease("day", [2], 7_000);
    kit.clock.advance(6_000);
    let isOver = false;
    const over = kit.holds[Symbol.asyncDispose]().then(() => {
      isOver = true;
    });
    await Bun.sleep(0);
    expect(isOver).toBe(false);
    purge.resolve({ purged: 1, isDurable: true });
    await over;
    expect(kit.said()).toMatchObject([{ kind: "hold_expired", name: "night", purged: 1 }]);
    kit.clock.advance(60_000);
    expect(kit.clock.pending).toBe(0);
    expect(kit.holds.lease("day")).not.toBeNull();
  });
});

describe("a soft pin", () => {
  const worth = (kit: HoldKit) =>
    kit.holds.list({ kind: "retain", owner: null, after: 0, max: 9 }).holds[0]?.priorityNow;

  test("unused for its idle time, is worth half with each more, and ends below a half", () => {
    const kit = new HoldKit();
    kit.put([1]);
    kit.retain("a", [1], 64, 60_000);
    kit.clock.advance(60_000);
    expect(worth(kit)).toBe(64);
    kit.clock.advance(60_000);
    expect(worth(kit)).toBe(32);
    kit.clock.advance(300_000);
    expect(worth(kit)).toBe(1);
    kit.clock.advance(60_000);
    expect(worth(kit)).toBe(0.5);
    kit.clock.advance(5_000);
    expect(worth(kit)).toBeUndefined();
    expect(kit.said()).toMatchObject([{ kind: "hold_expired", hold: "retain" }]);
    expect(kit.clock.pending).toBe(0);
    kit.verify();
  });

  test("of the lowest priority lasts as long as was said, and longer", () => {
    const kit = new HoldKit();
    kit.put([1]);
    kit.retain("a", [1], 1, 3_600_000);
    kit.clock.advance(2 * 3_600_000 - 1_000);
    expect(worth(kit)).toBeGreaterThan(0.5);
    kit.clock.advance(5_000);
    expect(worth(kit)).toBeUndefined();
  });

  test("a soft pin regains its priority when its blocks are used", () => {
    const kit = new HoldKit();
    kit.put([1, 2]);
    kit.retain("a", [1, 2], 64, 60_000);
    for (let i = 0; i < 10; i++) {
      kit.clock.advance(360_000);
      expect(worth(kit)).toBe(2);
      kit.use(1);
      expect(worth(kit)).toBe(64);
    }
    kit.clock.advance(500_000);
    expect(worth(kit)).toBeUndefined();
  });

  test("with an end ends then, whatever it is worth", () => {
    const kit = new HoldKit();
    kit.put([1]);
    kit.hold("retain", "a", [1], { priority: 99, idleMs: 3_600_000, ttlMs: 10_000 });
    kit.clock.advance(11_000);
    expect(worth(kit)).toBeUndefined();
  });

  test("that names no idle time fades as configured when it was made", async () => {
    const disk = new MemoryDisk();
    const kit = new HoldKit({ ledger: disk.open() });
    kit.put([1]);
    kit.hold("retain", "a", [1], { priority: 64, idleMs: null });
    await kit.holds.commit();
    kit.clock.advance(2 * kit.retainIdleMs);
    expect(worth(kit)).toBe(32);
    // As an earlier release wrote it down.
    const [row] = [...disk.holds.values()];
    disk.holds.set(row!.id, { ...row!, idleMs: null });
    const next = await HoldKit.restarted(disk.open(), kit.clock, (world) => world.put([1]));
    next.clock.advance(2 * next.retainIdleMs);
    expect(worth(next)).toBe(32);
    kit.clock.advance(TEN_YEARS_MS);
    expect(worth(kit)).toBeUndefined();
    expect(worth(next)).toBeUndefined();
  });

  test("has a priority of 0 to 99", () => {
    const kit = new HoldKit();
    kit.put([1]);
    kit.retain("a", [1], 1_000_000, 60_000);
    expect(worth(kit)).toBe(99);
    kit.holds.letGo("retain", "a", kit.nodes(1));
    kit.retain("a", [1], -5, 60_000);
    kit.clock.advance(2_000);
    expect(worth(kit)).toBeUndefined();
  });
});
