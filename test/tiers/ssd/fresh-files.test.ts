import { expect, test } from "bun:test";
import type { NodeId } from "../../../src/core/index.ts";
import { FreshFiles } from "../../../src/tiers/ssd/fresh-files.ts";

const node = (id: number) => id as NodeId;

test("nothing of an earlier run is safe before the first sync", () => {
  const fresh = new FreshFiles();
  expect(fresh.isSafe(node(1))).toBe(false);
  fresh.noteSafe(fresh.came);
  expect(fresh.isSafe(node(1))).toBe(true);
});

test("a file is safe when a sync that began after it is over", () => {
  const fresh = new FreshFiles();
  fresh.enter(node(1));
  const first = fresh.came;
  fresh.enter(node(2));
  fresh.noteSafe(first);
  expect([fresh.isSafe(node(1)), fresh.isSafe(node(2))]).toEqual([true, false]);
  // Written again: it is as fresh as if it had never been there.
  fresh.enter(node(1));
  fresh.noteSafe(2);
  expect([fresh.isSafe(node(1)), fresh.isSafe(node(2))]).toEqual([false, true]);
});

test("where too many came, the older ones are not believed to be safe either", () => {
  const fresh = new FreshFiles();
  fresh.noteSafe(0);
  for (let id = 1; id <= 70_000; id++) fresh.enter(node(id));
  expect(fresh.isSafe(node(100_000))).toBe(false);
  fresh.noteSafe(fresh.came);
  expect(fresh.isSafe(node(1))).toBe(true);
});
