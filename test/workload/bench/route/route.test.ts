import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { SimulatedClock } from "../../../../src/core/index.ts";
import { ROUTER_DEFAULTS } from "../../../../src/router/index.ts";
import {
  benchRoute,
  LeafLru,
  ROUTE_POLICIES,
  type RouteRow,
} from "../../../../src/workload/bench/index.ts";
import { bundledTrace } from "../../../../src/workload/traces/index.ts";
import { ReferenceIndex } from "../../../router/prefix-index/reference-index.ts";
import { describeNative } from "../../../support/index.ts";

/** Blocks in the order of their use, the oldest first. */
function literalServe(held: number[], capacity: number, blocks: readonly number[]): number {
  const miss = blocks.findIndex((block) => !held.includes(block));
  for (const block of [...blocks].reverse()) {
    const at = held.indexOf(block);
    if (at !== -1) held.splice(at, 1);
    else if (held.length === capacity) held.shift();
    held.push(block);
  }
  return miss === -1 ? blocks.length : miss;
}

test("a worker's cache is the list of blocks in the order of use", () => {
  const prompt = fc.uniqueArray(fc.nat(9), { maxLength: 5 });
  fc.assert(
    fc.property(
      fc.array(prompt, { maxLength: 40 }),
      fc.integer({ min: 1, max: 9 }),
      (all, room) => {
        const cache = new LeafLru(room, 10);
        const held: number[] = [];
        for (const blocks of all) {
          const before = [...held];
          const hits = literalServe(held, room, blocks);
          const served = cache.serve(Uint32Array.from(blocks));
          expect(served.hits).toBe(hits);
          const left = before.filter((block) => !served.evicted.includes(block));
          const there = new Set([...left, ...served.stored.map((at) => blocks[at]!)]);
          expect([...there].sort()).toEqual([...held].sort());
        }
      },
    ),
  );
});

test("simulated time runs the due timers in order, and no others", () => {
  const delays = fc.array(fc.record({ ms: fc.nat(50), isOff: fc.boolean() }), { maxLength: 30 });
  fc.assert(
    fc.property(delays, fc.nat(50), (all, untilMs) => {
      const clock = new SimulatedClock();
      const ran: number[] = [];
      for (const [number, { ms, isOff }] of all.entries()) {
        const timer = clock.after(ms, () => ran.push(number));
        if (isOff) timer[Symbol.dispose]();
      }
      clock.moveTo(untilMs);
      const due = [...all.entries()].filter(([, { ms, isOff }]) => ms <= untilMs && !isOff);
      due.sort(([, a], [, b]) => a.ms - b.ms);
      expect(ran).toEqual(due.map(([number]) => number));
      expect(clock.monotonicMs()).toBe(untilMs);
    }),
  );
});

describeNative("the bundled trace", () => {
  const run = async (prefillTokensPerSecond: number) => {
    const rows = await benchRoute({
      trace: await bundledTrace(),
      workers: 10,
      capacity: 1_000,
      policies: ROUTE_POLICIES,
      settings: ROUTER_DEFAULTS,
      service: { prefillTokensPerSecond, decodeTokensPerSecond: 30 },
      seed: 1,
      makeIndex: () => new ReferenceIndex(),
    });
    return Object.fromEntries(rows.map((row) => [row.policy, row])) as Record<string, RouteRow>;
  };

  describe("without queues", () => {
    test("the pooled cache is the traces' own figure, the router far above chance", async () => {
      const rows = await run(Number.POSITIVE_INFINITY);
      // 10,000 blocks: LRU 0.3786.
      expect(rows.pooled!.hit_ratio).toBe(0.3786);
      expect(rows.kv!.hit_ratio).toBeGreaterThan(rows["round-robin"]!.hit_ratio + 0.03);
      expect(rows.kv!.hit_ratio).toBeGreaterThan(rows.random!.hit_ratio + 0.03);
      expect(rows.kv!.of_pooled).toBeCloseTo(rows.kv!.hit_ratio / 0.3786, 3);
      // The same costs, so the same choices.
      expect(rows["kv-defaults"]).toEqual({ ...rows.kv!, policy: "kv-defaults" });
      expect(rows.pooled!.load_spread).toBeNull();
    });
  });

  describe("with queues", () => {
    test("the router waits less than who follows prefixes alone", async () => {
      const rows = await run(8_000);
      expect(rows.kv!.prefilled_p99_ms!).toBeLessThan(rows["longest-prefix"]!.prefilled_p99_ms!);
      expect(rows.kv!.load_spread!).toBeLessThan(1.5);
    });
  });
});
