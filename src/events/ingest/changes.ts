import type { ResidencyChange, ResidencyTier } from "../../observability/activity/index.ts";

/**
 * A residency change together with its blocks' tokens, for readers that compute their own block
 * names from tokens.
 */
export interface IngestChange {
  readonly change: ResidencyChange;
  /** Tokens of all blocks of a `stored` change, in order. Null if unknown. */
  readonly tokens: Uint32Array | null;
  /** True if the blocks have no LoRA adapter, salt, media or other extra keys. */
  readonly isPlain: boolean;
}

export interface StoredBlock {
  readonly tier: ResidencyTier;
  readonly parent: bigint | null;
  readonly sequence: bigint;
  /** Hash of the block's own tokens. Null if unknown. */
  readonly local: bigint | null;
  /** An array that contains the block's tokens. Null if they are unknown. */
  readonly tokens: Uint32Array | null;
  /** Index in `tokens` of the block's first token. Default: 0. */
  readonly at?: number;
  /** Number of the block's tokens. Default: all of `tokens`. */
  readonly count?: number;
  readonly isPlain: boolean;
}

/**
 * Collects blocks one by one and combines consecutive ones into as few changes as possible, in the
 * same order.
 */
export class ChangeList {
  readonly #changes: IngestChange[] = [];
  #stored: StoredBlock[] = [];
  #removed: { readonly tier: ResidencyTier; readonly hashes: bigint[] } | null = null;
  /** Number of blocks in all collected changes. */
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

  /** Returns all collected changes and empties the list. */
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

/** Returns the tokens of all blocks in one array. Null if those of any block are unknown. */
function joined(blocks: readonly StoredBlock[]): Uint32Array | null {
  let count = 0;
  for (const block of blocks) {
    if (block.tokens === null) return null;
    count += block.count ?? block.tokens.length;
  }
  const whole = new Uint32Array(count);
  let to = 0;
  for (const { tokens, at = 0, count: own = tokens!.length } of blocks) {
    for (let i = 0; i < own; i++) whole[to++] = tokens![at + i];
  }
  return whole;
}

/** Reasons why the ingest skips an event of an engine. */
export const DROP_REASONS = [
  /** The event or the whole batch could not be decoded. */
  "unreadable",
  /** The batch comes from another data-parallel rank. */
  "other_rank",
  /**
   * The KV group does not keep every block of a prefix (sliding windows, state spaces and similar).
   */
  "other_group",
  "unknown_medium",
  /** The medium does not belong to this worker: it is remote, or has another owner. */
  "external",
  /** The event's block size differs from the expected one. */
  "block_size",
  /** The last page of a prompt, with fewer tokens than a block. */
  "partial_block",
  /**
   * The event has more tokens than its blocks can contain, so the tokens cannot be assigned to
   * blocks.
   */
  "skipped_blocks",
  /** The event names a block as its own parent. */
  "own_parent",
  /** The parent block is unknown, and the table of blocks that wait for their parents is full. */
  "unknown_parent",
  /** The event names an unknown block without its tokens. */
  "placeholder",
  /** The event has a LoRA adapter's number but not its name. */
  "unnamed_lora",
  /** The table of known blocks is full. */
  "too_many",
  /** The event removes a block that was not known to be resident. */
  "not_held",
] as const;
export type DropReason = (typeof DROP_REASONS)[number];

export type IngestCounts = ReturnType<typeof noCounts>;

export function noCounts() {
  return {
    batches: 0,
    events: 0,
    /**
     * Numbers of blocks in applied events. `stored` counts each copy of a block; `reannounced`,
     * blocks reported again; `removed`, removals.
     */
    stored: 0,
    reannounced: 0,
    removed: 0,
    /** Gaps in the batches' sequence numbers. */
    gaps: 0,
    restarts: 0,
    replays: 0,
    /** Batches received from the engine's replay buffer. */
    replayed: 0,
    /** Batches that were neither received nor replayed, according to the sequence numbers. */
    lostBatches: 0,
    /** Skipped events per reason. For removals, this counts blocks. */
    dropped: Object.fromEntries(DROP_REASONS.map((reason) => [reason, 0])) as Record<
      DropReason,
      number
    >,
  };
}

/**
 * Reasons that leave the ingest's state incomplete: the engine may have blocks that the ingest does
 * not know.
 */
export const LOSSES: ReadonlySet<DropReason> = new Set([
  "unreadable",
  "block_size",
  "skipped_blocks",
  "unknown_parent",
  "unnamed_lora",
  "too_many",
] as const);
