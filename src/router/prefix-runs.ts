import type { Clock } from "../core/index.ts";
import type { TargetId } from "./workers.ts";

/** Consecutive blocks of one prefix that have the same holders (for example targets). */
export interface Run<V> {
  /** Sequence hashes of the blocks, two words per block: the low half, then the high half. */
  words: Uint32Array;
  /** Number of blocks that precede this run in its prefix. */
  readonly depth: number;
  /** Each holder's value, by holder number. */
  readonly holders: Map<number, V>;
}

/** Called when a run is split in two. Returns a holder's value for the back part. */
type Cut<V> = (value: V, holder: number, front: Run<V>, back: Run<V>) => V;

/** Returns a view of the hashes as pairs of 32-bit words. Does not copy. */
export function wordsOf(hashes: BigUint64Array): Uint32Array {
  return new Uint32Array(hashes.buffer, hashes.byteOffset, hashes.length * 2);
}

/**
 * Radix structure of prefixes and their holders. Equal sequence hashes imply equal prefixes, so a
 * lookup finds a run by its first hash and compares the rest. A prompt of hundreds of blocks takes
 * a few lookups and one comparison per run.
 *
 * If a hash occurs at two depths, this assumption is broken: the prefix ends before that hash.
 */
export class PrefixRuns<V> {
  readonly #slots: HashSlots<Run<V>>;
  readonly #cut: Cut<V>;
  #blocks = 0;

  constructor(seed: number, cut: Cut<V>) {
    this.#slots = new HashSlots(seed);
    this.#cut = cut;
  }

  /** Number of distinct blocks. */
  get blocks(): number {
    return this.#blocks;
  }

  get runs(): number {
    return this.#slots.size;
  }

  /**
   * Returns the runs that together contain exactly these blocks. Splits and adds runs as needed.
   * Returns fewer blocks if a hash is already known at another depth. The caller must add a holder
   * to each new run immediately.
   */
  cover(words: Uint32Array): Run<V>[] {
    const runs: Run<V>[] = [];
    const blocks = words.length / 2;
    for (let at = 0; at < blocks; ) {
      const found = this.#slots.get(words[at * 2], words[at * 2 + 1]);
      if (found === undefined) {
        runs.push(this.#add(words.slice(at * 2), at));
        break;
      }
      if (found.depth !== at) break;
      const same = sameBlocks(found.words, words, at);
      if (same * 2 < found.words.length && this.split(found, same) === null) break;
      runs.push(found);
      at += same;
    }
    return runs;
  }

  /**
   * Returns the runs for which `cover` added this holder's blocks, or the parts into which they
   * were split later.
   */
  covered(words: Uint32Array): Run<V>[] {
    const runs: Run<V>[] = [];
    for (let at = 0; at * 2 < words.length; ) {
      const run = this.#slots.get(words[at * 2], words[at * 2 + 1]);
      if (run === undefined || run.depth !== at) break;
      runs.push(run);
      at += run.words.length / 2;
    }
    return runs;
  }

  /**
   * Adds to `counts[holder]` the number of leading blocks that the holder has. The caller must
   * clear `counts` first.
   */
  leading(words: Uint32Array, counts: Uint32Array): void {
    const blocks = words.length / 2;
    for (let at = 0; at < blocks; ) {
      const run = this.#slots.get(words[at * 2], words[at * 2 + 1]);
      if (run === undefined || run.depth !== at) return;
      const same = sameBlocks(run.words, words, at);
      const [from, to] = [at, at + same];
      run.holders.forEach((_value, holder) => {
        if (counts[holder] === from) counts[holder] = to;
      });
      if (same * 2 < run.words.length) return;
      at = to;
    }
  }

  /**
   * Splits a run in two; the front part keeps `blocks` blocks (0 < blocks < length). Returns the
   * back part. Returns null and splits nothing if the back part's first hash already starts another
   * run.
   */
  split(run: Run<V>, blocks: number): Run<V> | null {
    const words = run.words.slice(blocks * 2);
    const [low, high] = [words[0], words[1]];
    if (this.#slots.get(low, high) !== undefined) return null;
    run.words = run.words.slice(0, blocks * 2);
    const back: Run<V> = { words, depth: run.depth + blocks, holders: new Map() };
    this.#slots.set(low, high, back);
    run.holders.forEach((value, holder) => {
      back.holders.set(holder, this.#cut(value, holder, run, back));
    });
    return back;
  }

  /** Removes a holder from a run. Removes the run if no holder is left. */
  release(run: Run<V>, holder: number): void {
    run.holders.delete(holder);
    if (run.holders.size > 0) return;
    this.#slots.delete(run.words[0], run.words[1]);
    this.#blocks -= run.words.length / 2;
  }

  #add(words: Uint32Array, depth: number): Run<V> {
    const run: Run<V> = { words, depth, holders: new Map() };
    this.#slots.set(words[0], words[1], run);
    this.#blocks += words.length / 2;
    return run;
  }
}

/**
 * Returns how many leading blocks of a run equal the prompt's blocks that start at index `at`. The
 * caller has already compared the first block.
 */
function sameBlocks(run: Uint32Array, words: Uint32Array, at: number): number {
  const from = at * 2;
  const most = Math.min(run.length, words.length - from);
  let same = 2;
  while (same < most && run[same] === words[from + same]) same++;
  return same >> 1;
}

interface PredictedPrefixesOptions {
  readonly clock: Clock;
  readonly ttlMs: number;
  /** Maximum number of (block, target) pairs. */
  readonly blocksMax: number;
  /** Share of `blocksMax` to which pruning reduces the table, in (0, 1). */
  readonly pruneRatio: number;
  readonly seed?: number;
}

/**
 * One target's entry in one run. All cells form a list in order of their latest routing, oldest
 * first.
 */
interface Cell {
  run: Run<Cell>;
  readonly target: number;
  atMs: number;
  older: Cell | null;
  newer: Cell | null;
}

/**
 * Blocks that each target is expected to have cached, predicted from routed prompts. A block counts
 * for `ttlMs` after the latest prompt with it was routed. At `blocksMax`, the least recently routed
 * prompts are pruned from their deepest blocks, so that the remaining blocks form prefixes without
 * gaps.
 */
export class PredictedPrefixes {
  readonly #options: PredictedPrefixesOptions;
  readonly #runs: PrefixRuns<Cell>;
  #oldest: Cell | null = null;
  #newest: Cell | null = null;
  #blocks = 0;

  constructor(options: PredictedPrefixesOptions) {
    this.#options = options;
    this.#runs = new PrefixRuns(options.seed ?? 0, (cell, target, _front, back) => {
      const { atMs } = cell;
      const cut: Cell = { run: back, target, atMs, older: null, newer: null };
      this.#insert(cut, cell.older, cell);
      return cut;
    });
  }

  /** Number of (block, target) pairs stored. */
  get blocks(): number {
    return this.#blocks;
  }

  /** Records that a prompt with these blocks was routed to `target`. */
  routed(hashes: BigUint64Array, target: TargetId): void {
    this.expire();
    const atMs = this.#options.clock.monotonicMs();
    const runs = this.#runs.cover(wordsOf(hashes));
    for (let at = runs.length - 1; at >= 0; at--) {
      const run = runs[at];
      let cell = run.holders.get(target);
      if (cell === undefined) {
        cell = { run, target, atMs, older: null, newer: null };
        run.holders.set(target, cell);
        this.#blocks += run.words.length / 2;
      } else {
        this.#unlink(cell);
      }
      cell.atMs = atMs;
      this.#insert(cell, this.#newest, null);
    }
    if (this.#blocks > this.#options.blocksMax) this.#prune();
  }

  /**
   * Writes to `counts[target]` the number of leading blocks that the target is predicted to have.
   */
  leading(hashes: BigUint64Array, counts: Uint32Array): void {
    this.expire();
    counts.fill(0);
    this.#runs.leading(wordsOf(hashes), counts);
  }

  dropTarget(target: TargetId): void {
    for (let cell = this.#oldest; cell !== null; cell = cell.newer) {
      if (cell.target === target) this.#remove(cell);
    }
  }

  expire(): void {
    const before = this.#options.clock.monotonicMs() - this.#options.ttlMs;
    while (this.#oldest !== null && this.#oldest.atMs <= before) this.#remove(this.#oldest);
  }

  #prune(): void {
    const { blocksMax, pruneRatio } = this.#options;
    let excess = this.#blocks - Math.floor(blocksMax * pruneRatio);
    while (excess > 0 && this.#oldest !== null) {
      const blocks = this.#oldest.run.words.length / 2;
      // Split off the excess: the back part becomes the oldest cell, which is removed. If the run
      // cannot be split, the whole cell is removed.
      if (blocks > excess) this.#runs.split(this.#oldest.run, blocks - excess);
      const oldest: Cell = this.#oldest;
      excess -= oldest.run.words.length / 2;
      this.#remove(oldest);
    }
  }

  #remove(cell: Cell): void {
    this.#blocks -= cell.run.words.length / 2;
    this.#unlink(cell);
    this.#runs.release(cell.run, cell.target);
  }

  #insert(cell: Cell, older: Cell | null, newer: Cell | null): void {
    cell.older = older;
    cell.newer = newer;
    if (older === null) this.#oldest = cell;
    else older.newer = cell;
    if (newer === null) this.#newest = cell;
    else newer.older = cell;
  }

  /**
   * Removes a cell from the list. The cell keeps its own links, so that a loop over the list can
   * continue from it.
   */
  #unlink({ older, newer }: Cell): void {
    if (older === null) this.#oldest = newer;
    else older.newer = newer;
    if (newer === null) this.#newest = older;
    else newer.older = older;
  }
}

/**
 * Map from 64-bit hashes to values. Open addressing with linear probing over two 32-bit columns
 * avoids allocating a bigint per hash. A random `seed` prevents clients from choosing hashes that
 * collide.
 */
export class HashSlots<T> {
  readonly #seed: number;
  #low: Uint32Array;
  #high: Uint32Array;
  #values: (T | undefined)[];
  #mask: number;
  #size = 0;

  constructor(seed: number) {
    this.#seed = seed >>> 0;
    this.#mask = 1_023;
    this.#low = new Uint32Array(this.#mask + 1);
    this.#high = new Uint32Array(this.#mask + 1);
    this.#values = new Array(this.#mask + 1);
  }

  get size(): number {
    return this.#size;
  }

  get(low: number, high: number): T | undefined {
    const mask = this.#mask;
    for (let at = this.#home(low, high); ; at = (at + 1) & mask) {
      const value = this.#values[at];
      if (value === undefined) return undefined;
      if (this.#low[at] === low && this.#high[at] === high) return value;
    }
  }

  /** Stores the value of a hash; replaces an earlier one. */
  set(low: number, high: number, value: T): void {
    if ((this.#size + 1) * 2 > this.#mask) this.#grow();
    if (this.#place(low, high, value)) this.#size++;
  }

  delete(low: number, high: number): void {
    const mask = this.#mask;
    let hole = this.#home(low, high);
    while (this.#low[hole] !== low || this.#high[hole] !== high) {
      if (this.#values[hole] === undefined) return;
      hole = (hole + 1) & mask;
    }
    if (this.#values[hole] === undefined) return;
    this.#size--;
    // Close the hole: move back later entries of the probe sequence, so that lookups still find
    // them.
    for (let at = (hole + 1) & mask; this.#values[at] !== undefined; at = (at + 1) & mask) {
      const home = this.#home(this.#low[at], this.#high[at]);
      if (((at - home) & mask) < ((at - hole) & mask)) continue;
      this.#low[hole] = this.#low[at];
      this.#high[hole] = this.#high[at];
      this.#values[hole] = this.#values[at];
      hole = at;
    }
    this.#values[hole] = undefined;
  }

  /** Stores a value in the hash's slot. Returns true if the hash was not in the map. */
  #place(low: number, high: number, value: T): boolean {
    let at = this.#home(low, high);
    while (this.#values[at] !== undefined && (this.#low[at] !== low || this.#high[at] !== high)) {
      at = (at + 1) & this.#mask;
    }
    const isNew = this.#values[at] === undefined;
    this.#low[at] = low;
    this.#high[at] = high;
    this.#values[at] = value;
    return isNew;
  }

  #grow(): void {
    const [low, high, values] = [this.#low, this.#high, this.#values];
    const slots = (this.#mask + 1) * 2;
    this.#mask = slots - 1;
    this.#low = new Uint32Array(slots);
    this.#high = new Uint32Array(slots);
    this.#values = new Array(slots);
    for (let at = 0; at < values.length; at++) {
      const value = values[at];
      if (value !== undefined) this.#place(low[at], high[at], value);
    }
  }

  /**
   * Returns the slot at which probing for a hash starts. Mixes in two rounds of multiply and shift
   * (constants of MurmurHash3's 32-bit finaliser).
   */
  #home(low: number, high: number): number {
    let mixed = Math.imul(low ^ this.#seed, 0x85ebca6b);
    mixed = Math.imul(mixed ^ (mixed >>> 15) ^ high, 0xc2b2ae35);
    return (mixed ^ (mixed >>> 13)) & this.#mask;
  }
}
