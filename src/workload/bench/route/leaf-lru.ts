/** What one prompt did to a cache: first `evicted` went, then `stored` came. */
export interface Served {
  /** Leading blocks that were there. */
  readonly hits: number;
  /** Places in the prompt, rising. */
  readonly stored: readonly number[];
  readonly evicted: readonly number[];
}

/**
 * A worker's cache of whole blocks: least recently used, a prompt used from its last block to its
 * first, so that leaves go first (the rule of the traces' own figures).
 */
export class LeafLru {
  readonly #capacity: number;
  readonly #older: Int32Array;
  readonly #newer: Int32Array;
  readonly #isHeld: Uint8Array;
  #oldest = -1;
  #newest = -1;
  #size = 0;

  /** `distinct`: every block's number is below it. */
  constructor(capacity: number, distinct: number) {
    this.#capacity = capacity;
    this.#older = new Int32Array(distinct);
    this.#newer = new Int32Array(distinct);
    this.#isHeld = new Uint8Array(distinct);
  }

  leading(blocks: Uint32Array): number {
    let hits = 0;
    while (hits < blocks.length && this.#isHeld[blocks[hits]!] === 1) hits++;
    return hits;
  }

  serve(blocks: Uint32Array): Served {
    const hits = this.leading(blocks);
    const stored: number[] = [];
    const evicted: number[] = [];
    for (let at = blocks.length - 1; at >= 0; at--) {
      const block = blocks[at]!;
      if (this.#isHeld[block] === 1) {
        this.#unlink(block);
      } else {
        if (this.#size === this.#capacity) evicted.push(this.#evict());
        this.#isHeld[block] = 1;
        this.#size++;
        stored.push(at);
      }
      this.#append(block);
    }
    // A prompt may push out its own blocks.
    return {
      hits,
      stored: stored.reverse().filter((at) => this.#isHeld[blocks[at]!] === 1),
      evicted: evicted.filter((block) => this.#isHeld[block] === 0),
    };
  }

  #evict(): number {
    const block = this.#oldest;
    this.#unlink(block);
    this.#isHeld[block] = 0;
    this.#size--;
    return block;
  }

  #append(block: number): void {
    this.#older[block] = this.#newest;
    this.#newer[block] = -1;
    if (this.#newest === -1) this.#oldest = block;
    else this.#newer[this.#newest] = block;
    this.#newest = block;
  }

  #unlink(block: number): void {
    const [older, newer] = [this.#older[block]!, this.#newer[block]!];
    if (older === -1) this.#oldest = newer;
    else this.#newer[older] = newer;
    if (newer === -1) this.#newest = older;
    else this.#older[newer] = older;
  }
}
