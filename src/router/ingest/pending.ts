import type { ResidencyBatch } from "../../observability/activity/index.ts";

/** What may wait for all sources together, and of one of them. */
export interface PendingLimits {
  readonly hashesMax: number;
  readonly batchesPerSourceMax: number;
}

/** Room that all sources share for batches that came too early. */
export class PendingRoom {
  readonly limits: PendingLimits;
  hashes = 0;
  /** Batches that found no room: they are asked for later. */
  dropped = 0;

  constructor(limits: PendingLimits) {
    this.limits = limits;
  }
}

/** Batches of one source that cannot be applied yet, by their numbers. */
export class PendingBatches {
  readonly #room: PendingRoom;
  #batches: ResidencyBatch[] = [];
  #hashes = 0;

  constructor(room: PendingRoom) {
    this.#room = room;
  }

  get size(): number {
    return this.#batches.length;
  }

  /** The number of the first change that waits; null: none does. */
  get first(): number | null {
    return this.#batches[0]?.firstSequence ?? null;
  }

  /** The number of the last one that waits. */
  get last(): number | null {
    const last = this.#batches.at(-1);
    return last === undefined ? null : lastOf(last);
  }

  /** False: it is there already, or there is no room. */
  add(batch: ResidencyBatch): boolean {
    const hashes = hashesIn(batch);
    const { limits } = this.#room;
    const isFull =
      this.#batches.length >= limits.batchesPerSourceMax ||
      this.#room.hashes + hashes > limits.hashesMax;
    if (isFull) {
      this.#room.dropped++;
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

  /** Takes out the first batch if all of it is at or before `sequence + 1`; else null. */
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
    this.#room.hashes += hashes;
  }
}

/** What a batch weighs: its hashes, and something for each change. */
export function hashesIn(batch: ResidencyBatch): number {
  let sum = batch.changes.length;
  for (const change of batch.changes) if (change.kind !== "cleared") sum += change.hashes.length;
  return sum;
}

/** The number of the last change in it. */
export function lastOf(batch: ResidencyBatch): number {
  return batch.firstSequence + batch.changes.length - 1;
}
