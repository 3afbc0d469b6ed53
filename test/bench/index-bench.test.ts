import { expect, test } from "bun:test";
import { benchIndex } from "../../src/bench/index-bench.ts";

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
  for (const value of Object.values(result)) expect(value).toBeGreaterThan(0);
  expect(result.match_64_p99_us).toBeGreaterThanOrEqual(result.match_64_p50_us);
});
