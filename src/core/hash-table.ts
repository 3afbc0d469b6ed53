import { assert } from "./errors.ts";

/** Entries per page of a column. */
const PAGE_BITS = 12;
const PAGE = 1 << PAGE_BITS;

type Cells = Uint8Array | Uint32Array | BigUint64Array;
type CellsOf<A extends Cells> = new (length: number) => A;

/** One value per entry of a table, in typed arrays that grow by pages. New cells are 0. */
export class Column<A extends Cells> {
  readonly #pages: A[] = [];
  readonly #make: CellsOf<A>;

  constructor(make: CellsOf<A>) {
    this.#make = make;
  }

  /** `entry` is at most the largest entry set so far. */
  get(entry: number): A[number] {
    return this.#pages[entry >>> PAGE_BITS]![entry & (PAGE - 1)]!;
  }

  set(entry: number, value: A[number]): void {
    const page = entry >>> PAGE_BITS;
    while (this.#pages.length <= page) this.#pages.push(new this.#make(PAGE));
    this.#pages[page]![entry & (PAGE - 1)] = value;
  }
}

/** Entries per shard at the limit of the table. Moving them when a shard grows takes under 1 ms. */
const SHARD_ENTRIES = 8_192;
const SHARDS_MAX = 1_024;
const SLOTS_MIN = 16;
/** No entry. */
export const NO_ENTRY = -1;

const WORD = new BigUint64Array(1);
const HALVES = new Uint32Array(WORD.buffer);

/**
 * A set of 64-bit hashes in typed arrays. Each hash has an entry, a small number under which callers
 * keep its values in columns. The garbage collector sees some arrays, however many entries there
 * are: with an object per block, a collection takes 80 ms for 200,000 blocks and stops the event
 * loop for parts of it. Tables grow in pieces of under a millisecond.
 *
 * Entries are members of ordered lists (one by default): oldest first, by when they joined the list.
 */
export class HashTable {
  readonly #low = new Column(Uint32Array);
  readonly #high = new Column(Uint32Array);
  /** Neighbours in the list of the entry, plus 1; 0: none. Free entries use `#next`. */
  readonly #next = new Column(Uint32Array);
  readonly #before = new Column(Uint32Array);
  readonly #list = new Column(Uint8Array);
  /** First and last entry of each list, plus 1; 0: none. */
  readonly #first: number[];
  readonly #last: number[];
  readonly #sizes: number[];
  /** Entries plus 1; 0: empty. Linear probing, at most half full. */
  readonly #shards: Uint32Array[];
  readonly #used: Uint32Array;
  #entries = 0;
  /** Head of the list of free entries, plus 1; 0: none. */
  #free = 0;
  #size = 0;

  /** `max`: the expected maximum number of entries. Exceeding it costs time, nothing else. */
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

  /** Number of entries in a list. */
  sizeOf(list: number): number {
    return this.#sizes[list]!;
  }

  /** The entry of a hash, or NO_ENTRY. */
  find(key: bigint): number {
    WORD[0] = key;
    const [low, high] = [HALVES[0]!, HALVES[1]!];
    const mix = mixOf(low, high);
    const slots = this.#shards[mix & (this.#shards.length - 1)]!;
    const mask = slots.length - 1;
    for (let at = homeOf(mix) & mask; ; at = (at + 1) & mask) {
      const entry = slots[at]! - 1;
      if (entry < 0) return NO_ENTRY;
      if (this.#low.get(entry) === low && this.#high.get(entry) === high) return entry;
    }
  }

  /** Adds a hash that is absent, as the newest of the list. Columns keep values of former entries. */
  add(key: bigint, list = 0): number {
    const entry = this.#free > 0 ? this.#free - 1 : this.#entries++;
    if (this.#free > 0) this.#free = this.#next.get(entry);
    WORD[0] = key;
    const [low, high] = [HALVES[0]!, HALVES[1]!];
    this.#low.set(entry, low);
    this.#high.set(entry, high);
    const mix = mixOf(low, high);
    const shard = mix & (this.#shards.length - 1);
    if ((++this.#used[shard]! + 1) * 2 > this.#shards[shard]!.length) this.#grow(shard);
    place(this.#shards[shard]!, homeOf(mix), entry);
    this.#size++;
    this.#join(entry, list);
    return entry;
  }

  delete(entry: number): void {
    const mix = mixOf(this.#low.get(entry), this.#high.get(entry));
    const shard = mix & (this.#shards.length - 1);
    this.#clearSlot(this.#shards[shard]!, homeOf(mix), entry);
    this.#used[shard]!--;
    this.#size--;
    this.#leave(entry);
    this.#next.set(entry, this.#free);
    this.#free = entry + 1;
  }

  /** Makes an entry the newest of a list. */
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

  /** The oldest entry of a list, or NO_ENTRY. */
  oldest(list = 0): number {
    return this.#first[list]! - 1;
  }

  /** Entries of a list, oldest first. The current one may be deleted or moved during the visit. */
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
    const last = this.#last[list]!;
    this.#before.set(entry, last);
    this.#next.set(entry, 0);
    this.#list.set(entry, list);
    if (last > 0) this.#next.set(last - 1, entry + 1);
    else this.#first[list] = entry + 1;
    this.#last[list] = entry + 1;
    this.#sizes[list]!++;
  }

  #leave(entry: number): void {
    const list = this.#list.get(entry);
    const [before, next] = [this.#before.get(entry), this.#next.get(entry)];
    if (before > 0) this.#next.set(before - 1, next);
    else this.#first[list] = next;
    if (next > 0) this.#before.set(next - 1, before);
    else this.#last[list] = before;
    this.#sizes[list]!--;
  }

  #grow(shard: number): void {
    const old = this.#shards[shard]!;
    const slots = new Uint32Array(old.length * 2);
    for (const slot of old) {
      if (slot === 0) continue;
      place(slots, homeOf(mixOf(this.#low.get(slot - 1), this.#high.get(slot - 1))), slot - 1);
    }
    this.#shards[shard] = slots;
  }

  /** Empties the slot of an entry and moves displaced entries back, so that probing finds them. */
  #clearSlot(slots: Uint32Array, home: number, entry: number): void {
    const mask = slots.length - 1;
    let hole = home & mask;
    while (slots[hole] !== entry + 1) hole = (hole + 1) & mask;
    for (let at = (hole + 1) & mask; slots[at] !== 0; at = (at + 1) & mask) {
      const other = slots[at]! - 1;
      const wanted = homeOf(mixOf(this.#low.get(other), this.#high.get(other))) & mask;
      if (((at - wanted) & mask) < ((at - hole) & mask)) continue;
      slots[hole] = slots[at]!;
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

/** Well mixed, because an engine's hashes may be consecutive numbers or multiples. */
function mixOf(low: number, high: number): number {
  let mixed = Math.imul(low, 0x85eb_ca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 15) ^ high, 0xc2b2_ae35);
  return (mixed ^ (mixed >>> 13)) >>> 0;
}

/** The low bits choose the shard, so the others choose the slot. */
function homeOf(mix: number): number {
  return Math.imul(mix ^ (mix >>> 16), 0x9e37_79b1) >>> 10;
}
