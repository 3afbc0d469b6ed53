import { expect, test } from "bun:test";
import type { WorkerId } from "../../../src/core/index.ts";
import { Affinity } from "../../../src/router/index.ts";
import { ManualClock } from "../../support/index.ts";

const [A, B] = ["a" as WorkerId, "b" as WorkerId];

test("a session is kept until its TTL, renewed by each visit", () => {
  const clock = new ManualClock();
  const affinity = new Affinity(clock, { ttlMs: 1_000, sessionsMax: 9, extraCostMax: 0 });
  affinity.remember("s", A, 0);
  clock.advance(999);
  expect(affinity.find("s")).toMatchObject({ worker: A, rank: 0 });
  affinity.remember("s", B, 1);
  clock.advance(999);
  expect(affinity.find("s")).toMatchObject({ worker: B, rank: 1 });
  clock.advance(1);
  expect(affinity.find("s")).toBeNull();
  expect(affinity.sessions).toBe(0);
});

test("the affinity table is bounded and evicts the least recently used session", () => {
  const settings = { ttlMs: 1_000, sessionsMax: 2, extraCostMax: 0 };
  const affinity = new Affinity(new ManualClock(), settings);
  for (const session of ["one", "two", "one", "three"]) affinity.remember(session, A, 0);
  expect(affinity.sessions).toBe(2);
  expect(affinity.find("two")).toBeNull();
  affinity.remember("x".repeat(10_000), A, 0);
  expect(affinity.sessions).toBe(2);
});
