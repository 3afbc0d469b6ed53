import { assert, Column, HashTable, NO_ENTRY, yieldToLoop } from "../../core/index.ts";
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
 * An engine's block hash in 64 bits. If the engine sends digests, this is the last eight bytes,
 * which vLLM by default also uses as the block hash in its events.
 */
export type BlockName = bigint;

export function blockNameOf(hash: EngineHash): BlockName {
  if (typeof hash === "bigint") return BigInt.asUintN(64, hash);
  if (hash.length >= 8) return vllmExternalHash(hash);
  // Engines send no digests of fewer than eight bytes, but a damaged event may contain one.
  return hash.reduce((sum, byte) => (sum << 8n) | BigInt(byte), 0n);
}

/** Number of copies of a block per tier, in the order of RESIDENCY_TIERS. */
export type Copies = [number, number, number];

export function placeOf(tier: ResidencyTier): 0 | 1 | 2 {
  return RESIDENCY_TIERS.indexOf(tier) as 0 | 1 | 2;
}

/** An engine's block with a known sequence hash. */
export interface KnownBlock {
  readonly sequence: bigint;
  /** Sequence hash of the previous block; null at the start of a prompt. */
  readonly parent: bigint | null;
  /** The engine's name of the previous block; null at the start of a prompt. */
  readonly before: BlockName | null;
  /** Number that the prompt's salt adds to the seeds. The block's children use the same one. */
  readonly salt: bigint;
  /** Copies that certainly exist. */
  readonly copies: Copies;
  /**
   * Possible further copies on the GPU. They are uncertain because the engine's events are
   * ambiguous.
   */
  readonly perhaps: number;
}

/** A block without the numbers of its copies. */
export type PlacedBlock = Omit<KnownBlock, "copies" | "perhaps">;

/**
 * Lists of the table: blocks with copies (RESIDENT), and blocks without (FORMER), in the order in
 * which they lost their last copy.
 */
const [RESIDENT, FORMER] = [0, 1];
const [HAS_PARENT, HAS_BEFORE] = [1, 2];

/**
 * The blocks of an engine by the engine's hash. A block stays while the engine has a copy, and for
 * some time longer, because a child may be stored after its parent was removed. Bounded: blocks
 * without copies are evicted first, oldest first.
 */
export class KnownBlocks {
  readonly #max: number;
  readonly #names: HashTable;
  readonly #sequence = new Column(BigUint64Array);
  readonly #parent = new Column(BigUint64Array);
  readonly #before = new Column(BigUint64Array);
  readonly #salt = new Column(BigUint64Array);
  readonly #flags = new Column(Uint8Array);
  /** Numbers of certain copies, one column per tier in the order of RESIDENCY_TIERS. */
  readonly #copies = [new Column(Uint32Array), new Column(Uint32Array), new Column(Uint32Array)];
  readonly #perhaps = new Column(Uint32Array);
  /** Entries of blocks that have possible copies. */
  readonly #withPerhaps = new Set<number>();
  #deviceCopies = 0;
  #doubts = 0;
  /** Number of doubtful blocks that were evicted from this table. */
  #forgottenDoubts = 0;

  constructor(max: number) {
    this.#max = max;
    this.#names = new HashTable(max, 2);
  }

  get size(): number {
    return this.#names.size;
  }
  /** Number of blocks for which it is unknown whether the GPU has a copy. */
  get doubts(): number {
    return this.#doubts + this.#forgottenDoubts;
  }
  get hasForgottenDoubts(): boolean {
    return this.#forgottenDoubts > 0;
  }
  /** Number of certain copies on the GPU. Each occupies a block of the engine's cache. */
  get deviceCopies(): number {
    return this.#deviceCopies;
  }

  get(name: BlockName): KnownBlock | null {
    const entry = this.#names.find(name);
    return entry === NO_ENTRY ? null : this.#blockAt(entry);
  }

  holds(name: BlockName, tier: ResidencyTier): boolean {
    const entry = this.#names.find(name);
    return entry !== NO_ENTRY && this.#copies[placeOf(tier)].get(entry) > 0;
  }

  /**
   * Adds `count` copies. Returns true if they are the block's first on that tier, and null if the
   * table is full. `block` is called to create an entry if the block is unknown.
   */
  addCopies(
    name: BlockName,
    tier: ResidencyTier,
    block: () => PlacedBlock,
    count = 1,
  ): boolean | null {
    let entry = this.#names.find(name);
    if (entry === NO_ENTRY) {
      if (!this.#makeRoom()) return null;
      entry = this.#add(name, block());
    } else if (this.#names.listOf(entry) === FORMER) this.#names.move(entry, RESIDENT);
    const place = placeOf(tier);
    if (place === 0) {
      this.#deviceCopies += count;
      if (this.#isDoubtful(entry)) this.#doubts--;
    }
    const copies = this.#copies[place].get(entry) + count;
    this.#copies[place].set(entry, copies);
    return copies === count;
  }

  /** Adds a possible copy of a block that is on the GPU already. */
  addPerhaps(name: BlockName): void {
    const entry = this.#names.find(name);
    assert(entry !== NO_ENTRY, "the block is known");
    this.#perhaps.set(entry, this.#perhaps.get(entry) + 1);
    this.#withPerhaps.add(entry);
  }

  /**
   * Records that the GPU certainly has a copy of a known block. Returns true if that was unknown
   * before.
   */
  prove(name: BlockName): boolean {
    if (this.holds(name, "device")) return false;
    const entry = this.#names.find(name);
    const perhaps = this.#perhaps.get(entry);
    this.addCopies(name, "device", () => this.#blockAt(entry));
    if (perhaps > 0) this.#lessPerhaps(entry);
    return true;
  }

  /** Removes all possible copies, so that no block is doubtful. */
  settle(): void {
    for (const entry of this.#withPerhaps) this.#perhaps.set(entry, 0);
    this.#withPerhaps.clear();
    this.#doubts = 0;
    this.#forgottenDoubts = 0;
  }

  /**
   * Removes one copy. Returns the block if it was the last certain copy on that tier, `others` if
   * more copies remain, and null if there was none.
   */
  dropCopy(name: BlockName, tier: ResidencyTier): KnownBlock | "others" | null {
    const entry = this.#names.find(name);
    if (entry === NO_ENTRY) return null;
    const place = placeOf(tier);
    if (place === 0 && this.#isDoubtful(entry)) {
      this.#lessPerhaps(entry);
      if (this.#perhaps.get(entry) === 0) this.#doubts--;
      return "others";
    }
    const copies = this.#copies[place].get(entry);
    if (copies === 0) return null;
    if (place === 0) this.#deviceCopies--;
    this.#copies[place].set(entry, copies - 1);
    if (copies > 1) return "others";
    if (place === 0 && this.#isDoubtful(entry)) this.#doubts++;
    if (this.#copies.every((column) => column.get(entry) === 0)) this.#names.move(entry, FORMER);
    return this.#blockAt(entry);
  }

  /** Yields all blocks, those with copies first. `restore` keeps the order. */
  *entries(): Generator<readonly [BlockName, KnownBlock]> {
    for (const list of [RESIDENT, FORMER]) {
      for (const entry of this.#names.entries(list)) {
        yield [this.#names.keyOf(entry), this.#blockAt(entry)];
      }
    }
  }

  /** Adds a block that `entries` yielded. The caller ensures that there is room. */
  restore(name: BlockName, block: KnownBlock): void {
    // A damaged file may contain a block twice.
    if (this.#names.find(name) !== NO_ENTRY) return;
    const entry = this.#add(name, block);
    for (const [place, copies] of block.copies.entries()) this.#copies[place].set(entry, copies);
    this.#perhaps.set(entry, block.perhaps);
    if (block.copies.every((copies) => copies === 0)) this.#names.move(entry, FORMER);
    this.#deviceCopies += block.copies[0];
    if (block.perhaps > 0) this.#withPerhaps.add(entry);
    if (this.#isDoubtful(entry)) this.#doubts++;
  }

  /** Removes all blocks. Yields those with copies in groups of at most `atOnce`. */
  *takeAll(atOnce: number): Generator<readonly KnownBlock[], void> {
    let some: KnownBlock[] = [];
    for (const entry of this.#names.entries(RESIDENT)) {
      some.push(this.#blockAt(entry));
      this.#names.delete(entry);
      if (some.length < atOnce) continue;
      yield some;
      some = [];
    }
    yield some;
    this.clear();
  }

  clear(): void {
    this.settle();
    this.#names.clear();
    this.#deviceCopies = 0;
  }

  #add(name: BlockName, { sequence, parent, before, salt }: PlacedBlock): number {
    const entry = this.#names.add(name, RESIDENT);
    this.#sequence.set(entry, sequence);
    this.#parent.set(entry, parent ?? 0n);
    this.#before.set(entry, before ?? 0n);
    this.#salt.set(entry, salt);
    this.#flags.set(entry, (parent === null ? 0 : HAS_PARENT) | (before === null ? 0 : HAS_BEFORE));
    for (const column of this.#copies) column.set(entry, 0);
    this.#perhaps.set(entry, 0);
    return entry;
  }

  #blockAt(entry: number): KnownBlock {
    const flags = this.#flags.get(entry);
    const [device, host, disk] = this.#copies;
    return {
      sequence: this.#sequence.get(entry),
      parent: flags & HAS_PARENT ? this.#parent.get(entry) : null,
      before: flags & HAS_BEFORE ? this.#before.get(entry) : null,
      salt: this.#salt.get(entry),
      copies: [device!.get(entry), host!.get(entry), disk!.get(entry)],
      perhaps: this.#perhaps.get(entry),
    };
  }

  #isDoubtful(entry: number): boolean {
    return this.#perhaps.get(entry) > 0 && this.#copies[0].get(entry) === 0;
  }

  #lessPerhaps(entry: number): void {
    const perhaps = this.#perhaps.get(entry) - 1;
    this.#perhaps.set(entry, perhaps);
    if (perhaps === 0) this.#withPerhaps.delete(entry);
  }

  #makeRoom(): boolean {
    if (this.size < this.#max) return true;
    const oldest = this.#names.oldest(FORMER);
    if (oldest === NO_ENTRY) return false;
    this.#names.delete(oldest);
    if (!this.#withPerhaps.delete(oldest)) return true;
    this.#doubts--;
    this.#forgottenDoubts++;
    return true;
  }
}

/** Hash algorithms of vLLM to try, its default first. */
const ALGORITHMS: readonly VllmHashAlgorithm[] = ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"];
/** Seeds to try if none is configured: vLLM's default, and the most common PYTHONHASHSEED. */
const SEEDS = [VLLM_DEFAULT_SEED, "0"];
/** Blocks hashed per turn of the event loop. */
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
 * Computes the hashes (names) that vLLM gives to the blocks of a prompt without LoRA and media. If
 * the engine has used a computed name, its hash algorithm and seed are known from then on. If its
 * seed is neither configured nor common, its names cannot be computed.
 */
export class PromptNames {
  readonly #native: Native;
  #hashings: readonly VllmHashing[];

  /** `seed`: value of PYTHONHASHSEED in the engine's environment; null if unknown. */
  constructor(native: Native, seed: string | null = null) {
    this.#native = native;
    const seeds = seed === null ? SEEDS : [seed];
    this.#hashings = seeds.flatMap((one) =>
      ALGORITHMS.map((algorithm) => ({ algorithm, seed: one })),
    );
  }

  /**
   * Returns the engine's names of the prompt's blocks, from the first to the last for which
   * `isWanted` returns true. Empty if there is none.
   */
  async find(
    prompt: NamedPrompt,
    isWanted: (name: BlockName) => boolean,
    signal: AbortSignal,
  ): Promise<readonly BlockName[]> {
    for (const hashing of this.#hashings) {
      const digests = await this.#digests(prompt, hashing, signal);
      const names = digests.map((digest) => blockNameOf(digest));
      const last = names.findLastIndex((name) => isWanted(name));
      if (last < 0) continue;
      this.#hashings = [hashing];
      return names.slice(0, last + 1);
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
