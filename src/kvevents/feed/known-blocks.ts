import { assert } from "../../core/index.ts";
import { RESIDENCY_TIERS, type ResidencyTier } from "../../events/index.ts";
import type { EngineHash } from "../engine-event.ts";

/** A block by its engine's name. */
export interface KnownBlock {
  readonly sequence: bigint;
  /** The sequence hash of the block before it; null: it is the first of a prompt. */
  readonly parent: bigint | null;
  /** What its prompt's salt adds to seeds; its children inherit it. */
  readonly salt: bigint;
  /** Copies in each tier, in the order of RESIDENCY_TIERS. */
  readonly copies: [number, number, number];
}

/**
 * Which block each hash of an engine is, for as long as the engine has a copy of it, and a while
 * longer: a child may come after its parent went. Bounded: those without copies go first, oldest
 * first.
 */
export class KnownBlocks {
  readonly #max: number;
  readonly #held = new Map<EngineHash | string, KnownBlock>();
  /** Without copies, in the order in which they lost their last. */
  readonly #left = new Map<EngineHash | string, KnownBlock>();

  constructor(max: number) {
    assert(max > 0, "room for a block");
    this.#max = max;
  }

  get size(): number {
    return this.#held.size + this.#left.size;
  }

  get(hash: EngineHash): KnownBlock | null {
    const key = keyOf(hash);
    return this.#held.get(key) ?? this.#left.get(key) ?? null;
  }

  /**
   * One more copy. True: it is the first in that tier. Null: there is no room. `block` makes what
   * is not known yet.
   */
  addCopy(
    hash: EngineHash,
    tier: ResidencyTier,
    block: () => Omit<KnownBlock, "copies">,
  ): boolean | null {
    const key = keyOf(hash);
    let known = this.#held.get(key);
    if (known === undefined) {
      const left = this.#left.get(key);
      if (left === undefined && !this.#makeRoom()) return null;
      this.#left.delete(key);
      known = left ?? { ...block(), copies: [0, 0, 0] };
      this.#held.set(key, known);
    }
    return ++known.copies[placeOf(tier)] === 1;
  }

  /** One copy less. The block: it was the last in that tier. Null: there was none. */
  dropCopy(hash: EngineHash, tier: ResidencyTier): KnownBlock | "others" | null {
    const key = keyOf(hash);
    const known = this.#held.get(key);
    const place = placeOf(tier);
    if (known === undefined || known.copies[place] === 0) return null;
    if (--known.copies[place] > 0) return "others";
    if (known.copies.every((copies) => copies === 0)) {
      this.#held.delete(key);
      this.#left.set(key, known);
    }
    return known;
  }

  clear(): void {
    this.#held.clear();
    this.#left.clear();
  }

  #makeRoom(): boolean {
    if (this.size < this.#max) return true;
    const oldest = this.#left.keys().next();
    if (oldest.done) return false;
    this.#left.delete(oldest.value);
    return true;
  }
}

function placeOf(tier: ResidencyTier): 0 | 1 | 2 {
  return RESIDENCY_TIERS.indexOf(tier) as 0 | 1 | 2;
}

/** Digests by their text: equal bytes are other objects. */
function keyOf(hash: EngineHash): bigint | string {
  return typeof hash === "bigint" ? hash : Buffer.from(hash).toString("latin1");
}
