import { LAYER_ALL, NO_NODE, type NodeId } from "../core/index.ts";
import {
  type ResidencyChange,
  type ResidencyDigest,
  type ResidencyTier,
  RunningDigest,
} from "../observability/activity/index.ts";
import { type TableView, Tier } from "./blocks/index.ts";

/** Maximum number of events of one kind that are collected before they are turned into changes. */
const NOTES = 4_096;
/**
 * Maximum number of blocks announced by one call of `drain` after a restart: about a millisecond of
 * work.
 */
const ANNOUNCED_A_SLICE = 2_048;
/** Maximum number of blocks of a tree path that are announced together, parents before children. */
const PATH_MAX = 4_096;
/** Maximum number of block table entries visited for one slice. */
const LOOKS_A_SLICE = 262_144;

/**
 * Slowest tier first, so that a block that moves to a slower tier is published as stored there
 * before it is published as removed from the faster one.
 */
const TIERS: readonly { readonly bit: Tier; readonly name: ResidencyTier }[] = [
  { bit: Tier.ssd, name: "disk" },
  { bit: Tier.ram, name: "host" },
  { bit: Tier.gpu, name: "device" },
];
const ALL = Tier.gpu | Tier.ram | Tier.ssd;
/**
 * Number of bits per state in `#announced`. Low bits: tiers on which the block is announced. The
 * same bits shifted by GATHERED: tiers whose `stored` event is still being collected.
 */
const GATHERED = 4;

export interface ResidencySlice {
  readonly changes: readonly ResidencyChange[];
  /** Block table entry at which the next slice begins; null after the last slice. */
  readonly next: number | null;
}

/**
 * Collects residency changes of whole blocks (stored with all layers in one) on the tiers of this
 * host, for publishers. The changes applied in order yield the set of resident blocks. Before
 * `start` no work is done per change; after it, each change is collected until `drain`.
 *
 * The class records which blocks it has announced. Therefore it can restart at any time: it emits
 * `cleared` and then all resident blocks in slices, mixed with live changes.
 */
export class StoreResidency {
  readonly #table: TableView;
  readonly #blocksMax: number;
  readonly #words = new Uint32Array(4);
  readonly #path = new Int32Array(PATH_MAX);
  #announced: Uint8Array | null = null;
  #stored: StoredNotes[] = [];
  #removed: RemovedNotes[] = [];
  readonly #digests = TIERS.map(() => new RunningDigest());
  /** Nodes whose upper bits in `#announced` (`GATHERED`) are set. */
  #marked = new Int32Array(0);
  #markedCount = 0;
  #sealed: ResidencyChange[] = [];
  #sealedBlocks = 0;
  #announceFrom: number | null = null;
  #wake: () => void = () => undefined;
  #isAwake = false;
  #restarts = 0;

  /**
   * `blocksMax`: maximum number of hashes that wait for `drain`. Above it, the waiting changes are
   * discarded and publishing restarts.
   */
  constructor(table: TableView, blocksMax = 2 ** 20) {
    this.#table = table;
    this.#blocksMax = blocksMax;
  }

  /**
   * Starts collecting and announces all resident blocks. Calls `wake` once when there are changes
   * to drain, and again only after the next `drain`.
   */
  start(wake: () => void): void {
    this.#announced = new Uint8Array(this.#table.nodesMax + 1);
    this.#stored = TIERS.map(() => new StoredNotes(NOTES));
    this.#removed = TIERS.map(() => new RemovedNotes(NOTES));
    this.#marked = new Int32Array(NOTES * TIERS.length);
    this.#wake = wake;
    this.#announceFrom = 0;
    this.#stir();
  }

  stop(): void {
    this.#announced = null;
    this.#wake = () => undefined;
    this.#sealed = [];
    this.#announceFrom = null;
  }

  /**
   * Digest of the set of announced blocks for each tier, drained or not, in the order of
   * RESIDENCY_TIERS.
   */
  get digests(): readonly ResidencyDigest[] {
    return this.#digests.map(({ value }) => value).reverse();
  }

  /** True while resident blocks are being announced after a start or restart. */
  get isAnnouncing(): boolean {
    return this.#announceFrom !== null;
  }

  /** Number of restarts because too many changes waited for `drain`. */
  get restarts(): number {
    return this.#restarts;
  }

  /**
   * Records that a block was stored on a tier (`on`) or removed from it. The block table calls this
   * function, which must not change the table.
   */
  readonly noted = (node: NodeId, tier: Tier, on: boolean): void => {
    const announced = this.#announced;
    if (announced === null) return;
    const known = announced[node];
    if (((known & tier) !== 0) === on || (tier & ALL) === 0) return;
    if (on) this.#store(announced, node, tier);
    else this.#remove(announced, node, tier);
    if (!this.#isAwake) this.#stir();
  };

  /**
   * Returns the changes since the last call. After a start or restart, includes a slice of the
   * resident blocks.
   */
  drain(): readonly ResidencyChange[] {
    this.#isAwake = false;
    if (this.#announceFrom !== null) this.#announce(this.#announceFrom);
    this.#seal();
    const changes = this.#sealed;
    this.#sealed = [];
    this.#sealedBlocks = 0;
    if (this.#announceFrom !== null) this.#stir();
    return changes;
  }

  /** Discards the waiting changes and starts over: emits `cleared`, then all resident blocks. */
  restart(): void {
    if (this.#announced === null) return;
    this.#announced.fill(0);
    this.#markedCount = 0;
    for (const notes of [...this.#stored, ...this.#removed]) notes.drop();
    for (const digest of this.#digests) digest.clear();
    this.#sealed = [{ kind: "cleared", tier: null }];
    this.#sealedBlocks = 0;
    this.#announceFrom = 0;
    this.#stir();
  }

  /**
   * Returns a slice of the announced blocks, drained or not, beginning at table entry `from`. Start
   * with 0 and continue with `next`. A block that stays resident is in exactly one slice. Call
   * `drain` first.
   */
  slice(from: number, entries: number): ResidencySlice {
    const table = this.#table;
    const changes: ResidencyChange[] = [];
    if (this.#announced === null) return { changes, next: null };
    const first = table.nextOn((from - 1) as NodeId, ALL, from + LOOKS_A_SLICE);
    const isSparse = first === NO_NODE && from + LOOKS_A_SLICE <= table.nodesMax;
    if (first === NO_NODE) return { changes, next: isSparse ? from + LOOKS_A_SLICE : null };
    const end = first + entries;
    for (const { bit, name } of TIERS) {
      const notes = new StoredNotes(entries);
      const done = new Uint8Array(entries);
      for (let node = first; node !== NO_NODE; node = table.nextOn(node, bit, end)) {
        for (const step of this.#collect(node, (at) => this.#isOpen(at, bit, first, done))) {
          done[step - first] = 1;
          this.#read(step as NodeId);
          notes.add(this.#words);
        }
      }
      notes.take(name, changes);
    }
    return { changes, next: end <= table.nodesMax ? end : null };
  }

  #isOpen(node: NodeId, tier: Tier, first: number, done: Uint8Array): boolean {
    const at = node - first;
    return at >= 0 && at < done.length && done[at] === 0 && (this.#announced![node] & tier) !== 0;
  }

  #announce(from: number): void {
    const table = this.#table;
    const announced = this.#announced!;
    const restarts = this.#restarts;
    const end = from + LOOKS_A_SLICE;
    let told = 0;
    let node = from as NodeId;
    while (told < ANNOUNCED_A_SLICE) {
      node = table.nextOn(node, ALL, end);
      if (node === NO_NODE) {
        this.#announceFrom = end <= table.nodesMax ? end - 1 : null;
        return;
      }
      const there = table.residencyOf(node);
      for (const { bit } of TIERS) {
        if ((there & bit) === 0) continue;
        const path = this.#collect(
          node,
          (step) => (announced[step] & bit) === 0 && this.#isWhole(step, bit),
        );
        for (const step of path) this.#store(announced, step as NodeId, bit);
        if (this.#restarts !== restarts) return;
        told += path.length;
      }
    }
    this.#announceFrom = node;
  }

  #isWhole(node: NodeId, tier: Tier): boolean {
    return this.#table.isResident(node, tier) && this.#table.layerOf(node) === LAYER_ALL;
  }

  /**
   * Returns the node and its ancestors as long as `isWanted` returns true, ordered from the topmost
   * ancestor to the node.
   */
  #collect(node: NodeId, isWanted: (step: NodeId) => boolean): Int32Array {
    const path = this.#path;
    let at = PATH_MAX;
    let step = node;
    while (at > 0 && step !== NO_NODE && isWanted(step)) {
      path[--at] = step;
      step = this.#table.parentOf(step);
    }
    return path.subarray(at);
  }

  #store(announced: Uint8Array, node: NodeId, tier: Tier): void {
    if (this.#table.layerOf(node) !== LAYER_ALL) return;
    const notes = this.#stored[indexOf(tier)];
    if (notes.count === NOTES) this.#seal();
    this.#read(node);
    notes.add(this.#words);
    this.#digests[indexOf(tier)].count(this.#words[0], this.#words[1], 1);
    if (announced[node] >> GATHERED === 0) this.#marked[this.#markedCount++] = node;
    announced[node] = announced[node] | tier | (tier << GATHERED);
  }

  #remove(announced: Uint8Array, node: NodeId, tier: Tier): void {
    const notes = this.#removed[indexOf(tier)];
    // Removals are emitted before the collected `stored` events. If one of these names the block,
    // turn the collected events into changes first.
    const isGathered = (announced[node] & (tier << GATHERED)) !== 0;
    if (isGathered || notes.count === NOTES) this.#seal();
    // After a restart the block may not be announced yet: there is nothing to remove.
    if ((announced[node] & tier) === 0) return;
    this.#table.readKeyStart(node, this.#words, 0);
    notes.add(this.#words);
    this.#digests[indexOf(tier)].count(this.#words[0], this.#words[1], -1);
    announced[node] = announced[node] & ~tier;
  }

  /**
   * Reads the hash of the node and the hash of its parent into `#words`; zeros if it has no parent.
   */
  #read(node: NodeId): void {
    const words = this.#words;
    const parent = this.#table.parentOf(node);
    this.#table.readKeyStart(node, words, 0);
    if (parent === NO_NODE) words[2] = words[3] = 0;
    else this.#table.readKeyStart(parent, words, 2);
  }

  /** Turns the collected events into changes. Restarts if too many changes wait for `drain`. */
  #seal(): void {
    const announced = this.#announced;
    if (announced === null) return;
    for (let i = 0; i < TIERS.length; i++) {
      const { name } = TIERS[i];
      this.#sealedBlocks += this.#removed[i].count + this.#stored[i].count;
      this.#removed[i].take(name, this.#sealed);
      this.#stored[i].take(name, this.#sealed);
    }
    for (let i = 0; i < this.#markedCount; i++) {
      const node = this.#marked[i];
      announced[node] = announced[node] & ((1 << GATHERED) - 1);
    }
    this.#markedCount = 0;
    if (this.#sealedBlocks <= this.#blocksMax) return;
    this.#restarts++;
    this.restart();
  }

  #stir(): void {
    if (this.#isAwake) return;
    this.#isAwake = true;
    this.#wake();
  }
}

/** Returns the index of the tier in `TIERS`. */
function indexOf(tier: Tier): number {
  return tier === Tier.ssd ? 0 : tier === Tier.ram ? 1 : 2;
}

/** Maximum number of hashes in one change. */
const CHANGE_HASHES_MAX = 4_096;

/** Collects the hashes of blocks that were removed from a tier. */
class RemovedNotes {
  protected readonly hashes: Uint32Array;
  count = 0;

  constructor(capacity: number) {
    this.hashes = new Uint32Array(capacity * 2);
  }

  /**
   * Adds a block. `words`: low and high word of its hash, then of its parent's hash; two zeros if
   * it has no parent.
   */
  add(words: Uint32Array): void {
    const at = this.count++ * 2;
    this.hashes[at] = words[0];
    this.hashes[at + 1] = words[1];
  }

  drop(): void {
    this.count = 0;
  }

  /** Moves the collected events into `into` as changes. */
  take(tier: ResidencyTier, into: ResidencyChange[]): void {
    for (let from = 0; from < this.count; from += CHANGE_HASHES_MAX) {
      const end = Math.min(this.count, from + CHANGE_HASHES_MAX);
      into.push({ kind: "removed", tier, hashes: wordsToHashes(this.hashes, from, end) });
    }
    this.count = 0;
  }
}

/**
 * Collects blocks that were stored on a tier and joins consecutive blocks of a path into chains.
 */
class StoredNotes extends RemovedNotes {
  readonly #parents: Uint32Array;

  constructor(capacity: number) {
    super(capacity);
    this.#parents = new Uint32Array(capacity * 2);
  }

  override add(words: Uint32Array): void {
    const at = this.count * 2;
    this.#parents[at] = words[2];
    this.#parents[at + 1] = words[3];
    super.add(words);
  }

  override take(tier: ResidencyTier, into: ResidencyChange[]): void {
    let from = 0;
    for (let i = 1; i <= this.count; i++) {
      if (i < this.count && i - from < CHANGE_HASHES_MAX && this.#follows(i)) continue;
      const hashes = wordsToHashes(this.hashes, from, i);
      into.push({ kind: "stored", tier, parent: this.#parentOf(from), hashes, tokenHashes: null });
      from = i;
    }
    this.count = 0;
  }

  #follows(i: number): boolean {
    const [hashes, parents, at] = [this.hashes, this.#parents, i * 2];
    return parents[at] === hashes[at - 2] && parents[at + 1] === hashes[at - 1];
  }

  #parentOf(i: number): bigint | null {
    const lo = this.#parents[i * 2];
    const hi = this.#parents[i * 2 + 1];
    return lo === 0 && hi === 0 ? null : (BigInt(hi) << 32n) | BigInt(lo);
  }
}

/** Converts pairs of words to 64-bit hashes. The low word comes first, as in memory. */
function wordsToHashes(words: Uint32Array, from: number, end: number): BigUint64Array {
  const hashes = new BigUint64Array(end - from);
  new Uint32Array(hashes.buffer).set(words.subarray(from * 2, end * 2));
  return hashes;
}
