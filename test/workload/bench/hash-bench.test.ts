import { expect, test } from "bun:test";
import { loadNative } from "../../../src/native/index.ts";
import { benchHash } from "../../../src/workload/bench/index.ts";
import { describeNative } from "../../support/index.ts";

describeNative("hash bench", () => {
  test("hashes every block of the prompt, and its figures agree with each other", () => {
    const result = benchHash(loadNative(), { runs: 11 });
    expect(result.blocks).toBe(Math.floor(15_000 / 64));
    expect(result.ratio).toBeCloseTo(result.prompt_15k_us / result.plain_us, 2);
    expect(result.blake3_gbps).toBeCloseTo(60_000 / (result.plain_us * 1_000), 2);
    expect(result.prompt_15k_us).toBeGreaterThan(1);
  });
});
