import { expect, test } from "bun:test";
import { seededRandom } from "../../../src/core/index.ts";
import { Breaker } from "../../../src/peers/fetcher/index.ts";
import { ManualClock } from "../../support/manual-clock.ts";

const LIMITS = { cooldownMs: 1_000, cooldownMaxMs: 4_000 };

function make() {
  const clock = new ManualClock();
  return { clock, breaker: new Breaker(clock, seededRandom(1), () => LIMITS) };
}

test("cooldowns double up to their maximum, a quarter less at most", () => {
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

test("one tries after the cooldown; its success closes, and the next failure starts small", () => {
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

test("failures of what went before it opened do not make it longer", () => {
  const { breaker } = make();
  expect(breaker.failed()).not.toBeNull();
  expect(breaker.failed()).toBeNull();
  expect(breaker.failed()).toBeNull();
});

test("a trial that came to nothing leaves its turn to the next; one not heard of gives way", () => {
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
