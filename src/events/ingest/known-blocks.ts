import { assert, yieldToLoop } from "../../core/index.ts";
import {
  VLLM_DEFAULT_SEED,
  type VllmHashAlgorithm,
  vllmBlockHashes,
  vllmExternalHash,
  vllmNoneHash,
} from "../../identity/index.ts";
import type { Native } from "../../native/index.ts";
import { RESIDENCY_TIERS, type ResidencyTier } from "../../observability/activity/index.ts";
import type { EngineHash } from "../engine-events.ts";

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

/** vLLM's default first. */
const ALGORITHMS: readonly VllmHashAlgorithm[] = ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"];
/** Where the seed is not configured: vLLM's own, and the one that most set PYTHONHASHSEED to. */
const SEEDS = [VLLM_DEFAULT_SEED, "0"];
/** Blocks that are hashed in one turn of the event loop. */
const SLICE_BLOCKS = 16;

export interface NamedPrompt {
  readonly tokens: Uint32Array;
  readonly blockTokens: number;
  readonly cacheSalt: string | null;
}

interface VllmHashing {
  readonly algorithm: VllmHashAlgorithm;
  readonly seed: string;
}

/**
 * Names that vLLM gives to the blocks of a prompt without LoRA and media. Which algorithm and seed
 * an engine uses shows when a name is one that it used. Names under a seed that is neither
 * configured nor among the usual ones stay unknown.
 */
export class PromptNames {
  readonly #native: Native;
  #hashings: readonly VllmHashing[];

  /** `seed`: PYTHONHASHSEED of the engine; null: not known. */
  constructor(native: Native, seed: string | null = null) {
    this.#native = native;
    const seeds = seed === null ? SEEDS : [seed];
    this.#hashings = seeds.flatMap((one) =>
      ALGORITHMS.map((algorithm) => ({ algorithm, seed: one })),
    );
  }

  /** From the first block to the last that `isWanted`; none is: an empty list. */
  async find(
    prompt: NamedPrompt,
    isWanted: (name: BlockName) => boolean,
    signal: AbortSignal,
  ): Promise<readonly BlockName[]> {
    for (const hashing of this.#hashings) {
      const digests = await this.#digests(prompt, hashing, signal);
      for (const nameOf of [vllmExternalHash, blockNameOf]) {
        const names = digests.map((digest) => nameOf(digest));
        const last = names.findLastIndex((name) => isWanted(name));
        if (last < 0) continue;
        this.#hashings = [hashing];
        return names.slice(0, last + 1);
      }
    }
    return [];
  }

  async #digests(
    { tokens, blockTokens, cacheSalt }: NamedPrompt,
    { algorithm, seed }: VllmHashing,
    signal: AbortSignal,
  ): Promise<readonly Uint8Array[]> {
    const digests: Uint8Array[] = [];
    const step = SLICE_BLOCKS * blockTokens;
    for (let at = 0; at + blockTokens <= tokens.length && !signal.aborted; at += step) {
      const isFirst = at === 0;
      const slice = vllmBlockHashes(this.#native, {
        ...{ algorithm, blockTokens, tokens: tokens.subarray(at, at + step) },
        parent: digests.at(-1) ?? vllmNoneHash(this.#native, algorithm, seed),
        extraKeys: (index) =>
          isFirst && index === 0 && cacheSalt ? [{ kind: "cache_salt", salt: cacheSalt }] : null,
      });
      digests.push(...slice);
      await yieldToLoop();
    }
    return digests;
  }
}
