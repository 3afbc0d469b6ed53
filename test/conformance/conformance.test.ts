import { expect, test } from "bun:test";
import { ReferenceIndex } from "../../src/router/index.ts";
import { describeNative } from "../support/index.ts";
import { runConformance } from "./conformance.ts";

describeNative("the router, against a literal implementation", () => {
  test("comes to the same costs, choices, loads and overlaps", () => {
    const options = { steps: 20_000, draws: 2_000, seed: 11, nowMs: () => performance.now() };
    const checks = runConformance({ ...options, makeIndex: () => new ReferenceIndex() });
    expect(checks.filter(({ fault }) => fault !== null)).toEqual([]);
    expect(checks.every(({ compared }) => compared > 0)).toBe(true);
  }, 60_000);
});
