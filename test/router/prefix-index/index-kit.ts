import { expect } from "bun:test";
import { type Random, randomBelow, seededRandom } from "../../../src/core/index.ts";
import { loadNative } from "../../../src/native/index.ts";
import {
  RESIDENCY_TIERS,
  type ResidencyChange,
} from "../../../src/observability/activity/index.ts";
import {
  type IndexChange,
  NativeIndex,
  type PrefixIndex,
  type PrefixMatches,
  type TargetId,
} from "../../../src/router/index.ts";

export const TARGETS = 16;
const BLOCKS = 500;

export function nativeIndex(bytesMax = 2 ** 20): PrefixIndex {
  return new NativeIndex({ native: loadNative(), random: seededRandom(5), bytesMax });
}

/** Hash of a block of the tree in which `n` follows on `n / 3`. Some are at the ends of u64. */
function hashOf(block: number): bigint {
  if (block < 3) return BigInt(block);
  if (block < 6) return 2n ** 64n - BigInt(block);
  return (BigInt(block) * 0x9e3779b97f4a7c15n) & (2n ** 64n - 1n);
}

/** A prompt: the way to one block of the tree, or a straight one. */
export function promptOf(block: number, straight: boolean): bigint[] {
  if (straight) return Array.from({ length: 1 + (block % 300) }, (_, i) => hashOf(1000 + i));
  const way: bigint[] = [];
  for (let at = block % BLOCKS; at > 0; at = Math.floor(at / 3)) way.push(hashOf(at));
  return way.reverse();
}

/** The action of one step: `kind` counts up from stores over removals to clears. */
export interface Step {
  readonly kind: number;
  readonly target: number;
  readonly tier: number;
  readonly block: number;
  readonly straight: boolean;
  /** Share of the prompt that is left out at its beginning, of 256. */
  readonly from: number;
  readonly reversed: boolean;
  /** The parent reported is not the preceding block. */
  readonly lies: boolean;
}

export function randomStep(random: Random): Step {
  return {
    kind: randomBelow(random, 100),
    target: randomBelow(random, TARGETS),
    tier: randomBelow(random, 3),
    block: randomBelow(random, BLOCKS),
    straight: randomBelow(random, 4) === 0,
    from: randomBelow(random, 256),
    reversed: randomBelow(random, 2) === 0,
    lies: randomBelow(random, 10) === 0,
  };
}

export function changeOf(step: Step): IndexChange {
  const target = step.target as TargetId;
  const tier = RESIDENCY_TIERS[step.tier]!;
  const prompt = promptOf(step.block, step.straight);
  const from = Math.floor((prompt.length * step.from) / 256);
  const told = step.lies ? hashOf(step.from) : (prompt[from - 1] ?? null);
  const some = prompt.slice(from);
  return { target, change: change() };

  function change(): ResidencyChange {
    if (step.kind >= 98) return { kind: "cleared", tier: step.reversed ? tier : null };
    if (step.kind >= 55) {
      if (step.reversed) some.reverse();
      return { kind: "removed", tier, hashes: BigUint64Array.from(some) };
    }
    const hashes = BigUint64Array.from(some);
    return { kind: "stored", tier, parent: told, hashes, tokenHashes: null };
  }
}

/** An answer as rows, in the order of targets. */
export function rowsOf(found: PrefixMatches) {
  return Array.from({ length: found.count }, (_, i) => ({
    target: found.targets[i]!,
    tiers: [found.device[i]!, found.host[i]!, found.disk[i]!],
  }));
}

/** Everything that is held, as one line for each block and holder. */
export function heldIn(index: PrefixIndex, target?: TargetId): string[] {
  const lines: string[] = [];
  for (const run of index.dump(target)) {
    for (const hash of run.hashes) lines.push(`${run.target} ${run.tier} ${hash}`);
  }
  return lines.sort();
}

/** No run comes before one that has its parent for the same target and tier. */
export function expectParentsFirst(index: PrefixIndex): void {
  const ends = new Map<string, number>();
  const runs = [...index.dump()];
  runs.forEach(({ target, tier, hashes }, at) => {
    for (const hash of hashes) ends.set(`${target} ${tier} ${hash}`, at);
  });
  runs.forEach(({ target, tier, parent }, at) => {
    if (parent === null) return;
    expect(ends.get(`${target} ${tier} ${parent}`) ?? -1).toBeLessThan(at);
  });
}

/** Equal in every way that can be asked. */
export function expectSame(ours: PrefixIndex, model: PrefixIndex): void {
  expect(heldIn(ours)).toEqual(heldIn(model));
  const { blocks, heldBlocks } = model.stats;
  expect(ours.stats).toMatchObject({ blocks, heldBlocks, forgotten: 0 });
  for (let number = 0; number < TARGETS; number++) {
    const target = number as TargetId;
    expect(ours.digests(target)).toEqual(model.digests(target));
    expect(heldIn(ours, target)).toEqual(heldIn(model, target));
  }
}
