import { assert } from "../../core/index.ts";
import { RESIDENCY_TIERS, type ResidencyTier } from "../../observability/activity/index.ts";
import type { EngineHash } from "../engine-event.ts";

/** An engine's hash as a key: digests by their text, since equal bytes are other objects. */
export type BlockName = bigint | string;

export function blockNameOf(hash: EngineHash): BlockName {
  return typeof hash === "bigint" ? hash : Buffer.from(hash).toString("latin1");
}

/** Copies in each tier, in the order of RESIDENCY_TIERS. */
export type Copies = [number, number, number];

export function placeOf(tier: ResidencyTier): 0 | 1 | 2 {
  return RESIDENCY_TIERS.indexOf(tier) as 0 | 1 | 2;
}

/** A block by its engine's name. */
export interface KnownBlock {
  readonly sequence: bigint;
  /** The sequence hash of the block before it; null: it is the first of a prompt. */
  readonly parent: bigint | null;
  /** The engine's name of that block. */
  readonly before: BlockName | null;
  /** What its prompt's salt adds to seeds; its children inherit it. */
  readonly salt: bigint;
  /** Copies that are certain. */
  readonly copies: Copies;
  /** Further copies on the device that there may be: their events can mean either. */
  perhaps: number;
}

/** A block without its copies. */
export type PlacedBlock = Omit<KnownBlock, "copies" | "perhaps">;

/**
 * Which block each hash of an engine is, for as long as the engine has a copy of it, and a while
 * longer: a child may come after its parent went. Bounded: those without copies go first, oldest
 * first.
 */
export class KnownBlocks {
  readonly #max: number;
  readonly #held = new Map<BlockName, KnownBlock>();
  /** Without copies, in the order in which they lost their last. */
  readonly #left = new Map<BlockName, KnownBlock>();
  /** Those with copies that may be there. */
  readonly #perhaps = new Set<KnownBlock>();
  #deviceCopies = 0;
  #doubts = 0;
  /** Of blocks that were forgotten since. */
  #forgottenDoubts = 0;

  constructor(max: number) {
    assert(max > 0, "room for a block");
    this.#max = max;
  }

  get size(): number {
    return this.#held.size + this.#left.size;
  }
  /** Blocks of which it is unknown whether the device has a copy. */
  get doubts(): number {
    return this.#doubts + this.#forgottenDoubts;
  }
  get hasForgottenDoubts(): boolean {
    return this.#forgottenDoubts > 0;
  }
  /** Certain copies on the device, each a block of the engine's cache. */
  get deviceCopies(): number {
    return this.#deviceCopies;
  }

  get(name: BlockName): KnownBlock | null {
    return this.#held.get(name) ?? this.#left.get(name) ?? null;
  }

  holds(name: BlockName, tier: ResidencyTier): boolean {
    return (this.#held.get(name)?.copies[placeOf(tier)] ?? 0) > 0;
  }

  /**
   * `count` more copies. True: they are the first in that tier. Null: there is no room. `block`
   * makes what is not known yet.
   */
  addCopies(
    name: BlockName,
    tier: ResidencyTier,
    block: () => PlacedBlock,
    count = 1,
  ): boolean | null {
    let known = this.#held.get(name);
    if (known === undefined) {
      const left = this.#left.get(name);
      if (left === undefined && !this.#makeRoom()) return null;
      this.#left.delete(name);
      known = left ?? { ...block(), copies: [0, 0, 0], perhaps: 0 };
      this.#held.set(name, known);
    }
    const place = placeOf(tier);
    if (place === 0) {
      this.#deviceCopies += count;
      if (isDoubtful(known)) this.#doubts--;
    }
    known.copies[place] += count;
    return known.copies[place] === count;
  }

  /** One more copy on the device that may be there, of a block that the device holds. */
  addPerhaps(name: BlockName): void {
    const known = this.#held.get(name)!;
    known.perhaps++;
    this.#perhaps.add(known);
  }

  /** The device has a copy of a known block. True: that was unknown. */
  prove(name: BlockName): boolean {
    if (this.holds(name, "device")) return false;
    const known = this.get(name)!;
    const { perhaps } = known;
    this.addCopies(name, "device", () => known);
    if (perhaps > 0) this.#lessPerhaps(known);
    return true;
  }

  /** The certain copies are all that there are. */
  settle(): void {
    for (const known of this.#perhaps) known.perhaps = 0;
    this.#perhaps.clear();
    this.#doubts = 0;
    this.#forgottenDoubts = 0;
  }

  /** One copy less. The block: it was the last certain one in that tier. Null: there was none. */
  dropCopy(name: BlockName, tier: ResidencyTier): KnownBlock | "others" | null {
    const known = this.get(name);
    const place = placeOf(tier);
    if (known !== null && place === 0 && isDoubtful(known)) {
      this.#lessPerhaps(known);
      if (known.perhaps === 0) this.#doubts--;
      return "others";
    }
    if (known === null || known.copies[place] === 0) return null;
    if (place === 0) this.#deviceCopies--;
    if (--known.copies[place] > 0) return "others";
    if (place === 0 && isDoubtful(known)) this.#doubts++;
    if (known.copies.every((copies) => copies === 0)) {
      this.#held.delete(name);
      this.#left.set(name, known);
    }
    return known;
  }

  /** Those that are held, then those that were, each in an order that `restore` keeps. */
  *entries(): Generator<readonly [BlockName, KnownBlock]> {
    yield* this.#held;
    yield* this.#left;
  }

  /** A block of `entries`, into what has room for it. */
  restore(name: BlockName, block: KnownBlock): void {
    const isHeld = block.copies.some((copies) => copies > 0);
    (isHeld ? this.#held : this.#left).set(name, block);
    this.#deviceCopies += block.copies[0];
    if (block.perhaps > 0) this.#perhaps.add(block);
    if (isDoubtful(block)) this.#doubts++;
  }

  /** Takes out those with copies, some at a time, then all others. */
  *takeAll(atOnce: number): Generator<readonly KnownBlock[], void> {
    let some: KnownBlock[] = [];
    for (const [name, known] of this.#held) {
      this.#held.delete(name);
      some.push(known);
      if (some.length < atOnce) continue;
      yield some;
      some = [];
    }
    yield some;
    this.clear();
  }

  clear(): void {
    this.#held.clear();
    this.#left.clear();
    this.#deviceCopies = 0;
    this.settle();
  }

  #lessPerhaps(known: KnownBlock): void {
    known.perhaps--;
    if (known.perhaps === 0) this.#perhaps.delete(known);
  }

  #makeRoom(): boolean {
    if (this.size < this.#max) return true;
    const oldest = this.#left.entries().next();
    if (oldest.done) return false;
    const [name, block] = oldest.value;
    this.#left.delete(name);
    if (!this.#perhaps.delete(block)) return true;
    this.#doubts--;
    this.#forgottenDoubts++;
    return true;
  }
}

function isDoubtful({ copies, perhaps }: KnownBlock): boolean {
  return perhaps > 0 && copies[0] === 0;
}
