import type {
  ResidencyChange,
  ResidencyDigest,
  ResidencyTier,
} from "../observability/activity/index.ts";
import type { TargetId } from "./workers.ts";

/**
 * Cached blocks of one prompt, by target. The arrays are parallel to `targets`, belong to the
 * index, and are valid until the next call to the index.
 *
 * For `hashes[0..n)`: `device` is the largest d with all of `[0, d)` on the device; `host` is the
 * largest h with all of `[d, d + h)` in host memory; `disk` is the number of blocks from `d + h` on
 * that are all on disk. Targets with none of these blocks are omitted.
 */
export interface PrefixMatches {
  readonly count: number;
  readonly targets: Uint16Array;
  readonly device: Uint32Array;
  readonly host: Uint32Array;
  readonly disk: Uint32Array;
  /**
   * Number of leading hashes for which the result is exact; all of them if the index pruned
   * nothing. For later hashes the index pruned entries, so a target may have more blocks than
   * reported.
   */
  readonly exactBlocks: number;
}

/**
 * Matches of many prompts in one set of arrays. Prompt `i` occupies `[starts[i], starts[i] +
 * counts[i])`. The arrays belong to the index and are valid until the next call to the index.
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
  /** Number of distinct sequence hashes in the index. */
  readonly blocks: number;
  /** Number of entries: one for each block, target and tier that has the block. */
  readonly heldBlocks: number;
  readonly runs: number;
  readonly bytes: number;
  /** Number of blocks pruned so far to stay within the memory limit, least recently used first. */
  readonly forgotten: number;
}

export interface IndexChange {
  readonly target: TargetId;
  readonly change: ResidencyChange;
}

/**
 * A target that has a block. Bit n of `tiers` is set if the block is in tier n of RESIDENCY_TIERS.
 */
export interface BlockHolder {
  readonly target: TargetId;
  readonly tiers: number;
}

/** Consecutive blocks of one prefix that one target has in one tier, parents before children. */
export interface HeldRun {
  readonly target: TargetId;
  readonly tier: ResidencyTier;
  readonly parent: bigint | null;
  readonly hashes: BigUint64Array;
}

/**
 * Index of the blocks that each target has. Without pruning it is exact: it reflects the latest
 * change of each block, even if a child arrived before its parent. A match ends at a missing block,
 * even if the target has later blocks. Memory is bounded: at the limit, the index prunes the
 * prefixes least recently stored or matched, from their ends. Each result states up to which block
 * it is exact.
 */
export interface PrefixIndex extends Disposable {
  readonly stats: PrefixIndexStats;
  apply(changes: readonly IndexChange[]): void;
  match(hashes: BigUint64Array): PrefixMatches;
  /**
   * Matches many prompts, whose hashes are concatenated in `hashes`. Prompt `i` ends before index
   * `ends[i]`. Faster than one call per prompt.
   */
  matchMany(hashes: BigUint64Array, ends: Uint32Array): PrefixBatch;
  /**
   * Returns the targets that have each block, at most `max` per block. Ignores prefixes. Used by
   * `kv-locate`.
   */
  holders(hashes: BigUint64Array, max: number): readonly (readonly BlockHolder[])[];
  /** Removes all blocks of a target from the index. */
  drop(target: TargetId): void;
  /**
   * Returns the target's digest of each tier, in the order of RESIDENCY_TIERS. Returns null if
   * entries of the target were pruned since its last `drop`: digests of the full set cannot match
   * then.
   */
  digests(target: TargetId): readonly ResidencyDigest[] | null;
  /**
   * Yields the blocks of one target, or of all targets, parents before children. The index must not
   * change meanwhile.
   */
  dump(target?: TargetId): Iterable<HeldRun>;
  /**
   * Saves the index with a checksum; replaces the file atomically. The index may change during the
   * save. Rejects if the file cannot be written or another save is running.
   */
  save(path: string): Promise<void>;
  /**
   * Loads a saved file into an empty index. The caller must not use the index until the promise
   * settles. Resolves false and leaves the index empty if the file is missing, invalid or damaged.
   */
  load(path: string): Promise<boolean>;
}
