import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { Pair, step } from "./pair.ts";
import { verifyTable } from "./verify-table.ts";

/** From none to so many, so that a failure shrinks to the few that matter. */
const OPERATIONS_A_RUN_MAX = 500;
const RUNS = 480;

describe("block table", () => {
  test("equals the model after every one of 100,000 operations", () => {
    let operations = 0;
    const seen = new Set<string>();
    const property = fc.property(
      fc.array(step, { maxLength: OPERATIONS_A_RUN_MAX, size: "max" }),
      fc.nat(),
      (steps, seed) => {
        const pair = new Pair(seed, seen);
        for (const step of steps) {
          pair.apply(step);
          verifyTable(pair.table);
          pair.compare();
          operations++;
        }
      },
    );
    fc.assert(property, { seed: 20_260_101, numRuns: RUNS });
    expect(operations).toBeGreaterThanOrEqual(100_000);
    expect([...seen].sort()).toEqual([
      "adopted",
      "adopted while protected",
      "adopted with listed relatives",
      "busy",
      "cycle",
      "foreign",
      "full",
      "ghost",
      "kept and free to leave RAM",
      "protected for what is below",
    ]);
  });
});
