import { assert } from "./errors.ts";

/** Binary logarithm of the number of entries per page of a column. */
const PAGE_BITS = 12;
const PAGE = 1 << PAGE_BITS;

type Cells = Uint8Array | Uint32Array | BigUint64Array;
type CellsOf<A extends Cells> = new (length: number) => A;

/** Stores one number per entry of a table, in typed arrays that grow by pages. New cells are 0. */
export class Column<A extends Cells> {
  readonly #pages: A[] = [];
  readonly #make: CellsOf<A>;

  constructor(make: CellsOf<A>) {
    this.#make = make;
  }

  /** Returns the value of an entry, which must not be larger than the largest entry set so far. */
  get(entry: number): A[number] {
    return this.#pages[entry >>> PAGE_BITS][entry & (PAGE - 1)];
  }

  set(entry: number, value: A[number]): void {
    const page = entry >>> PAGE_BITS;
    while (this.#pages.length <= page) this.#pages.push(new this.#make(PAGE));
    this.#pages[page][entry & (PAGE - 1)] = value;
  }
}

/**
 * Entries per shard if the table has its expected maximum size. Moving that many entries when a
 * shard grows takes under 1 ms.
 */
const SHARD_ENTRIES = 8_192;
const SHARDS_MAX = 1_024;
const SLOTS_MIN = 16;
/** Stands for "no entry" in place of an entry number. */
export const NO_ENTRY = -1;

const WORD = new BigUint64Array(1);
const HALVES = new Uint32Array(WORD.buffer);

/**
 * A set of 64-bit hashes in typed arrays. Each hash has an entry number, a small integer by which
 * callers store its values in columns. The garbage collector sees only a few arrays, for any number
 * of entries: with one object per block, a collection takes 80 ms for 200,000 blocks and blocks the
 * event loop for part of that time. Tables grow in steps of under a millisecond.
 *
 * Each entry belongs to one of several lists (one by default). A list is ordered by the time at
 * which its entries joined it, oldest first.
 */
export class HashTable {
  readonly #low = new Column(Uint32Array);
  readonly #high = new Column(Uint32Array);
  /**
   * Per entry, the entry number of the next one in its list, plus 1; 0: none. `#before` has the
   * previous one in the same form. Unused entries are linked by `#next`.
   */
  readonly #next = new Column(Uint32Array);
  readonly #before = new Column(Uint32Array);
  readonly #list = new Column(Uint8Array);
  /**
   * Per list, the number of its first (oldest) entry, plus 1; 0: the list is empty. `#last` is the
   * same for its newest entry.
   */
  readonly #first: number[];
  readonly #last: number[];
  readonly #sizes: number[];
  /**
   * Hash slots, per shard. A slot contains an entry number plus 1, or 0 if it is empty. Collisions
   * are resolved by linear probing; a shard is at most half full.
   */
  readonly #shards: Uint32Array[];
  readonly #used: Uint32Array;
  #entries = 0;
  /** First entry number in the list of unused entries, plus 1; 0: none. */
  #free = 0;
  #size = 0;

  /** `max`: the expected maximum number of entries. A larger number is allowed but slower. */
  constructor(max: number, lists = 1) {
    assert(max > 0, "max must be at least 1");
    const wanted = 2 ** Math.ceil(Math.log2(Math.max(1, max / SHARD_ENTRIES)));
    const shards = Math.min(wanted, SHARDS_MAX);
    this.#shards = Array.from({ length: shards }, () => new Uint32Array(SLOTS_MIN));
    this.#used = new Uint32Array(shards);
    this.#first = new Array(lists).fill(0);
    this.#last = new Array(lists).fill(0);
    this.#sizes = new Array(lists).fill(0);
  }

  get size(): number {
    return this.#size;
  }

  /** Returns the number of entries in a list. */
  sizeOf(list: number): number {
    return this.#sizes[list];
  }

  /** Returns the entry number of a hash, or NO_ENTRY. */
  find(key: bigint): number {
    WORD[0] = key;
    const [low, high] = [HALVES[0], HALVES[1]];
    const mix = mixOf(low, high);
    const slots = this.#shards[mix & (this.#shards.length - 1)];
    const mask = slots.length - 1;
    for (let at = homeOf(mix) & mask; ; at = (at + 1) & mask) {
      const entry = slots[at] - 1;
      if (entry < 0) return NO_ENTRY;
      if (this.#low.get(entry) === low && this.#high.get(entry) === high) return entry;
    }
  }

  /**
   * Adds a hash, which must not be in the table, as the newest entry of the list. Returns its entry
   * number. Columns may still contain values of an earlier entry with that number.
   */
  add(key: bigint, list = 0): number {
    const entry = this.#free > 0 ? this.#free - 1 : this.#entries++;
    if (this.#free > 0) this.#free = this.#next.get(entry);
    WORD[0] = key;
    const [low, high] = [HALVES[0], HALVES[1]];
    this.#low.set(entry, low);
    this.#high.set(entry, high);
    const mix = mixOf(low, high);
    const shard = mix & (this.#shards.length - 1);
    if ((++this.#used[shard] + 1) * 2 > this.#shards[shard].length) this.#grow(shard);
    place(this.#shards[shard], homeOf(mix), entry);
    this.#size++;
    this.#join(entry, list);
    return entry;
  }

  delete(entry: number): void {
    const mix = mixOf(this.#low.get(entry), this.#high.get(entry));
    const shard = mix & (this.#shards.length - 1);
    this.#clearSlot(this.#shards[shard], homeOf(mix), entry);
    this.#used[shard]--;
    this.#size--;
    this.#leave(entry);
    this.#next.set(entry, this.#free);
    this.#free = entry + 1;
  }

  /** Moves an entry to a list, as the newest one. */
  move(entry: number, list: number): void {
    this.#leave(entry);
    this.#join(entry, list);
  }

  keyOf(entry: number): bigint {
    return (BigInt(this.#high.get(entry)) << 32n) | BigInt(this.#low.get(entry));
  }

  listOf(entry: number): number {
    return this.#list.get(entry);
  }

  /** Returns the oldest entry of a list, or NO_ENTRY. */
  oldest(list = 0): number {
    return this.#first[list] - 1;
  }

  /**
   * Yields the entries of a list, oldest first. The caller may delete or move the entry that was
   * just yielded.
   */
  *entries(list = 0): Generator<number, void> {
    for (let entry = this.oldest(list); entry >= 0; ) {
      const next = this.#next.get(entry) - 1;
      yield entry;
      entry = next;
    }
  }

  clear(): void {
    for (const [shard, used] of this.#used.entries()) {
      if (used > 0) this.#shards[shard] = new Uint32Array(SLOTS_MIN);
    }
    this.#used.fill(0);
    for (const ends of [this.#first, this.#last, this.#sizes]) ends.fill(0);
    [this.#entries, this.#free, this.#size] = [0, 0, 0];
  }

  #join(entry: number, list: number): void {
    const last = this.#last[list];
    this.#before.set(entry, last);
    this.#next.set(entry, 0);
    this.#list.set(entry, list);
    if (last > 0) this.#next.set(last - 1, entry + 1);
    else this.#first[list] = entry + 1;
    this.#last[list] = entry + 1;
    this.#sizes[list]++;
  }

  #leave(entry: number): void {
    const list = this.#list.get(entry);
    const [before, next] = [this.#before.get(entry), this.#next.get(entry)];
    if (before > 0) this.#next.set(before - 1, next);
    else this.#first[list] = next;
    if (next > 0) this.#before.set(next - 1, before);
    else this.#last[list] = before;
    this.#sizes[list]--;
  }

  #grow(shard: number): void {
    const old = this.#shards[shard];
    const slots = new Uint32Array(old.length * 2);
    for (const slot of old) {
      if (slot === 0) continue;
      place(slots, homeOf(mixOf(this.#low.get(slot - 1), this.#high.get(slot - 1))), slot - 1);
    }
    this.#shards[shard] = slots;
  }

  /**
   * Empties the slot of an entry and moves entries that were displaced by it, so that linear
   * probing still finds them.
   */
  #clearSlot(slots: Uint32Array, home: number, entry: number): void {
    const mask = slots.length - 1;
    let hole = home & mask;
    while (slots[hole] !== entry + 1) hole = (hole + 1) & mask;
    for (let at = (hole + 1) & mask; slots[at] !== 0; at = (at + 1) & mask) {
      const other = slots[at] - 1;
      const wanted = homeOf(mixOf(this.#low.get(other), this.#high.get(other))) & mask;
      if (((at - wanted) & mask) < ((at - hole) & mask)) continue;
      slots[hole] = slots[at];
      hole = at;
    }
    slots[hole] = 0;
  }
}

function place(slots: Uint32Array, home: number, entry: number): void {
  const mask = slots.length - 1;
  let at = home & mask;
  while (slots[at] !== 0) at = (at + 1) & mask;
  slots[at] = entry + 1;
}

/**
 * Mixes the bits of a hash. This is necessary because an engine's hashes may be consecutive numbers
 * or multiples.
 */
function mixOf(low: number, high: number): number {
  let mixed = Math.imul(low, 0x85eb_ca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 15) ^ high, 0xc2b2_ae35);
  return (mixed ^ (mixed >>> 13)) >>> 0;
}

/**
 * Returns the preferred slot within a shard. It depends on the upper bits, because the lower bits
 * select the shard.
 */
function homeOf(mix: number): number {
  return Math.imul(mix ^ (mix >>> 16), 0x9e37_79b1) >>> 10;
}
