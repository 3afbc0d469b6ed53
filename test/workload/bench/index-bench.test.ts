import { expect, test } from "bun:test";
import { benchIndex } from "../../../src/workload/bench/index.ts";

test("bench index measures a small table", () => {
  const result = benchIndex({ blocks: 30_000 });
  expect(Object.keys(result)).toEqual([
    "blocks",
    "bytes_per_block",
    "match_64_p50_us",
    "match_64_p99_us",
    "insert_per_s",
    "churn_per_s",
    "evict_per_s",
  ]);
  expect(result.blocks).toBe(30_000);
  // This process's memory also moves with the tests that ran before: its growth proves nothing
  // here.
  const { bytes_per_block, ...rates } = result;
  expect(Number.isFinite(bytes_per_block)).toBe(true);
  for (const value of Object.values(rates)) expect(value).toBeGreaterThan(0);
  expect(result.match_64_p99_us).toBeGreaterThanOrEqual(result.match_64_p50_us);
});
