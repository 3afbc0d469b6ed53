import { LAYER_ALL, NO_NODE, type NodeId } from "../core/index.ts";
import {
  type ResidencyChange,
  type ResidencyDigest,
  type ResidencyTier,
  RunningDigest,
} from "../observability/activity/index.ts";
import { type TableView, Tier } from "./blocks/index.ts";

/** Notes of one kind that are gathered before they become changes. */
const NOTES = 4_096;
/** Blocks told anew in one call of `drain`: about a millisecond. */
const TOLD_A_SLICE = 2_048;
/** Nodes of a path told from its first to its last. */
const PATH_MAX = 4_096;
/** Entries of the table looked at for one slice. */
const LOOKS_A_SLICE = 262_144;

/** The slowest first: a block that moves down is below before it is gone above. */
const TIERS: readonly { readonly bit: Tier; readonly name: ResidencyTier }[] = [
  { bit: Tier.ssd, name: "disk" },
  { bit: Tier.ram, name: "host" },
  { bit: Tier.gpu, name: "device" },
];
const ALL = Tier.gpu | Tier.ram | Tier.ssd;
/** Bits of `said`: told to be on the tier, and that among what is gathered now. */
const GATHERED = 4;

export interface ResidencySlice {
  readonly changes: readonly ResidencyChange[];
  /** Where to go on; null at the end. */
  readonly next: number | null;
}

/**
 * Tells which blocks, as far as they are whole objects (all layers in one), came to a tier of this
 * host or left it: as changes that, applied in order, make the set of what is there. Until `start`
 * it costs nothing; from then on a few stores a change, gathered until `drain`.
 *
 * It remembers for each block what it said, so that it can begin anew at any time: `cleared`, then
 * all that is there, in slices between which the live changes go on.
 */
export class StoreResidency {
  readonly #table: TableView;
  readonly #blocksMax: number;
  readonly #words = new Uint32Array(4);
  readonly #path = new Int32Array(PATH_MAX);
  #said: Uint8Array | null = null;
  #stored: StoredNotes[] = [];
  #removed: RemovedNotes[] = [];
  readonly #digests = TIERS.map(() => new RunningDigest());
  /** Nodes whose `GATHERED` bits are set. */
  #marked = new Int32Array(0);
  #markedCount = 0;
  #sealed: ResidencyChange[] = [];
  #sealedBlocks = 0;
  #announceFrom: number | null = null;
  #wake: () => void = () => undefined;
  #isAwake = false;
  #restarts = 0;

  /** `blocksMax`: hashes that may wait for `drain`; beyond them it begins anew. */
  constructor(table: TableView, blocksMax = 2 ** 20) {
    this.#table = table;
    this.#blocksMax = blocksMax;
  }

  /** `wake`: there is something to drain; called once until it is drained. */
  start(wake: () => void): void {
    this.#said = new Uint8Array(this.#table.nodesMax + 1);
    this.#stored = TIERS.map(() => new StoredNotes(NOTES));
    this.#removed = TIERS.map(() => new RemovedNotes(NOTES));
    this.#marked = new Int32Array(NOTES * TIERS.length);
    this.#wake = wake;
    this.#announceFrom = 0;
    this.#stir();
  }

  stop(): void {
    this.#said = null;
    this.#wake = () => undefined;
    this.#sealed = [];
    this.#announceFrom = null;
  }

  /** Of what was told so far, drained or not; in the order of RESIDENCY_TIERS. */
  get digests(): readonly ResidencyDigest[] {
    return this.#digests.map(({ value }) => value).reverse();
  }

  /** Whether what is there is still being told. */
  get isAnnouncing(): boolean {
    return this.#announceFrom !== null;
  }

  /** Times it began anew because more waited than may. */
  get restarts(): number {
    return this.#restarts;
  }

  /** For the table: the node came to the tier or left it. Reads the table only. */
  readonly noted = (node: NodeId, tier: Tier, on: boolean): void => {
    const said = this.#said;
    if (said === null) return;
    const known = said[node]!;
    if (((known & tier) !== 0) === on || (tier & ALL) === 0) return;
    if (on) this.#store(said, node, tier);
    else this.#remove(said, node, tier);
    if (!this.#isAwake) this.#stir();
  };

  /** What changed since the last call, and a slice of what is told anew. */
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

  /** Says `cleared`, then tells all that is there. */
  restart(): void {
    if (this.#said === null) return;
    this.#said.fill(0);
    this.#markedCount = 0;
    for (const notes of [...this.#stored, ...this.#removed]) notes.drop();
    for (const digest of this.#digests) digest.clear();
    this.#sealed = [{ kind: "cleared", tier: null }];
    this.#sealedBlocks = 0;
    this.#announceFrom = 0;
    this.#stir();
  }

  /**
   * Some of what was told, drained or not, to be there, from entry `from` of the table on:
   * beginning with 0 and going on with `next`, each block that stays is in one slice. Drain before.
   */
  slice(from: number, entries: number): ResidencySlice {
    const table = this.#table;
    const changes: ResidencyChange[] = [];
    if (this.#said === null) return { changes, next: null };
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
    return at >= 0 && at < done.length && done[at] === 0 && (this.#said![node]! & tier) !== 0;
  }

  #announce(from: number): void {
    const table = this.#table;
    const said = this.#said!;
    const restarts = this.#restarts;
    const end = from + LOOKS_A_SLICE;
    let told = 0;
    let node = from as NodeId;
    while (told < TOLD_A_SLICE) {
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
          (step) => (said[step]! & bit) === 0 && this.#isWhole(step, bit),
        );
        for (const step of path) this.#store(said, step as NodeId, bit);
        if (this.#restarts !== restarts) return;
        told += path.length;
      }
    }
    this.#announceFrom = node;
  }

  #isWhole(node: NodeId, tier: Tier): boolean {
    return this.#table.isResident(node, tier) && this.#table.layerOf(node) === LAYER_ALL;
  }

  /** The node and those above it for as long as `isWanted`, from the first to the last. */
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

  #store(said: Uint8Array, node: NodeId, tier: Tier): void {
    if (this.#table.layerOf(node) !== LAYER_ALL) return;
    const notes = this.#stored[indexOf(tier)]!;
    if (notes.count === NOTES) this.#seal();
    this.#read(node);
    notes.add(this.#words);
    this.#digests[indexOf(tier)]!.count(this.#words[0]!, this.#words[1]!, 1);
    if (said[node]! >> GATHERED === 0) this.#marked[this.#markedCount++] = node;
    said[node] = said[node]! | tier | (tier << GATHERED);
  }

  #remove(said: Uint8Array, node: NodeId, tier: Tier): void {
    const notes = this.#removed[indexOf(tier)]!;
    // Removals are told before what was stored meanwhile, so not of the same block.
    const isGathered = (said[node]! & (tier << GATHERED)) !== 0;
    if (isGathered || notes.count === NOTES) this.#seal();
    // It may have begun anew just now, and does not speak of this block then.
    if ((said[node]! & tier) === 0) return;
    this.#table.readKeyStart(node, this.#words, 0);
    notes.add(this.#words);
    this.#digests[indexOf(tier)]!.count(this.#words[0]!, this.#words[1]!, -1);
    said[node] = said[node]! & ~tier;
  }

  /** The node's hash and its parent's. */
  #read(node: NodeId): void {
    const words = this.#words;
    const parent = this.#table.parentOf(node);
    this.#table.readKeyStart(node, words, 0);
    if (parent === NO_NODE) words[2] = words[3] = 0;
    else this.#table.readKeyStart(parent, words, 2);
  }

  /** Makes changes of what was gathered. */
  #seal(): void {
    const said = this.#said;
    if (said === null) return;
    for (let i = 0; i < TIERS.length; i++) {
      const { name } = TIERS[i]!;
      this.#sealedBlocks += this.#removed[i]!.count + this.#stored[i]!.count;
      this.#removed[i]!.take(name, this.#sealed);
      this.#stored[i]!.take(name, this.#sealed);
    }
    for (let i = 0; i < this.#markedCount; i++) {
      const node = this.#marked[i]!;
      said[node] = said[node]! & ((1 << GATHERED) - 1);
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

/** Its place in `TIERS`. */
function indexOf(tier: Tier): number {
  return tier === Tier.ssd ? 0 : tier === Tier.ram ? 1 : 2;
}

/** Hashes in one change at most. */
const CHANGE_HASHES_MAX = 4_096;

/** Blocks that came to a tier, put together to chains where one follows the other. */
class StoredNotes {
  readonly #hashes: Uint32Array;
  readonly #parents: Uint32Array;
  #count = 0;

  constructor(capacity: number) {
    this.#hashes = new Uint32Array(capacity * 2);
    this.#parents = new Uint32Array(capacity * 2);
  }

  get count(): number {
    return this.#count;
  }

  /** `words`: the hash, then its parent's; two zeros where it has none. */
  add(words: Uint32Array): void {
    const at = this.#count++ * 2;
    this.#hashes[at] = words[0]!;
    this.#hashes[at + 1] = words[1]!;
    this.#parents[at] = words[2]!;
    this.#parents[at + 1] = words[3]!;
  }

  drop(): void {
    this.#count = 0;
  }

  /** What was added since the last call. */
  take(tier: ResidencyTier, into: ResidencyChange[]): void {
    let from = 0;
    for (let i = 1; i <= this.#count; i++) {
      if (i < this.#count && i - from < CHANGE_HASHES_MAX && this.#follows(i)) continue;
      const hashes = wordsToHashes(this.#hashes, from, i);
      into.push({ kind: "stored", tier, parent: this.#parentOf(from), hashes, tokenHashes: null });
      from = i;
    }
    this.#count = 0;
  }

  #follows(i: number): boolean {
    const [hashes, parents, at] = [this.#hashes, this.#parents, i * 2];
    return parents[at] === hashes[at - 2] && parents[at + 1] === hashes[at - 1];
  }

  #parentOf(i: number): bigint | null {
    const lo = this.#parents[i * 2]!;
    const hi = this.#parents[i * 2 + 1]!;
    return lo === 0 && hi === 0 ? null : (BigInt(hi) << 32n) | BigInt(lo);
  }
}

/** Blocks that left a tier. */
class RemovedNotes {
  readonly #hashes: Uint32Array;
  #count = 0;

  constructor(capacity: number) {
    this.#hashes = new Uint32Array(capacity * 2);
  }

  get count(): number {
    return this.#count;
  }

  add(words: Uint32Array): void {
    const at = this.#count++ * 2;
    this.#hashes[at] = words[0]!;
    this.#hashes[at + 1] = words[1]!;
  }

  drop(): void {
    this.#count = 0;
  }

  take(tier: ResidencyTier, into: ResidencyChange[]): void {
    for (let from = 0; from < this.#count; from += CHANGE_HASHES_MAX) {
      const end = Math.min(this.#count, from + CHANGE_HASHES_MAX);
      into.push({ kind: "removed", tier, hashes: wordsToHashes(this.#hashes, from, end) });
    }
    this.#count = 0;
  }
}

/** Low word first, as in memory. */
function wordsToHashes(words: Uint32Array, from: number, end: number): BigUint64Array {
  const hashes = new BigUint64Array(end - from);
  new Uint32Array(hashes.buffer).set(words.subarray(from * 2, end * 2));
  return hashes;
}
