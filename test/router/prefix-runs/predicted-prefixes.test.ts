import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { PredictedPrefixes, type TargetId } from "../../../src/router/index.ts";
import { ManualClock } from "../../support/index.ts";
import { chainOf, promptNames } from "../chain.ts";

const TTL_MS = 120_000;
const TARGETS = 3;

interface Held {
  readonly target: number;
  readonly hash: bigint;
  atMs: number;
  order: number;
}

/** A list of (target, block) with the time each was routed last; deeper blocks count as older. */
class LiteralPrediction {
  readonly blocksMax: number;
  readonly ratio: number;
  held: Held[] = [];
  #order = 0;

  constructor(blocksMax: number, ratio: number) {
    this.blocksMax = blocksMax;
    this.ratio = ratio;
  }

  routed(hashes: BigUint64Array, target: number, nowMs: number): void {
    this.expire(nowMs);
    for (const hash of [...hashes].reverse()) {
      this.held = this.held.filter((held) => held.target !== target || held.hash !== hash);
      this.held.push({ target, hash, atMs: nowMs, order: this.#order++ });
    }
    if (this.held.length <= this.blocksMax) return;
    this.held.sort((a, b) => b.order - a.order);
    this.held.length = Math.floor(this.blocksMax * this.ratio);
  }

  expire(nowMs: number): void {
    this.held = this.held.filter(({ atMs }) => atMs + TTL_MS > nowMs);
  }

  leading(hashes: BigUint64Array, target: number): number {
    const has = (hash: bigint) => {
      return this.held.some((held) => held.target === target && held.hash === hash);
    };
    const end = [...hashes].findIndex((hash) => !has(hash));
    return end === -1 ? hashes.length : end;
  }
}

const step = fc.oneof(
  { weight: 4, arbitrary: fc.record({ names: promptNames, target: fc.nat(TARGETS - 1) }) },
  { weight: 1, arbitrary: fc.record({ ms: fc.nat(TTL_MS) }) },
  { weight: 1, arbitrary: fc.record({ drop: fc.nat(TARGETS - 1) }) },
);

test("predictions equal a literal list of routed blocks after any steps", () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 50 }), promptNames, fc.nat(20), (steps, asked, max) => {
      const clock = new ManualClock();
      const options = { clock, ttlMs: TTL_MS, blocksMax: max, pruneRatio: 0.8 };
      const predicted = new PredictedPrefixes(options);
      const model = new LiteralPrediction(max, 0.8);
      const counts = new Uint32Array(TARGETS);
      for (const each of steps) {
        if ("names" in each) {
          const hashes = chainOf(each.names);
          predicted.routed(hashes, each.target as TargetId);
          model.routed(hashes, each.target, clock.monotonicMs());
        } else if ("ms" in each) {
          clock.advance(each.ms);
          model.expire(clock.monotonicMs());
        } else {
          predicted.dropTarget(each.drop as TargetId);
          model.held = model.held.filter(({ target }) => target !== each.drop);
        }
        const hashes = chainOf(asked);
        predicted.leading(hashes, counts);
        expect([...counts]).toEqual([0, 1, 2].map((at) => model.leading(hashes, at)));
        expect(predicted.blocks).toBe(model.held.length);
      }
    }),
    { numRuns: 300 },
  );
});

describe("by hand", () => {
  function open(blocksMax: number) {
    const clock = new ManualClock();
    const predicted = new PredictedPrefixes({ clock, ttlMs: TTL_MS, blocksMax, pruneRatio: 0.8 });
    const leading = (names: readonly number[]) => {
      const counts = new Uint32Array(1);
      predicted.leading(chainOf(names), counts);
      return counts[0];
    };
    return { clock, predicted, leading };
  }

  test("routing again extends a prediction; otherwise it expires", () => {
    const { clock, predicted, leading } = open(100);
    predicted.routed(chainOf([1, 2, 3]), 0 as TargetId);
    clock.advance(TTL_MS - 1);
    predicted.routed(chainOf([1, 2]), 0 as TargetId);
    clock.advance(1);
    expect(leading([1, 2, 3])).toBe(2);
    clock.advance(TTL_MS - 1);
    expect(leading([1, 2, 3])).toBe(0);
    expect(predicted.blocks).toBe(0);
  });

  test("at the limit the oldest prompts lose their ends, down to 80 %", () => {
    const { predicted, leading } = open(10);
    predicted.routed(chainOf([1, 1, 1, 1, 1, 1]), 0 as TargetId);
    predicted.routed(chainOf([2, 2, 2, 2]), 0 as TargetId);
    expect(predicted.blocks).toBe(10);
    predicted.routed(chainOf([3]), 0 as TargetId);
    expect(predicted.blocks).toBe(8);
    expect(leading([1, 1, 1, 1, 1, 1])).toBe(3);
    expect(leading([2, 2, 2, 2])).toBe(4);
    expect(leading([3])).toBe(1);
  });
});
