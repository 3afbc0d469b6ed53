import { expect, test } from "bun:test";
import fc from "fast-check";
import { seededRandom } from "../../../src/core/index.ts";
import { NativeError } from "../../../src/native/index.ts";
import type { IndexChange, PrefixIndex, TargetId } from "../../../src/router/index.ts";
import { describeNative } from "../../support/native.ts";
import {
  changeOf,
  expectParentsFirst,
  expectSame,
  nativeIndex,
  promptOf,
  randomStep,
  rowsOf,
  type Step,
  TARGETS,
} from "./index-kit.ts";
import { ReferenceIndex } from "./reference-index.ts";

const STEPS: fc.Arbitrary<Step> = fc.record({
  kind: fc.nat(99),
  target: fc.nat(TARGETS - 1),
  tier: fc.nat(2),
  block: fc.nat(499),
  straight: fc.boolean(),
  from: fc.nat(255),
  reversed: fc.boolean(),
  lies: fc.boolean(),
});

function expectSameMatches(ours: PrefixIndex, model: PrefixIndex, prompt: bigint[]): void {
  const hashes = BigUint64Array.from(prompt);
  const found = ours.match(hashes);
  expect(rowsOf(found)).toEqual(rowsOf(model.match(hashes)));
  expect(found.exactBlocks).toBe(prompt.length);
}

/** Equal within `exactBlocks`, and never more than there is. */
function expectWithin(ours: PrefixIndex, model: PrefixIndex, prompt: bigint[]): boolean {
  const hashes = BigUint64Array.from(prompt);
  const found = ours.match(hashes);
  const got = new Map(rowsOf(found).map(({ target, tiers }) => [target, tiers]));
  for (const { target, tiers } of rowsOf(model.match(hashes))) {
    const own = got.get(target) ?? [0, 0, 0];
    let left = found.exactBlocks;
    tiers.forEach((right, i) => {
      expect(Math.min(own[i]!, left)).toBe(Math.min(right, left));
      left -= Math.min(right, left);
    });
    expect(own.reduce((a, b) => a + b)).toBeLessThanOrEqual(tiers.reduce((a, b) => a + b));
    got.delete(target);
  }
  expect([...got]).toEqual([]);
  return found.exactBlocks === prompt.length;
}

describeNative("the native prefix index", () => {
  test("the native index equals the reference after any operations", () => {
    const check = (steps: readonly Step[]) => {
      using ours = nativeIndex();
      const model = new ReferenceIndex();
      for (const step of steps) {
        const change = changeOf(step);
        ours.apply([change]);
        model.apply([change]);
        expectSameMatches(ours, model, promptOf(step.block, step.straight));
      }
      expectSame(ours, model);
    };
    fc.assert(fc.property(fc.array(STEPS, { maxLength: 60 }), check), { numRuns: 150 });
  });

  test("the native index equals the reference after a long random walk", () => {
    const random = seededRandom(20);
    using ours = nativeIndex(2 ** 21);
    const model = new ReferenceIndex();
    for (let round = 0; round < 300; round++) {
      const steps = Array.from({ length: 50 }, () => randomStep(random));
      const changes = steps.map(changeOf);
      ours.apply(changes);
      model.apply(changes);
      const prompts = steps.map(({ block, straight }) => promptOf(block, straight));
      for (const prompt of prompts) expectSameMatches(ours, model, prompt);
      if (round % 50 === 0) {
        expectSame(ours, model);
        expectParentsFirst(ours);
      }
    }
  });

  test("matchMany equals single matches", () => {
    const random = seededRandom(21);
    using index = nativeIndex();
    index.apply(Array.from({ length: 400 }, () => changeOf(randomStep(random))));
    const prompts = Array.from({ length: 500 }, () => {
      const { block, straight } = randomStep(random);
      return promptOf(block, straight);
    });
    const ends = new Uint32Array(prompts.length);
    let end = 0;
    for (const [i, prompt] of prompts.entries()) ends[i] = end += prompt.length;
    const batch = index.matchMany(BigUint64Array.from(prompts.flat()), ends);
    const { starts, counts, exactBlocks, targets, device, host, disk } = batch;
    const rows = prompts.map((_, i) =>
      Array.from({ length: counts[i]! }, (_, place) => {
        const at = starts[i]! + place;
        return { target: targets[at]!, tiers: [device[at]!, host[at]!, disk[at]!] };
      }),
    );
    const alone = prompts.map((prompt) => rowsOf(index.match(BigUint64Array.from(prompt))));
    expect(rows).toEqual(alone);
    expect([...exactBlocks.subarray(0, prompts.length)]).toEqual(prompts.map((p) => p.length));
    expect(index.matchMany(new BigUint64Array(), new Uint32Array()).counts[0]).toBeDefined();
  });

  test.each([4096, 8192, 20_000])(
    "in %d bytes the index is exact as far as it reports",
    (bytes) => {
      const random = seededRandom(bytes);
      using ours = nativeIndex(bytes);
      const model = new ReferenceIndex();
      let whole = 0;
      for (let i = 0; i < 6_000; i++) {
        const step = randomStep(random);
        ours.apply([changeOf(step)]);
        model.apply([changeOf(step)]);
        if (expectWithin(ours, model, promptOf(step.block, step.straight))) whole++;
        if (i % 500 === 0) {
          for (let number = 0; number < TARGETS; number++) {
            const target = number as TargetId;
            const digests = ours.digests(target);
            if (digests !== null) expect(digests).toEqual(model.digests(target)!);
          }
        }
      }
      expect(ours.stats.forgotten).toBeGreaterThan(0);
      expect(ours.stats.bytes).toBeLessThanOrEqual(bytes);
      expect(whole).toBeGreaterThan(0);
      for (let number = 0; number < TARGETS; number++) ours.drop(number as TargetId);
      expect(ours.stats).toMatchObject({ blocks: 0, heldBlocks: 0, runs: 0 });
      expect(ours.match(BigUint64Array.from(promptOf(7, false))).exactBlocks).toBe(2);
    },
  );

  test("pruning removes the oldest prompts first, from their ends", () => {
    using index = nativeIndex(2 ** 17);
    const store = (prompt: number, length: number) => {
      const hashes = BigUint64Array.from({ length }, (_, i) => BigInt(prompt * 1000 + i + 1));
      const change = { kind: "stored", tier: "device", parent: null, hashes, tokenHashes: null };
      index.apply([{ target: 1, change } as unknown as IndexChange]);
      return hashes;
    };
    const leading = (hashes: BigUint64Array) => {
      const found = index.match(hashes);
      return { held: found.count === 0 ? 0 : found.device[0]!, exact: found.exactBlocks };
    };
    const first = store(0, 300);
    const second = store(1, 900);
    let prompts = 2;
    while (index.stats.forgotten === 0) {
      leading(first);
      store(prompts++, 300);
    }
    expect(prompts).toBeGreaterThan(5);
    expect(leading(first)).toEqual({ held: 300, exact: 300 });
    const rest = leading(second);
    expect(rest.held).toBeLessThan(900);
    expect(rest.held).toBeGreaterThan(0);
    expect(rest.exact).toBe(rest.held);
    expect(index.digests(1 as TargetId)).toBeNull();
    index.drop(1 as TargetId);
    expect(index.digests(1 as TargetId)).not.toBeNull();
  });

  test("holders are returned with their tiers, up to the limit", () => {
    const random = seededRandom(22);
    using ours = nativeIndex();
    const model = new ReferenceIndex();
    const changes = Array.from({ length: 300 }, () => changeOf(randomStep(random)));
    ours.apply(changes);
    model.apply(changes);
    const hashes = BigUint64Array.from([...promptOf(400, false), ...promptOf(290, true), 77n]);
    for (const max of [1, 3, 100]) {
      expect(ours.holders(hashes, max)).toEqual(model.holders(hashes, max) as never);
    }
  });

  test("65,536 targets, and a prompt of 100,000 blocks", () => {
    using index = nativeIndex(2 ** 25);
    const hashes = BigUint64Array.from({ length: 100_000 }, (_, i) => BigInt(i) ** 2n + 1n);
    const change = {
      kind: "stored",
      tier: "disk",
      parent: null,
      hashes,
      tokenHashes: null,
    } as const;
    index.apply([{ target: 65_535 as TargetId, change }]);
    const short = { ...change, hashes: hashes.subarray(0, 2) };
    const all = Array.from({ length: 65_535 }, (_, i) => ({
      target: i as TargetId,
      change: short,
    }));
    index.apply(all);
    const found = index.match(hashes);
    expect(found.count).toBe(65_536);
    expect(found.disk[0]).toBe(2);
    expect(found.disk[65_535]).toBe(100_000);
    expect(() => index.apply([{ target: 65_536 as TargetId, change }])).toThrow("16 bits");
  });

  test("a dump captures one moment", () => {
    using index = nativeIndex();
    const step = { ...randomStep(seededRandom(1)), kind: 0, straight: true, from: 0, block: 299 };
    for (let target = 0; target < 1_000; target++) index.apply([changeOf({ ...step, target })]);
    const dump = index.dump()[Symbol.iterator]();
    expect(dump.next().done).toBe(false);
    index.apply([changeOf({ ...step, tier: 1 })]);
    expect(() => {
      while (!dump.next().done);
    }).toThrow(NativeError);
  });
});
