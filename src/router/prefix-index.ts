import type {
  ResidencyChange,
  ResidencyDigest,
  ResidencyTier,
} from "../observability/activity/index.ts";
import type { TargetId } from "./workers.ts";

/**
 * Blocks of one prompt held by each target. Arrays are parallel to `targets`, owned by the index
 * and valid until its next call.
 *
 * For `hashes[0..n)`: `device` is the largest d with all of `[0, d)` on the device; `host` the
 * largest h with all of `[d, d + h)` in host memory; `disk` likewise from `d + h` on. Targets that
 * hold none of it are omitted.
 */
export interface PrefixMatches {
  readonly count: number;
  readonly targets: Uint16Array;
  readonly device: Uint32Array;
  readonly host: Uint32Array;
  readonly disk: Uint32Array;
  /**
   * Number of leading hashes for which the answer is exact. Beyond it, entries were pruned and a
   * target may hold more than reported. Equals the number of hashes if nothing was pruned.
   */
  readonly exactBlocks: number;
}

/**
 * Matches of many prompts in one set of arrays: prompt `i` occupies `[starts[i], starts[i] +
 * counts[i])`. Arrays are owned by the index and valid until its next call.
 */
export interface PrefixBatch {
  readonly starts: Uint32Array;
  readonly counts: Uint32Array;
  readonly exactBlocks: Uint32Array;
  readonly targets: Uint16Array;
  readonly device: Uint32Array;
  readonly host: Uint32Array;
  readonly disk: Uint32Array;
}

export interface PrefixIndexStats {
  /** Distinct sequence hashes. */
  readonly blocks: number;
  /** Pairs of a block with a (target, tier) that holds it. */
  readonly heldBlocks: number;
  readonly runs: number;
  readonly bytes: number;
  /** Blocks pruned to stay within the memory limit, least recently used first. */
  readonly forgotten: number;
}

export interface IndexChange {
  readonly target: TargetId;
  readonly change: ResidencyChange;
}

/** `tiers` is a bit mask: bit n stands for tier n of RESIDENCY_TIERS. */
export interface BlockHolder {
  readonly target: TargetId;
  readonly tiers: number;
}

/** Consecutive blocks that one target holds in one tier, parents before children. */
export interface HeldRun {
  readonly target: TargetId;
  readonly tier: ResidencyTier;
  readonly parent: bigint | null;
  readonly hashes: BigUint64Array;
}

/**
 * Index of which target holds which block. It is exact while nothing is pruned: for each block it
 * reports the latest change applied, in whatever order parents and children arrived. A removed
 * block inside a prefix ends the match until it is stored again. Memory is bounded: at the limit,
 * the prefixes least recently stored or matched are pruned from their ends, and answers report up
 * to which block they are exact.
 */
export interface PrefixIndex extends Disposable {
  readonly stats: PrefixIndexStats;
  apply(changes: readonly IndexChange[]): void;
  match(hashes: BigUint64Array): PrefixMatches;
  /**
   * Matches many prompts stored one after the other in `hashes`; prompt `i` ends before `ends[i]`.
   * Cheaper than one call per prompt.
   */
  matchMany(hashes: BigUint64Array, ends: Uint32Array): PrefixBatch;
  /** Holders of each single block, at most `max` targets per block. Used by `kv-locate`. */
  holders(hashes: BigUint64Array, max: number): readonly (readonly BlockHolder[])[];
  /** Removes all entries of a target. */
  drop(target: TargetId): void;
  /**
   * Digests in the order of RESIDENCY_TIERS. Null if entries of the target were pruned since its
   * last `drop`: a comparison would then be meaningless.
   */
  digests(target: TargetId): readonly ResidencyDigest[] | null;
  /**
   * Dumps the index or one target, parents before children. The index must not change during the
   * dump.
   */
  dump(target?: TargetId): Iterable<HeldRun>;
  /**
   * Writes the current state to a file with a checksum, atomically. The index may change during the
   * save. Rejects if the file cannot be written or another save is running.
   */
  save(path: string): Promise<void>;
  /**
   * Loads a saved file into an empty index. The caller must not use the index until it settles.
   * Resolves false, with the index empty, if the file is missing, invalid or damaged.
   */
  load(path: string): Promise<boolean>;
}
