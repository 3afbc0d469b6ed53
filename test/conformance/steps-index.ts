import { assert, randomBelow, seededRandom } from "../../src/core/index.ts";
import { mixHash, RESIDENCY_TIERS } from "../../src/observability/activity/index.ts";
import type { IndexChange, PrefixIndex, TargetId } from "../../src/router/index.ts";
import { Chains } from "./chains.ts";
import { LiteralIndex } from "./literal/index-model.ts";

const TARGETS = 24;
const CHAINS = 400;
const BLOCKS_MAX = 80;
/** Steps that go to the index at once, before it is asked. */
const BATCH_MAX = 64;

/** Random changes, asked between them about random prompts. Throws where index and model differ. */
export function walkIndex(index: PrefixIndex, steps: number, seed: number): { asked: number } {
  const random = seededRandom(seed);
  const chains = new Chains(random, CHAINS, BLOCKS_MAX);
  const model = new LiteralIndex();
  const below = (count: number) => randomBelow(random, count);
  let [done, asked] = [0, 0];
  while (done < steps) {
    const batch: IndexChange[] = [];
    const count = Math.min(steps - done, 1 + below(BATCH_MAX));
    for (let made = 0; made < count; made++) batch.push(change(below(TARGETS) as TargetId));
    index.apply(batch);
    done += count;
    compare(chains.prompt());
    asked++;
    if (below(200) === 0) compareDigests(below(TARGETS) as TargetId);
  }
  for (let target = 0; target < TARGETS; target++) compareDigests(target as TargetId);
  return { asked };

  function change(target: TargetId): IndexChange {
    const tier = RESIDENCY_TIERS[below(3)]!;
    const kind = below(1_000);
    if (kind === 0) {
      const which = below(2) === 0 ? tier : null;
      model.clear(target, which);
      return { target, change: { kind: "cleared", tier: which } };
    }
    const { parent, hashes } = chains.piece();
    if (kind < 550) {
      model.store(target, tier, hashes);
      return { target, change: { kind: "stored", tier, parent, hashes, tokenHashes: null } };
    }
    // One block out of the middle, or all of the piece.
    const gone = kind < 750 ? hashes.subarray(0, 1) : hashes;
    model.remove(target, tier, gone);
    return { target, change: { kind: "removed", tier, hashes: gone } };
  }

  function compare(prompt: readonly bigint[]): void {
    const found = index.match(new BigUint64Array(prompt));
    assert(found.exactBlocks === prompt.length, "an index with room forgets nothing");
    const said = new Map<number, readonly number[]>();
    for (let at = 0; at < found.count; at++) {
      const counts = [found.device[at]!, found.host[at]!, found.disk[at]!];
      said.set(found.targets[at]!, counts);
    }
    for (let target = 0; target < TARGETS; target++) {
      const { device, host, disk } = model.overlap(target, prompt);
      const given = said.get(target) ?? [0, 0, 0];
      const isEqual = given[0] === device && given[1] === host && given[2] === disk;
      assert(isEqual, `target ${target}: ${given} for ${[device, host, disk]}, step ${done}`);
    }
  }

  function compareDigests(target: TargetId): void {
    const digests = index.digests(target);
    assert(digests !== null, "an index with room for all keeps digests");
    for (const [at, tier] of RESIDENCY_TIERS.entries()) {
      const blocks = model.blocks(target, tier);
      let mix = 0n;
      for (const hash of blocks) mix ^= mixHash(hash);
      const { blocks: count, mix: given } = digests[at]!;
      assert(count === blocks.size && given === mix, `digest of target ${target}, ${tier}`);
    }
  }
}
