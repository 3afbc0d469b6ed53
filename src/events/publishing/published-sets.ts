import { Column, HashTable, NO_ENTRY } from "../../core/index.ts";
import {
  RESIDENCY_TIERS,
  type ResidencyChange,
  type ResidencyDigest,
  type ResidencyTier,
  RunningDigest,
} from "../../observability/activity/index.ts";
import type { StoreResidency } from "../../store/index.ts";

/** A set of blocks that a rank publishes. It equals the result of all changes published so far. */
export interface PublishedSet {
  /** Digests of the set, one per tier in the order of RESIDENCY_TIERS. */
  readonly digests: readonly ResidencyDigest[];
  /**
   * Yields the whole set as `stored` changes, some thousand blocks per step. The set may change
   * between two steps: a block that is present the whole time occurs once; a block added or removed
   * meanwhile may be missing.
   */
  slices(): Iterator<readonly ResidencyChange[], void>;
}

/** Blocks per step of `slices`. */
const SLICE_BLOCKS = 4_096;

/**
 * The blocks of one engine in its own key space, equal to the result of the changes published for
 * it. Bounded: if it is full, the oldest blocks are evicted and published as removed, so that
 * consumers see fewer blocks than the engine has.
 */
export class EngineBlockSet implements PublishedSet {
  readonly #blocksMax: number;
  readonly #tiers: readonly TierBlocks[];
  readonly #digests = RESIDENCY_TIERS.map(() => new RunningDigest());
  #forgotten = 0;
  #isDeviceWhole = true;

  constructor(blocksMax: number) {
    this.#blocksMax = blocksMax;
    this.#tiers = RESIDENCY_TIERS.map(() => new TierBlocks(blocksMax));
  }

  get blocks(): number {
    return this.#tiers.reduce((sum, { hashes }) => sum + hashes.size, 0);
  }
  get forgotten(): number {
    return this.#forgotten;
  }
  /** True if no GPU block was evicted from this set since the engine last cleared its GPU cache. */
  get isDeviceWhole(): boolean {
    return this.#isDeviceWhole;
  }
  get digests(): readonly ResidencyDigest[] {
    return this.#digests.map(({ value }) => value);
  }

  /**
   * Applies changes and returns the changes to publish. Never returns `cleared`, which would also
   * remove blocks of other key spaces; it returns `removed` with the blocks' hashes instead.
   */
  apply(changes: readonly ResidencyChange[]): readonly ResidencyChange[] {
    const published: ResidencyChange[] = [];
    for (const change of changes) {
      if (change.kind === "stored") this.#store(change, published);
      else if (change.kind === "removed") this.#remove(change.tier, change.hashes, published);
      else this.#clear(change.tier, published);
    }
    return published;
  }

  *slices(): Generator<readonly ResidencyChange[], void> {
    for (const [place, blocks] of this.#tiers.entries()) {
      const tier = RESIDENCY_TIERS[place];
      let chains = new Chains(tier);
      for (const entry of blocks.hashes.entries()) {
        chains.add(blocks.hashes.keyOf(entry), blocks.parentOf(entry));
        if (chains.blocks < SLICE_BLOCKS) continue;
        yield chains.done();
        chains = new Chains(tier);
      }
      yield chains.done();
    }
  }

  #store(change: ResidencyChange & { kind: "stored" }, published: ResidencyChange[]): void {
    const { tier, hashes } = change;
    const place = RESIDENCY_TIERS.indexOf(tier);
    const blocks = this.#tiers[place];
    let { parent } = change;
    let isNews = false;
    for (const hash of hashes) {
      if (blocks.add(hash, parent)) {
        this.#digests[place].count(Number(hash & LOW), Number(hash >> 32n), 1);
        isNews = true;
      }
      parent = hash;
    }
    if (!isNews) return;
    published.push(change);
    const excess = this.blocks - this.#blocksMax;
    if (excess > 0) this.#forget(place, excess, published);
  }

  /**
   * Evicts `count` blocks, the oldest ones of this tier first, then those of the other tiers.
   * `place` is the tier's index.
   */
  #forget(place: number, count: number, published: ResidencyChange[]): void {
    this.#forgotten += count;
    let left = count;
    for (const at of [place, 0, 1, 2]) {
      const oldest = this.#tiers[at].takeOldest(left);
      if (at === DEVICE && oldest.length > 0) this.#isDeviceWhole = false;
      this.#gone(at, oldest, published);
      left -= oldest.length;
    }
  }

  #remove(tier: ResidencyTier, hashes: BigUint64Array, published: ResidencyChange[]): void {
    const place = RESIDENCY_TIERS.indexOf(tier);
    const gone = hashes.filter((hash) => this.#tiers[place].delete(hash));
    this.#gone(place, gone, published);
  }

  /** Appends a `removed` change for blocks that are no longer in the set. */
  #gone(place: number, hashes: BigUint64Array, published: ResidencyChange[]): void {
    for (const hash of hashes) {
      this.#digests[place].count(Number(hash & LOW), Number(hash >> 32n), -1);
    }
    if (hashes.length > 0) {
      published.push({ kind: "removed", tier: RESIDENCY_TIERS[place], hashes });
    }
  }

  #clear(tier: ResidencyTier | null, published: ResidencyChange[]): void {
    for (const [place, blocks] of this.#tiers.entries()) {
      const name = RESIDENCY_TIERS[place];
      if (tier !== null && tier !== name) continue;
      if (place === DEVICE) this.#isDeviceWhole = true;
      this.#gone(place, blocks.takeOldest(blocks.hashes.size), published);
    }
  }
}

/** The blocks of one tier, each with its parent's hash, oldest first. */
class TierBlocks {
  readonly hashes: HashTable;
  readonly #parents = new Column(BigUint64Array);
  readonly #hasParent = new Column(Uint8Array);

  constructor(max: number) {
    this.hashes = new HashTable(max);
  }

  /** Adds a block. Returns false if it is in the set already. */
  add(hash: bigint, parent: bigint | null): boolean {
    if (this.hashes.find(hash) !== NO_ENTRY) return false;
    const entry = this.hashes.add(hash);
    this.#parents.set(entry, parent ?? 0n);
    this.#hasParent.set(entry, parent === null ? 0 : 1);
    return true;
  }

  parentOf(entry: number): bigint | null {
    return this.#hasParent.get(entry) === 0 ? null : this.#parents.get(entry);
  }

  /** Removes a block. Returns false if it is not in the set. */
  delete(hash: bigint): boolean {
    const entry = this.hashes.find(hash);
    if (entry === NO_ENTRY) return false;
    this.hashes.delete(entry);
    return true;
  }

  /** Removes and returns the oldest blocks, at most `count`. */
  takeOldest(count: number): BigUint64Array {
    const taken = new BigUint64Array(Math.min(count, this.hashes.size));
    for (let i = 0; i < taken.length; i++) {
      const entry = this.hashes.oldest();
      taken[i] = this.hashes.keyOf(entry);
      this.hashes.delete(entry);
    }
    return taken;
  }
}

const LOW = 0xffff_ffffn;
const DEVICE = RESIDENCY_TIERS.indexOf("device");

/** Combines consecutive blocks of one tier into runs. */
export class Chains {
  readonly #tier: ResidencyTier;
  readonly #changes: ResidencyChange[] = [];
  #parent: bigint | null = null;
  #chain: bigint[] = [];
  blocks = 0;

  constructor(tier: ResidencyTier) {
    this.#tier = tier;
  }

  add(hash: bigint, parent: bigint | null): void {
    if (this.#chain.length > 0 && this.#chain.at(-1) !== parent) this.#end();
    if (this.#chain.length === 0) this.#parent = parent;
    this.#chain.push(hash);
    this.blocks++;
  }

  done(): readonly ResidencyChange[] {
    this.#end();
    return this.#changes;
  }

  #end(): void {
    if (this.#chain.length === 0) return;
    const hashes = BigUint64Array.from(this.#chain);
    const [tier, parent] = [this.#tier, this.#parent];
    this.#changes.push({ kind: "stored", tier, parent, hashes, tokenHashes: null });
    this.#chain = [];
  }
}

/** Table entries examined per step, which takes about a millisecond. */
const ENTRIES = 2_048;

/** Returns the blocks of this host's store on these tiers as a published set. */
export function storeBlocks(
  residency: StoreResidency,
  tiers: readonly ResidencyTier[],
): PublishedSet {
  return {
    get digests() {
      const { digests } = residency;
      return (["device", "host", "disk"] as const).map((tier, i) =>
        tiers.includes(tier) ? digests[i] : NOTHING,
      );
    },
    *slices() {
      let from: number | null = 0;
      while (from !== null) {
        const { changes, next } = residency.slice(from, ENTRIES);
        from = next;
        yield changes.filter(({ tier }) => tier !== null && tiers.includes(tier));
      }
    },
  };
}

const NOTHING: ResidencyDigest = { blocks: 0, mix: 0n };

/** Combines the digests of disjoint sets, tier by tier. */
export function joinDigests(all: readonly (readonly ResidencyDigest[])[]): ResidencyDigest[] {
  return [0, 1, 2].map((place) =>
    all.reduce<ResidencyDigest>(
      (sum, digests) => ({
        blocks: sum.blocks + digests[place].blocks,
        mix: sum.mix ^ digests[place].mix,
      }),
      NOTHING,
    ),
  );
}
