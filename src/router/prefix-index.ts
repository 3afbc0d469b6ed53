import type {
  ResidencyChange,
  ResidencyDigest,
  ResidencyTier,
} from "../observability/activity/index.ts";
import type { TargetId } from "./workers.ts";

/**
 * What each target has of one prompt. Arrays are by place in `targets`, are the index's own and are
 * good until its next call.
 *
 * With `hashes[0..n)`: `device` is the largest d with all of `[0, d)` on the device; `host` the
 * largest h with all of `[d, d + h)` on the host; `disk` likewise from `d + h` on. Targets that
 * have none of it at all are left out.
 */
export interface PrefixMatches {
  readonly count: number;
  readonly targets: Uint16Array;
  readonly device: Uint32Array;
  readonly host: Uint32Array;
  readonly disk: Uint32Array;
  /**
   * Up to there the answer is exact. Behind it something was forgotten for want of room, so that
   * more may be held than is said. The number of hashes where nothing was.
   */
  readonly exactBlocks: number;
}

/**
 * Answers to many prompts, one behind the other: that to prompt `i` is in the places
 * `[starts[i], starts[i] + counts[i])`. Arrays are the index's own and are good until its next
 * call.
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
  /** Blocks forgotten for want of room, oldest first. */
  readonly forgotten: number;
}

export interface IndexChange {
  readonly target: TargetId;
  readonly change: ResidencyChange;
}

/** `tiers`: bit n stands for tier n of RESIDENCY_TIERS. */
export interface BlockHolder {
  readonly target: TargetId;
  readonly tiers: number;
}

/** Consecutive blocks that one target has in one tier, parents before children. */
export interface HeldRun {
  readonly target: TargetId;
  readonly tier: ResidencyTier;
  readonly parent: bigint | null;
  readonly hashes: BigUint64Array;
}

/**
 * Who holds what. Exact: says of each block what the last change of it said, in whatever order
 * parents and children came, as long as nothing had to be forgotten. A removed block in the middle
 * of a prefix ends what is held there until it is stored again. Memory is bounded: beyond it the
 * prefixes that were neither stored nor matched for the longest are forgotten from their ends, and
 * answers say up to where they are exact.
 */
export interface PrefixIndex extends Disposable {
  readonly stats: PrefixIndexStats;
  apply(changes: readonly IndexChange[]): void;
  match(hashes: BigUint64Array): PrefixMatches;
  /**
   * The same for many prompts that lie one behind the other in `hashes`: prompt `i` ends before
   * `ends[i]`. Cheaper than one by one.
   */
  matchMany(hashes: BigUint64Array, ends: Uint32Array): PrefixBatch;
  /** Who has each single block, and where: for `kv-locate`. At most `max` targets for each. */
  holders(hashes: BigUint64Array, max: number): readonly (readonly BlockHolder[])[];
  /** Forgets all that a target has. */
  drop(target: TargetId): void;
  /**
   * In the order of RESIDENCY_TIERS. Null once something of the target was forgotten for want of
   * room, until it is dropped: then there is nothing to compare.
   */
  digests(target: TargetId): readonly ResidencyDigest[] | null;
  /** All of it, or one target's; parents before children. Nothing may change meanwhile. */
  dump(target?: TargetId): Iterable<HeldRun>;
  /**
   * As it is now, to a file with a checksum, whole or not at all; it may change meanwhile. Throws
   * where the file cannot be written, or the last save has not ended.
   */
  save(path: string): Promise<void>;
  /**
   * Into an empty index, of which nothing else is asked meanwhile. False: the file is not one, or
   * is damaged; the index is then empty.
   */
  load(path: string): Promise<boolean>;
}
