/** Some hundred blocks are in flight at once: this many out of order, and one never comes. */
const AHEAD_MAX = 65_536;

/**
 * The highest sequence up to which every block's row has been handed on. Writes end out of order,
 * and a claim about a block still being written would let the next start take it for a deleted one.
 * A sequence that never comes (its row was dropped) holds it where it is.
 */
export class SequenceWatermark {
  readonly #ahead = new Set<number>();
  #through = 0;
  #isFrozen = false;

  get value(): number {
    return this.#through;
  }

  add(sequence: number): void {
    if (this.#isFrozen || sequence <= this.#through) return;
    this.#ahead.add(sequence);
    while (this.#ahead.delete(this.#through + 1)) this.#through++;
    if (this.#ahead.size <= AHEAD_MAX) return;
    this.#isFrozen = true;
    this.#ahead.clear();
  }
}
