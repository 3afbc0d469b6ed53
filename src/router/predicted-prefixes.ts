import type { Clock } from "../core/index.ts";
import { PrefixRuns, type Run, wordsOf } from "./prefix-runs.ts";
import type { TargetId } from "./workers.ts";

interface PredictedPrefixesOptions {
  readonly clock: Clock;
  readonly ttlMs: number;
  /** Pairs of a block with a target. */
  readonly blocksMax: number;
  /** Pruned down to this share of `blocksMax`. */
  readonly pruneRatio: number;
  readonly seed?: number;
}

/** One target's part in one run; a list of all of them, the longest not routed one first. */
interface Cell {
  run: Run<Cell>;
  readonly target: number;
  atMs: number;
  older: Cell | null;
  newer: Cell | null;
}

/**
 * What targets hold as far as one can tell from where prompts were sent: each block counts for
 * `ttlMs` from the latest prompt that had it. Too many blocks: those that were routed the longest
 * ago go, the deepest of a prompt first, so that what is left are prefixes without a hole.
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

  /** Pairs of a block with a target. */
  get blocks(): number {
    return this.#blocks;
  }

  /** A prompt with these blocks was sent there. */
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

  /** Into `counts`, by target: leading blocks it is believed to have. */
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
      // The back part becomes the oldest cell; where it cannot be cut, all of it goes.
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

  /** The cell keeps its own ends, so that a walk may go on from it. */
  #unlink({ older, newer }: Cell): void {
    if (older === null) this.#oldest = newer;
    else older.newer = newer;
    if (newer === null) this.#newest = older;
    else newer.older = older;
  }
}
