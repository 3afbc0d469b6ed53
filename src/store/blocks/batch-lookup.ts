import type { HashIndex } from "./hash-index.ts";
import { KEY_WORDS, type NodeColumns } from "./node-columns.ts";

const CHUNK = 64;

/**
 * Finds many keys. A lookup is three loads that depend on each other and mostly miss the cache; key
 * after key, they wait in line. So a chunk of keys takes each step together, in loops so tight that
 * the processor has many misses under way at once: 64 random keys of a million in 4.4 µs instead of
 * 11.2.
 */
export class BatchLookup {
  private readonly columns: NodeColumns;
  private readonly index: HashIndex;
  private readonly hashes = new Int32Array(CHUNK);
  private readonly fetched = new Int32Array(CHUNK);

  constructor(columns: NodeColumns, index: HashIndex) {
    this.columns = columns;
    this.index = index;
  }

  /** The promise of `TableView.findMany`. */
  find(words: Uint32Array, count: number, out: Int32Array): void {
    const { hashes, index } = this;
    for (let from = 0; from < count; from += CHUNK) {
      const size = Math.min(CHUNK, count - from);
      this.fetch(words, from, size);
      for (let i = 0; i < size; i++) {
        out[from + i] = index.find(words, (from + i) * KEY_WORDS, hashes[i]!);
      }
    }
  }

  /** The promise of `TableView.matchLeading`. */
  match(
    words: Uint32Array,
    count: number,
    namespace: number,
    tierMask: number,
    best: Uint8Array,
  ): number {
    const { hashes, index } = this;
    const { meta } = this.columns;
    for (let from = 0; from < count; from += CHUNK) {
      const size = Math.min(CHUNK, count - from);
      this.fetch(words, from, size);
      for (let i = 0; i < size; i++) {
        // Entry 0 of `meta` is zero: what is not found is resident nowhere.
        const marks = meta[index.find(words, (from + i) * KEY_WORDS, hashes[i]!)]!;
        const tiers = marks & tierMask;
        if (tiers === 0 || marks >>> 16 !== namespace) return from + i;
        best[from + i] = tiers & -tiers;
      }
    }
    return count;
  }

  /** Computes the hashes and brings into the cache what they lead to. */
  private fetch(words: Uint32Array, from: number, size: number): void {
    const { hashes, fetched, index } = this;
    const { entries, mask, idMask } = index;
    const { keys, meta } = this.columns;
    for (let i = 0; i < size; i++) hashes[i] = index.hash(words, (from + i) * KEY_WORDS);
    for (let i = 0; i < size; i++) fetched[i] = entries[hashes[i]! & mask]! & idMask;
    // Stored, or the compiler would leave these loads out.
    for (let i = 0; i < size; i++) {
      const likely = fetched[i]!;
      fetched[i] = keys[likely * KEY_WORDS]! ^ meta[likely]!;
    }
  }
}
