import type { ResidencyChange } from "../../observability/activity/index.ts";
import { blocksIn } from "../index.ts";

export interface RingLimits {
  /** Changes that are kept at most, and blocks in them. */
  readonly changesMax: number;
  readonly blocksMax: number;
}

/** The latest changes of one rank, by their numbers: from 1, without gaps. */
export class ChangeRing {
  readonly #limits: RingLimits;
  #kept: ResidencyChange[] = [];
  /** Place in `#kept` of the oldest one; those before it are gone. */
  #head = 0;
  #last = 0;
  #blocks = 0;

  constructor(limits: RingLimits) {
    this.#limits = limits;
  }

  /** Number of the oldest one that is kept; one behind the latest where none is. */
  get first(): number {
    return this.#last - this.size + 1;
  }
  /** Number of the latest one; 0: there was none so far. */
  get last(): number {
    return this.#last;
  }
  get size(): number {
    return this.#kept.length - this.#head;
  }
  get blocks(): number {
    return this.#blocks;
  }

  /** The latest one always stays. */
  push(change: ResidencyChange): void {
    this.#kept.push(change);
    this.#last++;
    this.#blocks += blocksIn(change);
    const { changesMax, blocksMax } = this.#limits;
    while (this.size > 1 && (this.size > changesMax || this.#blocks > blocksMax)) {
      this.#blocks -= blocksIn(this.#kept[this.#head]!);
      this.#head++;
    }
    if (this.#head <= this.#kept.length / 2 || this.#head < 64) return;
    this.#kept = this.#kept.slice(this.#head);
    this.#head = 0;
  }

  /** Those with numbers from `from` to `to`, both included and kept. */
  slice(from: number, to: number): readonly ResidencyChange[] {
    const start = this.#head + (from - this.first);
    return this.#kept.slice(start, start + (to - from + 1));
  }
}
