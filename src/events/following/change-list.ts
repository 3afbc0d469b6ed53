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
