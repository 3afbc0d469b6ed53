import type { ResidencyChange, ResidencyTier } from "../../observability/activity/index.ts";

/** A change, and what led to it where the reader computes names of its own. */
export interface FeedChange {
  readonly change: ResidencyChange;
  /** Of a `stored` all tokens of its blocks, in order; null where they are not known. */
  readonly tokens: Uint32Array | null;
  /** Neither LoRA, nor salt, nor media, nor anything else beside the tokens. */
  readonly isPlain: boolean;
}

export interface StoredBlock {
  readonly tier: ResidencyTier;
  readonly parent: bigint | null;
  readonly sequence: bigint;
  /** Null: not known. */
  readonly local: bigint | null;
  readonly tokens: Uint32Array | null;
  readonly isPlain: boolean;
}

/** Blocks, one after another, as the fewest changes that say the same in the same order. */
export class ChangeList {
  readonly #changes: FeedChange[] = [];
  #stored: StoredBlock[] = [];
  #removed: { readonly tier: ResidencyTier; readonly hashes: bigint[] } | null = null;
  /** Blocks in the list. */
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

  /** All of them; the list is then empty. */
  take(): FeedChange[] {
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

function joined(blocks: readonly StoredBlock[]): Uint32Array | null {
  const parts = blocks.map((block) => block.tokens).filter((tokens) => tokens !== null);
  if (parts.length < blocks.length) return null;
  const whole = new Uint32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

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
