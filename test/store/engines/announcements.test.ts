import { expect, test } from "bun:test";
import { BlockOutcome } from "../../../src/core/index.ts";
import { Announcements } from "../../../src/store/index.ts";
import { ManualClock } from "../../support/index.ts";

const MAX = 65_536;
const { ok, rejected } = BlockOutcome;

test("an announcement beyond the maximum is rejected until another one has expired", () => {
  const clock = new ManualClock();
  const engine = new Announcements(clock).open();
  const keys = new Uint32Array(8 * (MAX + 2));
  for (let i = 0; i < MAX + 2; i++) keys[8 * i] = i;
  for (let i = 0; i < MAX; i++) expect(engine.add(keys, i, 60_000)).toBe(ok);
  expect(engine.add(keys, MAX, 100)).toBe(rejected);
  // A renewal may expire sooner than the announcement it renews.
  expect(engine.add(keys, 7, 100)).toBe(ok);
  clock.advance(99);
  expect(engine.add(keys, MAX, 100)).toBe(rejected);
  clock.advance(1);
  expect(engine.add(keys, MAX, 100)).toBe(ok);
  expect(engine.add(keys, MAX + 1, 100)).toBe(rejected);
  engine.withdraw(keys, 0);
  expect(engine.add(keys, MAX + 1, 100)).toBe(ok);
  engine.clear();
});

test("announcements count while their engine sends heartbeats, and again when it resumes", () => {
  const clock = new ManualClock();
  const all = new Announcements(clock);
  const [beating, plain] = [all.open(), all.open()];
  const keys = new Uint32Array(16);
  keys[8] = 1;
  beating.add(keys, 0, 2_000);
  plain.add(keys, 1, 2_000);
  expect([all.has(keys, 0), all.has(keys, 1)]).toEqual([true, true]);
  beating.beat(100);
  clock.advance(99);
  expect(all.has(keys, 0)).toBe(true);
  clock.advance(1);
  // An engine that never sent a heartbeat needs none.
  expect([all.has(keys, 0), all.has(keys, 1)]).toEqual([false, true]);
  beating.beat(100);
  expect(all.has(keys, 0)).toBe(true);
  clock.advance(1_900);
  beating.beat(100);
  expect([all.has(keys, 0), all.has(keys, 1), all.size]).toEqual([false, false, 0]);
});
