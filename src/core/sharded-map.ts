import { assert } from "./errors.ts";

/** Entries per shard at the limit of the map. Moving them when a shard grows takes under 1 ms. */
const SHARD_ENTRIES = 8_192;
const SHARDS_MAX = 1_024;

const WORD = new BigUint64Array(1);
const HALVES = new Uint32Array(WORD.buffer);

/**
 * A map for up to millions of hashes. A built-in map moves all entries at once when it grows, which
 * takes 5 ms for 130,000 entries; this one consists of smaller maps that grow one by one.
 *
 * Iteration visits the shards in turn, each in order of insertion. Maps for at most 8,192 entries
 * have one shard, so that the order is that of insertion.
 */
export class ShardedMap<K extends bigint | string, V> {
  readonly #shards: Map<K, V>[];
  /** The shard that `oldest` visits next. */
  #next = 0;
  #size = 0;

  /** `max`: the expected maximum number of entries. Exceeding it costs time, nothing else. */
  constructor(max: number) {
    assert(max > 0, "max must be at least 1");
    const count = 2 ** Math.ceil(Math.log2(Math.max(1, max / SHARD_ENTRIES)));
    this.#shards = Array.from({ length: Math.min(count, SHARDS_MAX) }, () => new Map<K, V>());
  }

  get size(): number {
    return this.#size;
  }

  get(key: K): V | undefined {
    return this.#of(key).get(key);
  }
  has(key: K): boolean {
    return this.#of(key).has(key);
  }
  set(key: K, value: V): void {
    const shard = this.#of(key);
    const before = shard.size;
    shard.set(key, value);
    this.#size += shard.size - before;
  }
  /** Returns false if the key was absent. */
  delete(key: K): boolean {
    const isGone = this.#of(key).delete(key);
    if (isGone) this.#size--;
    return isGone;
  }

  clear(): void {
    for (const shard of this.#shards) shard.clear();
    this.#size = 0;
  }

  *[Symbol.iterator](): Generator<[K, V], void> {
    for (const shard of this.#shards) yield* shard;
  }
  *keys(): Generator<K, void> {
    for (const shard of this.#shards) yield* shard.keys();
  }

  /**
   * Removes and returns up to `count` entries, the oldest of each shard. With several shards these
   * are among the oldest of the map, because hashes spread evenly.
   */
  takeOldest(count: number): [K, V][] {
    const taken: [K, V][] = [];
    for (let empty = 0; taken.length < count && empty < this.#shards.length; ) {
      const shard = this.#shards[this.#next]!;
      this.#next = (this.#next + 1) % this.#shards.length;
      const oldest = shard.entries().next();
      if (oldest.done === true) {
        empty++;
        continue;
      }
      empty = 0;
      shard.delete(oldest.value[0]);
      this.#size--;
      taken.push(oldest.value);
    }
    return taken;
  }

  #of(key: K): Map<K, V> {
    const shards = this.#shards;
    if (shards.length === 1) return shards[0]!;
    return shards[shardOf(key) & (shards.length - 1)]!;
  }
}

/** A number with well mixed low bits; an engine's hashes may be consecutive or multiples. */
function shardOf(key: bigint | string): number {
  if (typeof key === "bigint") {
    WORD[0] = key;
    return mixed(HALVES[0]! ^ Math.imul(HALVES[1]!, 0x9e37_79b1));
  }
  let mix = key.length;
  // Digests differ in every byte.
  for (let i = Math.max(0, key.length - 8); i < key.length; i++) {
    mix = Math.imul(mix ^ key.charCodeAt(i), 0x0100_0193);
  }
  return mixed(mix);
}

function mixed(value: number): number {
  const once = Math.imul(value ^ (value >>> 16), 0x85eb_ca6b);
  return (once ^ (once >>> 13)) >>> 0;
}
