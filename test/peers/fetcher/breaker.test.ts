import { expect, test } from "bun:test";
import { seededRandom } from "../../../src/core/index.ts";
import { Breaker } from "../../../src/peers/fetcher/index.ts";
import { ManualClock } from "../../support/manual-clock.ts";

const LIMITS = { cooldownMs: 1_000, cooldownMaxMs: 4_000 };

function make() {
  const clock = new ManualClock();
  return { clock, breaker: new Breaker(clock, seededRandom(1), () => LIMITS) };
}

test("cooldowns double up to their maximum, shortened by at most a quarter", () => {
  const { clock, breaker } = make();
  const cooldowns: number[] = [];
  for (let i = 0; i < 6; i++) {
    expect(breaker.enter()).toBe(true);
    const ms = breaker.failed()!;
    cooldowns.push(ms);
    expect(breaker.enter()).toBe(false);
    clock.advance(ms);
  }
  for (const [index, ms] of cooldowns.entries()) {
    const full = Math.min(1_000 * 2 ** index, 4_000);
    expect(ms).toBeGreaterThanOrEqual(full * 0.75);
    expect(ms).toBeLessThanOrEqual(full);
  }
  expect(new Set(cooldowns).size).toBeGreaterThan(4);
});

test("after the cooldown one trial runs; its success resets the breaker", () => {
  const { clock, breaker } = make();
  breaker.failed();
  clock.advance(1_000);
  expect(breaker.allows).toBe(true);
  expect(breaker.enter()).toBe(true);
  expect(breaker.state).toBe("trial");
  expect(breaker.enter()).toBe(false);
  expect(breaker.succeeded()).toBe(true);
  expect(breaker.succeeded()).toBe(false);
  expect(breaker.failed()).toBeLessThanOrEqual(1_000);
});

test("failures of requests from before it opened do not prolong the cooldown", () => {
  const { breaker } = make();
  expect(breaker.failed()).not.toBeNull();
  expect(breaker.failed()).toBeNull();
  expect(breaker.failed()).toBeNull();
});

test("a withdrawn trial lets the next one run, and a lost one expires", () => {
  const { clock, breaker } = make();
  breaker.failed();
  clock.advance(1_000);
  breaker.enter();
  breaker.withdraw();
  expect(breaker.enter()).toBe(true);
  expect(breaker.enter()).toBe(false);
  clock.advance(4_000);
  expect(breaker.enter()).toBe(true);
});
