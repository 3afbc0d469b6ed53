import { expect, test } from "bun:test";
import { seededRandom } from "../../../../src/core/index.ts";
import { loadNative } from "../../../../src/native/index.ts";
import { NativeIndex } from "../../../../src/router/index.ts";
import { benchPrefix } from "../../../../src/workload/bench/index.ts";
import { bundledTrace } from "../../../../src/workload/traces/index.ts";
import { describeNative } from "../../../support/native.ts";

describeNative("bench prefix", () => {
  test("holds what its workers store, and nothing in the end", async () => {
    const random = seededRandom(3);
    using index = new NativeIndex({ native: loadNative(), random, bytesMax: 2 ** 23 });
    const result = await benchPrefix({
      trace: await bundledTrace(),
      index,
      random,
      workers: 128,
      heldBlocks: 100_000,
      promptBlocks: 69,
      lookups: 2_000,
      batch: 64,
      removalBlocks: 3,
    });
    expect(result.workers).toBe(128);
    expect(result.targets_per_lookup).toBeGreaterThan(64);
    expect(result.holder_blocks).toBeGreaterThanOrEqual(100_000);
    expect(result.blocks).toBeLessThan(result.holder_blocks);
    expect(result.lookup_p99_ns).toBeGreaterThanOrEqual(result.lookup_p50_ns);
    expect(index.stats).toMatchObject({ blocks: 0, heldBlocks: 0, runs: 0, forgotten: 0 });
  });
});
