import type { ResidencyBatch } from "../../observability/activity/index.ts";
import type { IngestSettings } from "./ingest-settings.ts";

/** Buffer space for out-of-order batches, shared by all sources. */
export class PendingBudget {
  readonly limits: IngestSettings["pending"];
  hashes = 0;
  /** Batches dropped for lack of space. They are requested again later. */
  dropped = 0;

  constructor(limits: IngestSettings["pending"]) {
    this.limits = limits;
  }
}

/** Out-of-order batches of one source, by sequence number. */
export class PendingBatches {
  readonly #budget: PendingBudget;
  #batches: ResidencyBatch[] = [];
  #hashes = 0;

  constructor(budget: PendingBudget) {
    this.#budget = budget;
  }

  get size(): number {
    return this.#batches.length;
  }

  /** Sequence number of the first buffered change. Null if the buffer is empty. */
  get first(): number | null {
    return this.#batches[0]?.firstSequence ?? null;
  }

  /** Sequence number of the last buffered change. Null if the buffer is empty. */
  get last(): number | null {
    const last = this.#batches.at(-1);
    return last === undefined ? null : lastOf(last);
  }

  /** Returns false if the batch is already buffered or there is no space. */
  add(batch: ResidencyBatch): boolean {
    const hashes = hashesIn(batch);
    const { limits } = this.#budget;
    const isFull =
      this.#batches.length >= limits.batchesPerSourceMax ||
      this.#budget.hashes + hashes > limits.hashesMax;
    if (isFull) {
      this.#budget.dropped++;
      return false;
    }
    let at = this.#batches.length;
    while (at > 0 && this.#batches[at - 1]!.firstSequence > batch.firstSequence) at--;
    const before = this.#batches[at - 1];
    if (before?.firstSequence === batch.firstSequence) {
      if (before.changes.length >= batch.changes.length) return false;
    }
    this.#batches.splice(at, 0, batch);
    this.#count(hashes);
    return true;
  }

  /**
   * Removes and returns the first batch if it starts at or before `sequence + 1`; otherwise null.
   */
  takeUpTo(sequence: number): ResidencyBatch | null {
    const first = this.#batches[0];
    if (first === undefined || first.firstSequence > sequence + 1) return null;
    this.#batches.shift();
    this.#count(-hashesIn(first));
    return first;
  }

  clear(): void {
    this.#batches = [];
    this.#count(-this.#hashes);
  }

  #count(hashes: number): void {
    this.#hashes += hashes;
    this.#budget.hashes += hashes;
  }
}

/** Buffer cost of a batch: its hashes, plus a constant per change. */
export function hashesIn(batch: ResidencyBatch): number {
  let sum = batch.changes.length;
  for (const change of batch.changes) if (change.kind !== "cleared") sum += change.hashes.length;
  return sum;
}

/** Sequence number of the last change in a batch. */
export function lastOf(batch: ResidencyBatch): number {
  return batch.firstSequence + batch.changes.length - 1;
}
