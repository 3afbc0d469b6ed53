import { expect, test } from "bun:test";
import { BodyBudget } from "../../../src/core/http/index.ts";
import { ManualClock } from "../../support/index.ts";

const KIB = 1024;

test("bytes count from their arrival until their share is disposed", () => {
  const budget = new BodyBudget(100 * KIB, new ManualClock());
  const [first, second] = [budget.open(), budget.open()];
  expect([first.take(60 * KIB), second.take(40 * KIB)]).toEqual([true, true]);
  expect([budget.bytes, second.take(1)]).toEqual([100 * KIB, false]);
  first.whole();
  expect(second.take(1)).toBe(false);
  first[Symbol.dispose]();
  first[Symbol.dispose]();
  expect([budget.bytes, second.take(60 * KIB)]).toEqual([40 * KIB, true]);
  second[Symbol.dispose]();
  expect(budget.bytes).toBe(0);
});

test("a body without room ends slow bodies, oldest first, and no more than it needs", () => {
  const clock = new ManualClock();
  const budget = new BodyBudget(100 * KIB, clock);
  const ended: number[] = [];
  const slow = [0, 1, 2].map((i) => {
    const share = budget.open();
    share.onEvicted = () => void ended.push(i);
    expect(share.take(30 * KIB)).toBe(true);
    return share;
  });
  const next = budget.open();
  // All of them brought bytes a moment ago.
  expect(next.take(20 * KIB)).toBe(false);
  clock.advance(1_500);
  expect(next.take(50 * KIB)).toBe(true);
  expect([ended, budget.bytes]).toEqual([[0, 1], 80 * KIB]);
  expect(slow[0]!.take(1)).toBe(false);
  for (const share of slow) share[Symbol.dispose]();
  expect(budget.bytes).toBe(50 * KIB);
});

test("a body that keeps its pace is not ended, nor is one that has arrived", () => {
  const clock = new ManualClock();
  const budget = new BodyBudget(100 * KIB, clock);
  const [whole, fast, dripping] = [budget.open(), budget.open(), budget.open()];
  expect(whole.take(10 * KIB)).toBe(true);
  whole.whole();
  const ended: string[] = [];
  fast.onEvicted = () => void ended.push("fast");
  whole.onEvicted = () => void ended.push("whole");
  dripping.onEvicted = () => void ended.push("dripping");
  for (let i = 0; i < 4; i++) {
    clock.advance(700);
    expect([fast.take(16 * KIB), dripping.take(1)]).toEqual([true, true]);
  }
  const next = budget.open();
  expect(next.take(80 * KIB)).toBe(false);
  expect(ended).toEqual(["dripping"]);
});
