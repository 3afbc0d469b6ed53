import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { seededRandom } from "../../../src/core/index.ts";
import { pickLowest, pickSoftmax, sharedByLowest, softmax } from "../../../src/router/index.ts";

function drawsOf(seed: number): () => number {
  const random = seededRandom(seed);
  return () => random.u32() / 2 ** 32;
}

/** Sum of (seen - expected)² / expected. */
function chiSquare(seen: readonly number[], chances: readonly number[], draws: number): number {
  return seen.reduce((sum, count, at) => {
    const expected = chances[at]! * draws;
    return sum + (expected === 0 ? count * 1e9 : (count - expected) ** 2 / expected);
  }, 0);
}

function countPicks(choices: number, draws: number, pick: () => number): number[] {
  const seen = new Array<number>(choices).fill(0);
  for (let i = 0; i < draws; i++) seen[pick()]!++;
  return seen;
}

const costs = fc.array(fc.integer({ min: 0, max: 3 }), { minLength: 1, maxLength: 12 });

describe("the lowest", () => {
  test("the pick is one of the lowest for every draw", () => {
    fc.assert(
      fc.property(
        costs,
        fc.double({ min: 0, max: 1, noNaN: true, maxExcluded: true }),
        (list, u) => {
          const { candidateIndex, decidedBy, draw } = pickLowest(list, () => u);
          const lowest = Math.min(...list);
          expect(list[candidateIndex]).toBe(lowest);
          const equals = list.filter((cost) => cost === lowest).length;
          expect(decidedBy).toBe(equals === 1 ? "lowest_cost" : "tie_draw");
          expect(draw).toBe(equals === 1 ? null : u);
        },
      ),
    );
  });

  test("five equal candidates are picked equally often", () => {
    const list = [7, 3, 9, 3, 3, 8, 3, 3];
    const draw = drawsOf(42);
    const seen = countPicks(list.length, 20_000, () => pickLowest(list, draw).candidateIndex);
    // 99.9 % of chi-square with four degrees of freedom.
    expect(chiSquare(seen, sharedByLowest(list), 20_000)).toBeLessThan(18.5);
  });

  test("the same seed makes the same choices", () => {
    const run = () => {
      const draw = drawsOf(5);
      return Array.from({ length: 50 }, () => pickLowest([1, 1, 1], draw).candidateIndex);
    };
    expect(run()).toEqual(run());
  });
});

describe("softmax", () => {
  test("by hand: costs 10, 20, 30 at temperature 0.5", () => {
    const weights = [1, Math.exp(-1), Math.exp(-2)];
    const sum = weights[0]! + weights[1]! + weights[2]!;
    const chances = softmax([10, 20, 30], 0.5);
    for (const [at, weight] of weights.entries()) expect(chances[at]).toBeCloseTo(weight / sum, 12);
  });

  test("softmax is invariant under scaling and shifting all costs", () => {
    fc.assert(
      fc.property(costs, fc.double({ min: 0.05, max: 5, noNaN: true }), (list, temperature) => {
        const moved = softmax(
          list.map((cost) => cost * 8 + 64),
          temperature,
        );
        for (const [at, chance] of softmax(list, temperature).entries()) {
          expect(moved[at]).toBeCloseTo(chance, 9);
        }
      }),
    );
  });

  test("equal costs have equal probabilities", () => {
    expect(softmax([4, 4, 4, 4], 0.3)).toEqual([0.25, 0.25, 0.25, 0.25]);
  });

  test("picks occur with the stated probabilities", () => {
    const list = [1, 2, 5, 2];
    const draw = drawsOf(9);
    const seen = countPicks(list.length, 20_000, () => pickSoftmax(list, 0.7, draw).candidateIndex);
    // 99.9 % with three degrees of freedom.
    expect(chiSquare(seen, softmax(list, 0.7), 20_000)).toBeLessThan(16.3);
  });

  test("the largest draw picks the last candidate", () => {
    expect(pickSoftmax([1, 2], 1, () => 1 - 2 ** -32).candidateIndex).toBe(1);
  });
});
