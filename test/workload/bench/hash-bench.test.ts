import { expect, test } from "bun:test";
import { loadNative } from "../../../src/native/index.ts";
import { benchHash } from "../../../src/workload/bench/index.ts";
import { describeNative } from "../../support/index.ts";

describeNative("hash bench", () => {
  test("hashes every block of the prompt, and its figures agree with each other", () => {
    const result = benchHash(loadNative(), { runs: 11 });
    expect(result.blocks).toBe(Math.floor(15_000 / 64));
    expect(result.ratio).toBeCloseTo(result.promptUs / result.plainUs, 2);
    expect(result.blake3Gbps).toBeCloseTo(60_000 / (result.plainUs * 1_000), 2);
    expect(result.promptUs).toBeGreaterThan(1);
  });
});
