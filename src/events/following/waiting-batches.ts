/** Live batches that wait for a replay; those behind them are asked for again. */
const BATCHES_MAX = 4_096;
const BYTES_MAX = 64 * 2 ** 20;

export interface WaitingBatch {
  readonly sequence: number;
  readonly payload: Uint8Array;
}

/** Batches that came before those that they follow, in the order in which they came. */
export class WaitingBatches {
  #batches: WaitingBatch[] = [];
  #bytes = 0;

  /** The number of the first; null: none waits. */
  get first(): number | null {
    return this.#batches[0]?.sequence ?? null;
  }

  /** What finds no room is asked for again. */
  add(batch: WaitingBatch): void {
    if (this.#batches.length >= BATCHES_MAX) return;
    if (this.#bytes + batch.payload.length > BYTES_MAX) return;
    this.#batches.push(batch);
    this.#bytes += batch.payload.length;
  }

  /** All of them; none waits then. */
  take(): readonly WaitingBatch[] {
    const batches = this.#batches;
    [this.#batches, this.#bytes] = [[], 0];
    return batches;
  }
}
