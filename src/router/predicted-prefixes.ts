import type { Clock } from "../core/index.ts";
import { PrefixRuns, type Run, wordsOf } from "./prefix-runs.ts";
import type { TargetId } from "./workers.ts";

interface PredictedPrefixesOptions {
  readonly clock: Clock;
  readonly ttlMs: number;
  /** Maximum (block, target) pairs. */
  readonly blocksMax: number;
  /** Pruning reduces the table to this share of `blocksMax`. */
  readonly pruneRatio: number;
  readonly seed?: number;
}

/** One target's entry in one run. Cells form a list in order of routing, least recent first. */
interface Cell {
  run: Run<Cell>;
  readonly target: number;
  atMs: number;
  older: Cell | null;
  newer: Cell | null;
}

/**
 * Cached blocks of each target, predicted from routed prompts. A block counts for `ttlMs` after the
 * latest prompt that contained it. At `blocksMax`, the least recently routed prompts are pruned
 * from their deepest blocks, so that the remaining blocks form prefixes without gaps.
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

  /** Number of (block, target) pairs. */
  get blocks(): number {
    return this.#blocks;
  }

  /** Records that a prompt with these blocks was routed to `target`. */
  routed(hashes: BigUint64Array, target: TargetId): void {
    this.expire();
    const atMs = this.#options.clock.monotonicMs();
    const runs = this.#runs.cover(wordsOf(hashes));
    for (let at = runs.length - 1; at >= 0; at--) {
      const run = runs[at]!;
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

  /** Writes to `counts`, by target id, the leading blocks the target is predicted to hold. */
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
      // The back part becomes the oldest cell. If the run cannot be split, the whole cell is
      // removed.
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

  /** The cell keeps its own links, so that an iteration can continue from it. */
  #unlink({ older, newer }: Cell): void {
    if (older === null) this.#oldest = newer;
    else older.newer = newer;
    if (newer === null) this.#newest = older;
    else newer.older = older;
  }
}
