import { assert, ShardedMap, yieldToLoop } from "../../core/index.ts";
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

/**
 * An engine's hash as a map key. Digests become text, because equal bytes are different objects.
 */
export type BlockName = bigint | string;

export function blockNameOf(hash: EngineHash): BlockName {
  return typeof hash === "bigint" ? hash : Buffer.from(hash).toString("latin1");
}

/** Number of copies per tier, in the order of RESIDENCY_TIERS. */
export type Copies = [number, number, number];

export function placeOf(tier: ResidencyTier): 0 | 1 | 2 {
  return RESIDENCY_TIERS.indexOf(tier) as 0 | 1 | 2;
}

/** A block by its engine's name. */
export interface KnownBlock {
  readonly sequence: bigint;
  /** The sequence hash of the previous block; null at the start of a prompt. */
  readonly parent: bigint | null;
  /** The engine's name of the previous block. */
  readonly before: BlockName | null;
  /** Contribution of the prompt's salt to the seeds; children inherit it. */
  readonly salt: bigint;
  /** Certain copies. */
  readonly copies: Copies;
  /** Possible further copies on the device, because their events are ambiguous. */
  perhaps: number;
}

/** A block without its copies. */
export type PlacedBlock = Omit<KnownBlock, "copies" | "perhaps">;

/**
 * Maps an engine's hashes to blocks while the engine has a copy, and for some time after, because a
 * child may arrive after its parent was removed. Bounded: blocks without copies are evicted first,
 * oldest first.
 */
export class KnownBlocks {
  readonly #max: number;
  readonly #held: ShardedMap<BlockName, KnownBlock>;
  /** Blocks without copies, in the order in which they lost the last one. */
  readonly #left = new Map<BlockName, KnownBlock>();
  /** Blocks with possible copies. */
  readonly #perhaps = new Set<KnownBlock>();
  #deviceCopies = 0;
  #doubts = 0;
  /** Doubts about blocks that were forgotten since. */
  #forgottenDoubts = 0;

  constructor(max: number) {
    assert(max > 0, "max must be at least 1");
    this.#max = max;
    this.#held = new ShardedMap(max);
  }

  get size(): number {
    return this.#held.size + this.#left.size;
  }
  /** Blocks for which it is unknown whether the device has a copy. */
  get doubts(): number {
    return this.#doubts + this.#forgottenDoubts;
  }
  get hasForgottenDoubts(): boolean {
    return this.#forgottenDoubts > 0;
  }
  /** Certain copies on the device; each occupies a block of the engine's cache. */
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
   * Adds `count` copies. Returns true if they are the first in that tier, and null if the table is
   * full. `block` creates an unknown block.
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

  /** Adds a possible copy of a block that is on the device. */
  addPerhaps(name: BlockName): void {
    const known = this.#held.get(name)!;
    known.perhaps++;
    this.#perhaps.add(known);
  }

  /** Confirms that the device has a copy of a known block. Returns true if that was unknown. */
  prove(name: BlockName): boolean {
    if (this.holds(name, "device")) return false;
    const known = this.get(name)!;
    const { perhaps } = known;
    this.addCopies(name, "device", () => known);
    if (perhaps > 0) this.#lessPerhaps(known);
    return true;
  }

  /** Discards possible copies. */
  settle(): void {
    for (const known of this.#perhaps) known.perhaps = 0;
    this.#perhaps.clear();
    this.#doubts = 0;
    this.#forgottenDoubts = 0;
  }

  /**
   * Removes one copy. Returns the block if it was the last certain copy in that tier, and null if
   * there was none.
   */
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

  /** Resident blocks first, then former ones, each in an order that `restore` preserves. */
  *entries(): Generator<readonly [BlockName, KnownBlock]> {
    yield* this.#held;
    yield* this.#left;
  }

  /** Adds a block of `entries`; the caller ensures that there is room. */
  restore(name: BlockName, block: KnownBlock): void {
    const isHeld = block.copies.some((copies) => copies > 0);
    (isHeld ? this.#held : this.#left).set(name, block);
    this.#deviceCopies += block.copies[0];
    if (block.perhaps > 0) this.#perhaps.add(block);
    if (isDoubtful(block)) this.#doubts++;
  }

  /** Removes the blocks with copies in portions, then all others. */
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
/** Seeds to try if none is configured: vLLM's own, and the most common PYTHONHASHSEED. */
const SEEDS = [VLLM_DEFAULT_SEED, "0"];
/** Blocks hashed in one turn of the event loop. */
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
 * Computes the names that vLLM gives to the blocks of a prompt without LoRA and media. A name that
 * the engine has used reveals its algorithm and seed. Names under a seed that is neither configured
 * nor common stay unknown.
 */
export class PromptNames {
  readonly #native: Native;
  #hashings: readonly VllmHashing[];

  /** `seed`: PYTHONHASHSEED of the engine; null if unknown. */
  constructor(native: Native, seed: string | null = null) {
    this.#native = native;
    const seeds = seed === null ? SEEDS : [seed];
    this.#hashings = seeds.flatMap((one) =>
      ALGORITHMS.map((algorithm) => ({ algorithm, seed: one })),
    );
  }

  /** Returns the names from the first block to the last that `isWanted`; empty if none is. */
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
        algorithm,
        blockTokens,
        tokens: tokens.subarray(at, at + step),
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
