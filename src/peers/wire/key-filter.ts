import { assert } from "../../core/index.ts";
import { FILTER_BYTES_MAX, KEY_BYTES } from "./layout.ts";

/**
 * A compact set of block keys: Bloom filter with about twelve bits per key. The format is the split
 * block Bloom filter of Apache Parquet (https://parquet.apache.org/docs/file-format/bloomfilter/):
 * a key sets one bit in each of the eight words of one group, so a lookup touches one cache line.
 * `BlockKey`s are BLAKE3 hashes, so their own words serve as hashes: the first word selects the
 * group, the second and third word select the bits.
 *
 * Layout: magic u32, version u16, words per group u16, keys u64, groups u32, zero u32, XXH3-64 of
 * everything else u64; then the groups.
 */

const MAGIC = 0x464b_5248; // "HRKF" as u32 LE
const FILTER_VERSION = 1;
const HEADER_BYTES = 32;
const CHECKSUM_AT = 24;
const GROUP_WORDS = 8;
const GROUP_BYTES = 4 * GROUP_WORDS;
const BITS_PER_KEY = 12;
/** Number of leading bytes of a key that select its bits. */
const HASHED_BYTES = 12;
const U32_RANGE = 2 ** 32;
const GROUPS_MAX = Math.floor((FILTER_BYTES_MAX - HEADER_BYTES) / GROUP_BYTES);
const KEYS_STEP = 1.25;
const KEYS_MIN = 256;

/** Number of keys at which a filter of the maximum size still has at most 1 % false positives. */
export const FILTER_KEYS_MAX = Math.floor((GROUPS_MAX * GROUP_BYTES * 8) / BITS_PER_KEY);

export type ReadFilter =
  | { readonly ok: true; readonly filter: KeyFilter }
  | { readonly ok: false; readonly why: string };

/**
 * Returns the capacity of a filter for `keys` keys. Capacities grow in steps of 25 %, so that
 * filters of almost equal sets have the same size.
 */
function roomFor(keys: number): number {
  let room = KEYS_MIN;
  while (room < keys && room < FILTER_KEYS_MAX) room = Math.ceil(room * KEYS_STEP);
  return Math.min(room, FILTER_KEYS_MAX);
}

export class KeyFilterBuilder {
  /**
   * Number of keys for which this filter is sized. More can be added, at the cost of more false
   * positives.
   */
  readonly room: number;
  readonly #bytes: Uint8Array<ArrayBuffer>;
  readonly #words: Uint32Array;
  readonly #groups: number;
  #keys = 0;

  /**
   * `keys`: expected number of keys. From `FILTER_KEYS_MAX` on, the filter has its maximum size.
   */
  constructor(keys: number) {
    this.room = roomFor(keys);
    this.#groups = Math.ceil((this.room * BITS_PER_KEY) / (GROUP_BYTES * 8));
    this.#bytes = new Uint8Array(HEADER_BYTES + this.#groups * GROUP_BYTES);
    this.#words = new Uint32Array(this.#bytes.buffer, HEADER_BYTES);
  }

  get keys(): number {
    return this.#keys;
  }

  /** True if more keys were added than the filter is sized for, and a larger filter is possible. */
  get overfull(): boolean {
    return this.#keys > this.room && this.room < FILTER_KEYS_MAX;
  }

  /** Adds a key of 32 bytes. Does not keep a reference to it. */
  add(key: Uint8Array): void {
    assert(key.length === KEY_BYTES, "a key has 32 bytes");
    const words = this.#words;
    const group = groupOf(wordAt(key, 0), this.#groups);
    const low = wordAt(key, 4);
    const high = wordAt(key, 8);
    for (let i = 0; i < GROUP_WORDS; i++) words[group + i] |= bitOf(low, high, i);
    this.#keys++;
  }

  /** Completes the filter. The builder must not be used afterwards. */
  done(): KeyFilter {
    const view = new DataView(this.#bytes.buffer);
    view.setUint32(0, MAGIC, true);
    view.setUint16(4, FILTER_VERSION, true);
    view.setUint16(6, GROUP_WORDS, true);
    view.setBigUint64(8, BigInt(this.#keys), true);
    view.setUint32(16, this.#groups, true);
    view.setBigUint64(CHECKSUM_AT, Bun.hash.xxHash3(this.#bytes), true);
    return new KeyFilter(this.#bytes, this.#words, this.#keys);
  }
}

/** Validates a filter received from a peer, and copies it. */
export function readKeyFilter(came: Uint8Array): ReadFilter {
  const why = whyNoFilter(came);
  if (why !== null) return { ok: false, why };
  // Unlike `Buffer.slice`, this copies the bytes.
  const bytes = new Uint8Array(came);
  const view = new DataView(bytes.buffer);
  const checksum = view.getBigUint64(CHECKSUM_AT, true);
  view.setBigUint64(CHECKSUM_AT, 0n, true);
  if (Bun.hash.xxHash3(bytes) !== checksum) return { ok: false, why: "filter: checksum mismatch" };
  view.setBigUint64(CHECKSUM_AT, checksum, true);
  const keys = Number(view.getBigUint64(8, true));
  const filter = new KeyFilter(bytes, new Uint32Array(bytes.buffer, HEADER_BYTES), keys);
  return { ok: true, filter };
}

function whyNoFilter(came: Uint8Array): string | null {
  if (came.length < HEADER_BYTES) return "filter: cut off";
  if (came.length > FILTER_BYTES_MAX) return "filter: too long";
  const view = new DataView(came.buffer, came.byteOffset, came.byteLength);
  if (view.getUint32(0, true) !== MAGIC) return "filter: invalid magic";
  if (view.getUint16(4, true) !== FILTER_VERSION) return "filter: unsupported version";
  if (view.getUint16(6, true) !== GROUP_WORDS) return "filter: unsupported group size";
  const groups = view.getUint32(16, true);
  if (groups === 0 || came.length !== HEADER_BYTES + groups * GROUP_BYTES)
    return "filter: length mismatch";
  if (view.getUint32(20, true) !== 0) return "filter: reserved field is not zero";
  const keys = view.getBigUint64(8, true);
  return keys > BigInt(Number.MAX_SAFE_INTEGER) ? "filter: key count out of range" : null;
}

/** A read-only filter, created by `KeyFilterBuilder.done` or `readKeyFilter`. */
export class KeyFilter {
  /** The filter in its wire format. */
  readonly bytes: Uint8Array;
  /** Number of keys that were added to the filter. */
  readonly keys: number;
  readonly #words: Uint32Array;
  readonly #groups: number;

  constructor(bytes: Uint8Array, words: Uint32Array, keys: number) {
    this.bytes = bytes;
    this.keys = keys;
    this.#words = words;
    this.#groups = words.length / GROUP_WORDS;
  }

  /**
   * Returns whether the set may contain the 32-byte key at offset `at`. False: the key was not
   * added. True: it probably was; less than 1 % of such results are wrong.
   */
  mayContain(key: Uint8Array, at = 0): boolean {
    assert(at + HASHED_BYTES <= key.length, "a key has 32 bytes");
    const words = this.#words;
    const group = groupOf(wordAt(key, at), this.#groups);
    const low = wordAt(key, at + 4);
    const high = wordAt(key, at + 8);
    for (let i = 0; i < GROUP_WORDS; i++) {
      if ((words[group + i] & bitOf(low, high, i)) === 0) return false;
    }
    return true;
  }
}

/** Reads a 32-bit word of a key as little-endian on every CPU. */
function wordAt(bytes: Uint8Array, at: number): number {
  return (bytes[at] | (bytes[at + 1] << 8) | (bytes[at + 2] << 16) | (bytes[at + 3] << 24)) >>> 0;
}

/**
 * Returns the index of the first word of a key's group. The intermediate product is below 2^53, so
 * it is exact.
 */
function groupOf(word: number, groups: number): number {
  return GROUP_WORDS * Math.floor((word * groups) / U32_RANGE);
}

/**
 * Returns the bit that a key sets in word `i` of its group. Five bits of `low` select it in six of
 * the words, five bits of `high` in the other two.
 */
function bitOf(low: number, high: number, i: number): number {
  return 1 << ((i < 6 ? low >>> (5 * i) : high >>> (5 * (i - 6))) & 31);
}
