/** Why something that an engine said was left out. */
export const DROP_REASONS = [
  /** An event, or a whole batch, that could not be read. */
  "unreadable",
  /** A batch of another rank than the feed's. */
  "other_rank",
  /** Sliding windows, state spaces and the like: they do not hold every block of a prefix. */
  "other_group",
  "unknown_medium",
  /** On a medium that is not the worker's own; of another locality or owner. */
  "external",
  /** Blocks of another size than the feed's. */
  "block_size",
  /** A last page with fewer tokens than a block. */
  "partial_block",
  /** More tokens than its blocks hold: which of them are there cannot be told. */
  "skipped_blocks",
  /** A block that names itself as its parent. */
  "own_parent",
  /** Of a parent that is not known, and there is no room to keep it until the parent comes. */
  "unknown_parent",
  /** Without tokens, of a block that is not known. */
  "placeholder",
  /** A LoRA adapter without a name. */
  "unnamed_lora",
  /** More blocks than the feed may know. */
  "too_many",
  /** A removal of what was not known to be there. */
  "not_held",
] as const;
export type DropReason = (typeof DROP_REASONS)[number];

export interface FeedCounts {
  batches: number;
  events: number;
  /** Blocks of events that were taken: stored (each copy), announced once more, removed. */
  stored: number;
  reannounced: number;
  removed: number;
  /** Times that numbers were missing. */
  gaps: number;
  restarts: number;
  replays: number;
  /** Batches that a replay brought. */
  replayed: number;
  /** Batches that are lost for good, as far as numbers tell. */
  lostBatches: number;
  /** Events; of removals, blocks. */
  readonly dropped: Record<DropReason, number>;
}

export function noCounts(): FeedCounts {
  const dropped = Object.fromEntries(DROP_REASONS.map((reason) => [reason, 0]));
  return {
    batches: 0,
    events: 0,
    ...{ stored: 0, reannounced: 0, removed: 0 },
    gaps: 0,
    restarts: 0,
    replays: 0,
    replayed: 0,
    lostBatches: 0,
    dropped: dropped as Record<DropReason, number>,
  };
}

/** Reasons after which the engine may hold blocks that the feed does not know. */
export const LOSSES: ReadonlySet<DropReason> = new Set([
  "unreadable",
  "block_size",
  "skipped_blocks",
  "unknown_parent",
  "unnamed_lora",
  "too_many",
] as const);
