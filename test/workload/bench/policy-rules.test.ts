import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { HearthError } from "../../../src/core/index.ts";
import { benchPolicy, POLICY_NAMES } from "../../../src/workload/bench/index.ts";
import { bundledTrace, type Trace } from "../../../src/workload/traces/index.ts";
import { lruHits, mostHits } from "./literal-policies.ts";

const SEED = 20_260_802;

function traceOf(prompts: readonly (readonly number[])[]): Trace {
  return {
    name: "made",
    path: "made",
    format: "mooncake",
    blockTokens: 16,
    async *requests() {
      for (const prompt of prompts) {
        yield {
          arrivalMs: 0,
          inputTokens: prompt.length * 16,
          outputTokens: 1,
          blocks: Uint32Array.from(prompt),
          lastBlockTokens: prompt.length === 0 ? 0 : 16,
          session: undefined,
          turn: undefined,
        };
      }
    },
  };
}

/** Prompts that share prefixes: each is a way down a tree, its blocks numbered at first sight. */
function prompts(requestsMax: number, blocksMax: number, branches: number) {
  const way = fc.array(fc.nat(branches - 1), { maxLength: blocksMax });
  return fc.array(way, { minLength: 1, maxLength: requestsMax }).map((ways) => {
    const numbers = new Map<string, number>();
    return ways.map((steps) =>
      steps.map((_, depth) => {
        const prefix = steps.slice(0, depth + 1).join();
        return numbers.getOrInsertComputed(prefix, () => numbers.size);
      }),
    );
  });
}

async function hitsOf(made: number[][], capacity: number): Promise<Record<string, number>> {
  const rows = await benchPolicy({
    trace: traceOf(made),
    capacities: [capacity],
    policies: POLICY_NAMES,
  });
  return Object.fromEntries(rows.map((row) => [row.policy, row.blocks_hit]));
}

describe("the policies", () => {
  test("each policy does the same as its literal model", async () => {
    await fc.assert(
      fc.asyncProperty(
        prompts(60, 12, 3),
        fc.integer({ min: 1, max: 40 }),
        async (made, capacity) => {
          const { best, hearth, lru } = await hitsOf(made, capacity);
          expect(best).toBeGreaterThanOrEqual(hearth!);
          expect(best).toBeGreaterThanOrEqual(lru!);
          expect(lru).toBe(lruHits(capacity, made));
        },
      ),
      { seed: SEED, numRuns: 300 },
    );
  });

  test("no policy beats the best of all choices, which `best` finds", async () => {
    await fc.assert(
      fc.asyncProperty(prompts(7, 3, 2), fc.integer({ min: 1, max: 5 }), async (made, capacity) => {
        const { best } = await hitsOf(made, capacity);
        expect(best).toBe(mostHits(capacity, made));
      }),
      { seed: SEED, numRuns: 200 },
    );
  });

  test("all policies have the same hits with room for everything", async () => {
    const trace = await bundledTrace();
    const rows = await benchPolicy({ trace, capacities: [1e9], policies: POLICY_NAMES });
    expect(rows.map((row) => row.hit_ratio)).toEqual(POLICY_NAMES.map(() => 0.3799));
  });
});

describe("the bench", () => {
  test("the bench prints rows and progress in the order requested", async () => {
    const seen: [number, number][] = [];
    const rows = await benchPolicy({
      trace: await bundledTrace(),
      capacities: [3000, 300],
      policies: ["best", "lru"],
      onProgress: (done, total) => seen.push([done, total]),
    });
    expect(rows[0]).toEqual({
      trace: "mooncake_arxiv_first1000",
      capacity: 3000,
      policy: "best",
      hit_ratio: 0.3799,
      blocks_asked: 19686,
      blocks_hit: 7479,
      score: 1,
      decisions_per_s: expect.any(Number),
    });
    expect(rows[0]!.decisions_per_s).toBeGreaterThan(0);
    expect(rows.map(({ capacity, policy }) => `${policy}@${capacity}`)).toEqual([
      "best@3000",
      "lru@3000",
      "best@300",
      "lru@300",
    ]);
    const total = 4 * 19686;
    expect(seen.at(-1)).toEqual([total, total]);
    expect(seen.every(([done], at) => at === 0 || done >= seen[at - 1]![0])).toBe(true);
  });

  test("the bench scores policies between lru and best", async () => {
    const trace = await bundledTrace();
    const rows = await benchPolicy({
      trace,
      capacities: [1000, 20_000],
      policies: ["best", "hearth", "lru"],
    });
    const expected = [1, (0.2874 - 0.2827) / (0.3633 - 0.2827), 0];
    for (const [at, score] of expected.entries()) expect(rows[at]!.score).toBeCloseTo(score, 2);
    // With room for everything nothing is to be won.
    expect(rows.slice(3).map((row) => row.score)).toEqual([null, null, null]);
  });

  test("the bench accepts an empty trace, and prompts without blocks", async () => {
    const options = { capacities: [5], policies: POLICY_NAMES };
    for (const made of [[], [[]], [[], [0], [0]]])
      for (const row of await benchPolicy({ trace: traceOf(made), ...options }))
        expect(row.blocks_hit).toBe(made.length === 3 ? 1 : 0);
  });

  test.each([0, -1, 1.5, Number.NaN])("refuses a capacity of %p", async (capacity) => {
    const options = { trace: traceOf([[0]]), capacities: [10, capacity], policies: POLICY_NAMES };
    await expect(benchPolicy(options)).rejects.toThrow(/a capacity of/);
  });

  test("the bench stops when the signal fires", async () => {
    const controller = new AbortController();
    const running = benchPolicy({
      trace: await bundledTrace(),
      capacities: Array.from({ length: 200 }, (_, i) => 1_000 + i),
      policies: POLICY_NAMES,
      onProgress: () => controller.abort(),
      signal: controller.signal,
    });
    const thrown = await running.catch((reason: unknown) => reason);
    expect(thrown).toBeInstanceOf(HearthError);
    expect((thrown as HearthError).code).toBe("ABORTED");
  });
});
