import { assert } from "../../core/index.ts";
import type { Arrival, FetchOutcome } from "../../store/index.ts";

/**
 * Somebody who waits for blocks, until all are there or he goes. What he does not take any more is
 * released for him.
 */
export class Call {
  readonly done: Promise<FetchOutcome[]>;
  readonly #stopAtMiss: boolean;
  readonly #outcomes: (FetchOutcome | null)[];
  readonly #resolve: (outcomes: FetchOutcome[]) => void;
  #missing: number;
  /** From here on nothing is of worth. */
  #end: number;
  /** Told of each block that is not wanted any more. */
  #onLeave: (index: number, late: boolean) => void = () => undefined;

  constructor(blocks: number, stopAtMiss: boolean) {
    this.#stopAtMiss = stopAtMiss;
    this.#outcomes = new Array(blocks).fill(null);
    this.#missing = blocks;
    this.#end = blocks;
    const { promise, resolve } = Promise.withResolvers<FetchOutcome[]>();
    this.done = promise;
    this.#resolve = resolve;
    if (blocks === 0) resolve([]);
  }

  set onLeave(run: (index: number, late: boolean) => void) {
    this.#onLeave = run;
  }

  /** Whether block `index` is still waited for. */
  wants(index: number): boolean {
    return this.#outcomes[index] === null;
  }

  deliver(index: number, outcome: FetchOutcome): void {
    if (!this.wants(index)) {
      if (outcome.kind === "ok") outcome.arrival.release(false);
      return;
    }
    this.#put(index, outcome);
    if (outcome.kind !== "ok" && this.#stopAtMiss) this.#cut(index + 1);
    this.#finish();
  }

  /** All that has not come yet did not come: it is too late, or nobody wants it. */
  end(kind: "late" | "miss"): void {
    for (let index = 0; index < this.#end; index++) {
      if (!this.wants(index)) continue;
      this.#put(index, { kind });
      this.#onLeave(index, kind === "late");
    }
    const first = this.#outcomes.findIndex((outcome) => outcome?.kind !== "ok");
    if (this.#stopAtMiss && first >= 0) this.#cut(first + 1);
    this.#finish();
  }

  #cut(from: number): void {
    for (let index = from; index < this.#end; index++) {
      const had = this.#outcomes[index];
      if (had === null) {
        this.#put(index, { kind: "miss" });
        this.#onLeave(index, false);
      } else if (had?.kind === "ok") {
        had.arrival.release(false);
        this.#outcomes[index] = { kind: "miss" };
      }
    }
    this.#end = Math.min(this.#end, from);
  }

  #put(index: number, outcome: FetchOutcome): void {
    this.#outcomes[index] = outcome;
    this.#missing--;
    assert(this.#missing >= 0, "a block is delivered once");
  }

  #finish(): void {
    if (this.#missing === 0) this.#resolve(this.#outcomes as FetchOutcome[]);
  }
}

/**
 * One arrival for several owners, each with his own to release: the block stays where it is until
 * the last has, and counts as used where one used it. Without owners it is released at once.
 */
export function shareArrival(arrival: Arrival, owners: number): Arrival[] {
  if (owners === 0) arrival.release(false);
  let [left, anyUsed] = [owners, false];
  return Array.from({ length: owners }, () => {
    let released = false;
    return {
      node: arrival.node,
      release: (used) => {
        assert(!released, "an arrival is released once");
        released = true;
        anyUsed ||= used;
        if (--left === 0) arrival.release(anyUsed);
      },
    };
  });
}
