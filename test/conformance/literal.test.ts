import { describe, expect, test } from "bun:test";
import { creditsCost, lowest, softmax } from "./literal/formulas.ts";
import { WORKED_COSTS, WORKED_SOFTMAX } from "./tables.ts";

describe("the literal implementation comes to what was worked out by hand:", () => {
  test.each(WORKED_COSTS.map((one) => [one.name, one] as const))("%s", (_, one) => {
    expect(creditsCost(one.promptTokens, one.facts, one.least, one.constants)).toBe(one.cost);
  });

  test.each(WORKED_SOFTMAX)("softmax of $costs at $temperature", (one) => {
    const given = softmax(one.costs, one.temperature);
    for (const [at, wanted] of one.probabilities.entries()) {
      expect(given[at]!).toBeCloseTo(wanted, 7);
    }
  });

  test("at temperature 0 the lowest share alike", () => {
    expect(lowest([3, 1, 2, 1])).toEqual([0, 0.5, 0, 0.5]);
  });
});
