import { assert } from "../../core/index.ts";
import { FILTER_BYTES_MAX, KEY_BYTES } from "./layout.ts";

/**
 * Which keys a host may have, in about twelve bits a key. It is the split block Bloom filter of
 * Apache Parquet (https://parquet.apache.org/docs/file-format/bloomfilter/): a key sets one bit in
 * each of the eight words of one group, so a look-up touches one cache line. `BlockKey`s are
 * BLAKE3 hashes, so that their own words serve as hashes: the first chooses the group, the second
 * and third the bits.
 *
 * The bytes: magic u32, version u16, words of a group u16, keys u64, groups u32, zero u32, XXH3-64
 * of all else u64; then the groups.
 */

const MAGIC = 0x464b_5248; // "HRKF" as u32 LE
const FILTER_VERSION = 1;
const HEADER_BYTES = 32;
const CHECKSUM_AT = 24;
const GROUP_WORDS = 8;
const GROUP_BYTES = 4 * GROUP_WORDS;
const BITS_PER_KEY = 12;
/** Bytes of a key that are looked at. */
const HASHED_BYTES = 12;
const U32_RANGE = 2 ** 32;
const GROUPS_MAX = Math.floor((FILTER_BYTES_MAX - HEADER_BYTES) / GROUP_BYTES);
const KEYS_STEP = 1.25;
const KEYS_MIN = 256;

/** Keys that a filter of full size takes before wrong answers become more than 1 %. */
export const FILTER_KEYS_MAX = Math.floor((GROUPS_MAX * GROUP_BYTES * 8) / BITS_PER_KEY);

export type ReadFilter =
  | { readonly ok: true; readonly filter: KeyFilter }
  | { readonly ok: false; readonly why: string };

/** Answers for keys; made by `KeyFilterBuilder.done` or `readKeyFilter`. */
export interface KeyFilter {
  /** Keys that were put in. */
  readonly keys: number;
  /** Of the filter as it travels. */
  readonly bytes: Uint8Array;
  /**
   * False: the host that made the filter had no block of this key (32 bytes at `at`). True: it
   * probably had one; less than 1 % of other keys get this answer, too.
   */
  mayContain(key: Uint8Array, at?: number): boolean;
}

/**
 * Room for at least `keys` keys in steps of a quarter, so that a filter over the same keys made
 * twice has the same bytes.
 */
function roomFor(keys: number): number {
  let room = KEYS_MIN;
  while (room < keys && room < FILTER_KEYS_MAX) room = Math.ceil(room * KEYS_STEP);
  return Math.min(room, FILTER_KEYS_MAX);
}

export class KeyFilterBuilder {
  /** More may be put in; wrong answers become more frequent then. */
  readonly room: number;
  readonly #bytes: Uint8Array<ArrayBuffer>;
  readonly #words: Uint32Array;
  readonly #groups: number;
  #keys = 0;

  /** `keys`: how many are expected; at `FILTER_KEYS_MAX` it has its full size. */
  constructor(keys: number) {
    this.room = roomFor(keys);
    this.#groups = Math.ceil((this.room * BITS_PER_KEY) / (GROUP_BYTES * 8));
    this.#bytes = new Uint8Array(HEADER_BYTES + this.#groups * GROUP_BYTES);
    this.#words = new Uint32Array(this.#bytes.buffer, HEADER_BYTES);
  }

  get keys(): number {
    return this.#keys;
  }

  /** Whether more came than there is room for, and a larger filter would have it. */
  get overfull(): boolean {
    return this.#keys > this.room && this.room < FILTER_KEYS_MAX;
  }

  /** `key`: 32 bytes, of which nothing is kept. */
  add(key: Uint8Array): void {
    assert(key.length === KEY_BYTES, "a key has 32 bytes");
    const words = this.#words;
    const group = groupOf(wordAt(key, 0), this.#groups);
    const low = wordAt(key, 4);
    const high = wordAt(key, 8);
    for (let i = 0; i < GROUP_WORDS; i++) words[group + i]! |= bitOf(low, high, i);
    this.#keys++;
  }

  /** The builder is not used afterwards. */
  done(): KeyFilter {
    const view = new DataView(this.#bytes.buffer);
    view.setUint32(0, MAGIC, true);
    view.setUint16(4, FILTER_VERSION, true);
    view.setUint16(6, GROUP_WORDS, true);
    view.setBigUint64(8, BigInt(this.#keys), true);
    view.setUint32(16, this.#groups, true);
    view.setBigUint64(CHECKSUM_AT, Bun.hash.xxHash3(this.#bytes), true);
    return new SplitBlockFilter(this.#bytes, this.#words, this.#keys);
  }
}

/** A filter as it came from a peer. It is copied. */
export function readKeyFilter(came: Uint8Array): ReadFilter {
  const why = whyNoFilter(came);
  if (why !== null) return { ok: false, why };
  // A Buffer's own `slice` copies nothing.
  const bytes = new Uint8Array(came);
  const view = new DataView(bytes.buffer);
  const checksum = view.getBigUint64(CHECKSUM_AT, true);
  view.setBigUint64(CHECKSUM_AT, 0n, true);
  if (Bun.hash.xxHash3(bytes) !== checksum) return { ok: false, why: "filter: a wrong checksum" };
  view.setBigUint64(CHECKSUM_AT, checksum, true);
  const keys = Number(view.getBigUint64(8, true));
  const filter = new SplitBlockFilter(bytes, new Uint32Array(bytes.buffer, HEADER_BYTES), keys);
  return { ok: true, filter };
}

function whyNoFilter(came: Uint8Array): string | null {
  if (came.length < HEADER_BYTES) return "filter: cut off";
  if (came.length > FILTER_BYTES_MAX) return "filter: too long";
  const view = new DataView(came.buffer, came.byteOffset, came.byteLength);
  if (view.getUint32(0, true) !== MAGIC) return "filter: not one";
  if (view.getUint16(4, true) !== FILTER_VERSION) return "filter: of a version not known here";
  if (view.getUint16(6, true) !== GROUP_WORDS) return "filter: of another shape";
  const groups = view.getUint32(16, true);
  if (groups === 0 || came.length !== HEADER_BYTES + groups * GROUP_BYTES)
    return "filter: of another length than it says";
  if (view.getUint32(20, true) !== 0) return "filter: a reserved field is not zero";
  const keys = view.getBigUint64(8, true);
  return keys > BigInt(Number.MAX_SAFE_INTEGER) ? "filter: more keys than there are" : null;
}

class SplitBlockFilter implements KeyFilter {
  readonly bytes: Uint8Array;
  readonly keys: number;
  readonly #words: Uint32Array;
  readonly #groups: number;

  constructor(bytes: Uint8Array, words: Uint32Array, keys: number) {
    this.bytes = bytes;
    this.keys = keys;
    this.#words = words;
    this.#groups = words.length / GROUP_WORDS;
  }

  mayContain(key: Uint8Array, at = 0): boolean {
    assert(at + HASHED_BYTES <= key.length, "a key has 32 bytes");
    const words = this.#words;
    const group = groupOf(wordAt(key, at), this.#groups);
    const low = wordAt(key, at + 4);
    const high = wordAt(key, at + 8);
    for (let i = 0; i < GROUP_WORDS; i++) {
      if ((words[group + i]! & bitOf(low, high, i)) === 0) return false;
    }
    return true;
  }
}

/** A word of a key, little-endian whatever the machine. */
function wordAt(bytes: Uint8Array, at: number): number {
  return (
    (bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24)) >>> 0
  );
}

/** First word of the group: below 2^53 all the way, so the product is exact. */
function groupOf(word: number, groups: number): number {
  return GROUP_WORDS * Math.floor((word * groups) / U32_RANGE);
}

/** Five bits of the key choose the bit of word `i`: six words by `low`, two by `high`. */
function bitOf(low: number, high: number, i: number): number {
  return 1 << ((i < 6 ? low >>> (5 * i) : high >>> (5 * (i - 6))) & 31);
}
