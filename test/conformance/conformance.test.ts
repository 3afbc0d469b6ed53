import { expect, test } from "bun:test";
import { seededRandom } from "../../src/core/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { NativeIndex } from "../../src/router/index.ts";
import { describeNative } from "../support/index.ts";
import { runConformance } from "./conformance.ts";

describeNative("the router, against a literal implementation", () => {
  test("comes to the same costs, choices, loads and overlaps", () => {
    const options = { steps: 20_000, draws: 2_000, seed: 11, nowMs: () => performance.now() };
    const parts = { random: seededRandom(3), bytesMax: 2 ** 26 };
    const makeIndex = () => new NativeIndex({ native: loadNative(), ...parts });
    const checks = runConformance({ ...options, makeIndex });
    expect(checks.filter(({ fault }) => fault !== null)).toEqual([]);
    expect(checks.every(({ compared }) => compared > 0)).toBe(true);
  });
});
