import { expect, test } from "bun:test";
import { systemClock } from "../../../../src/core/index.ts";
import { benchDecide } from "../../../../src/workload/bench/index.ts";
import { ReferenceIndex } from "../../../router/prefix-index/reference-index.ts";
import { describeNative } from "../../../support/index.ts";

describeNative("bench decide", () => {
  test("routes each prompt and says how long it took", async () => {
    const result = await benchDecide({
      clock: systemClock,
      workers: 4,
      promptTokens: 2_000,
      live: 8,
      heldBlocks: 64,
      decisions: 20,
      makeIndex: () => new ReferenceIndex(),
    });
    expect(result).toMatchObject({ workers: 4, prompt_tokens: 2_000, decisions: 20 });
    expect(result.held_blocks).toBeGreaterThan(4 * 64);
    expect(result.decide_p50_us).toBeGreaterThan(0);
    expect(result.decide_p99_us).toBeGreaterThanOrEqual(result.decide_p50_us);
  });
});
