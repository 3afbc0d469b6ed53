import type { ResidencyChange, ResidencyTier } from "../../observability/activity/index.ts";

/** A residency change, with its tokens for readers that compute names of their own. */
export interface IngestChange {
  readonly change: ResidencyChange;
  /** All tokens of the blocks of a `stored`, in order; null if unknown. */
  readonly tokens: Uint32Array | null;
  /** The blocks have no LoRA, salt, media or other extra keys. */
  readonly isPlain: boolean;
}

export interface StoredBlock {
  readonly tier: ResidencyTier;
  readonly parent: bigint | null;
  readonly sequence: bigint;
  /** Null if unknown. */
  readonly local: bigint | null;
  /** Tokens that include those of the block; null if unknown. */
  readonly tokens: Uint32Array | null;
  /** Index of the block's first token. Default: 0. */
  readonly at?: number;
  /** Tokens of the block. Default: all. */
  readonly count?: number;
  readonly isPlain: boolean;
}

/** Collects blocks one by one and joins them into the fewest changes, in the same order. */
export class ChangeList {
  readonly #changes: IngestChange[] = [];
  #stored: StoredBlock[] = [];
  #removed: { readonly tier: ResidencyTier; readonly hashes: bigint[] } | null = null;
  /** Number of blocks in the list. */
  #blocks = 0;

  get blocks(): number {
    return this.#blocks;
  }

  stored(block: StoredBlock): void {
    this.#endRemoved();
    const last = this.#stored.at(-1);
    const follows =
      last !== undefined &&
      last.tier === block.tier &&
      last.sequence === block.parent &&
      last.isPlain === block.isPlain &&
      (last.local === null) === (block.local === null);
    if (!follows) this.#endStored();
    this.#stored.push(block);
    this.#blocks++;
  }

  removed(tier: ResidencyTier, hash: bigint): void {
    this.#endStored();
    if (this.#removed?.tier !== tier) this.#endRemoved();
    this.#removed ??= { tier, hashes: [] };
    this.#removed.hashes.push(hash);
    this.#blocks++;
  }

  cleared(): void {
    this.#endStored();
    this.#endRemoved();
    this.#changes.push({ change: { kind: "cleared", tier: null }, tokens: null, isPlain: true });
  }

  /** Returns all changes and empties the list. */
  take(): IngestChange[] {
    this.#endStored();
    this.#endRemoved();
    this.#blocks = 0;
    return this.#changes.splice(0);
  }

  #endStored(): void {
    const [first] = this.#stored;
    if (first === undefined) return;
    const blocks = this.#stored;
    this.#stored = [];
    const { tier, parent, isPlain } = first;
    const change: ResidencyChange = {
      kind: "stored",
      tier,
      parent,
      hashes: BigUint64Array.from(blocks, (block) => block.sequence),
      tokenHashes: first.local === null ? null : BigUint64Array.from(blocks, (one) => one.local!),
    };
    this.#changes.push({ change, tokens: joined(blocks), isPlain });
  }

  #endRemoved(): void {
    if (this.#removed === null) return;
    const { tier, hashes } = this.#removed;
    this.#removed = null;
    const change: ResidencyChange = { kind: "removed", tier, hashes: BigUint64Array.from(hashes) };
    this.#changes.push({ change, tokens: null, isPlain: true });
  }
}

/** The tokens of all blocks; null if those of one are unknown. */
function joined(blocks: readonly StoredBlock[]): Uint32Array | null {
  let count = 0;
  for (const block of blocks) {
    if (block.tokens === null) return null;
    count += block.count ?? block.tokens.length;
  }
  const whole = new Uint32Array(count);
  let to = 0;
  for (const { tokens, at = 0, count: own = tokens!.length } of blocks) {
    for (let i = 0; i < own; i++) whole[to++] = tokens![at + i]!;
  }
  return whole;
}

/** Reasons for skipping an engine's event. */
export const DROP_REASONS = [
  /** The event or the whole batch could not be decoded. */
  "unreadable",
  /** The batch is of another rank. */
  "other_rank",
  /**
   * Sliding windows, state spaces and similar groups, which do not have every block of a prefix.
   */
  "other_group",
  "unknown_medium",
  /** The medium is not the worker's own: another locality or owner. */
  "external",
  /** The block size differs from the ingest's. */
  "block_size",
  /** A last page with fewer tokens than a block. */
  "partial_block",
  /** More tokens than the listed blocks hold, so that the blocks cannot be matched to tokens. */
  "skipped_blocks",
  /** A block that names itself as its parent. */
  "own_parent",
  /** The parent is unknown, and the table of waiting blocks is full. */
  "unknown_parent",
  /** An unknown block without tokens. */
  "placeholder",
  /** A LoRA adapter without a name. */
  "unnamed_lora",
  /** The limit of known blocks is reached. */
  "too_many",
  /** Removal of a block that was not known to be resident. */
  "not_held",
] as const;
export type DropReason = (typeof DROP_REASONS)[number];

export type IngestCounts = ReturnType<typeof noCounts>;

export function noCounts() {
  return {
    batches: 0,
    events: 0,
    /** Blocks of applied events: stored (each copy), announced again, removed. */
    stored: 0,
    reannounced: 0,
    removed: 0,
    /** Gaps in the sequence numbers. */
    gaps: 0,
    restarts: 0,
    replays: 0,
    /** Batches received by replay. */
    replayed: 0,
    /** Batches that are lost, according to the sequence numbers. */
    lostBatches: 0,
    /** Events; for removals, blocks. */
    dropped: Object.fromEntries(DROP_REASONS.map((reason) => [reason, 0])) as Record<
      DropReason,
      number
    >,
  };
}

/** Reasons after which the engine may have blocks that the ingest does not know. */
export const LOSSES: ReadonlySet<DropReason> = new Set([
  "unreadable",
  "block_size",
  "skipped_blocks",
  "unknown_parent",
  "unnamed_lora",
  "too_many",
] as const);
