import { assert, type Random } from "../../core/index.ts";

/** Maximum number of nodes that share one alias, and of aliases of one kind per node. */
export const NODES_PER_ALIAS_MAX = 64;
export const ALIASES_PER_NODE_MAX = 64;

export type AliasResult = "added" | "present" | "full";

/**
 * Maximum distance, in entries, of an entry from its home position. A table within its load limit
 * never comes near it.
 */
export const PROBE_MAX = 1024;
/**
 * Maximum id. An id takes up to 27 bits of a 32-bit entry, which leaves at least five for the tag.
 */
export const IDS_MAX = 2 ** 26;

/**
 * HalfSipHash-1-3 (Aumasson and Bernstein; the 32-bit SipHash of the Linux kernel) over `count`
 * words from `words[at]`, without the length block, because all inputs of one index have the same
 * length. Without the seed an attacker cannot choose inputs that collide.
 */
function keyedHash(
  words: Uint32Array,
  at: number,
  count: number,
  seedLo: number,
  seedHi: number,
): number {
  let v0 = seedLo;
  let v1 = seedHi;
  let v2 = seedLo ^ 0x6c796765;
  let v3 = seedHi ^ 0x74656462;
  const rounds = count + 3;
  for (let i = 0; i < rounds; i++) {
    const word = i < count ? words[at + i] | 0 : 0;
    v3 ^= word;
    if (i === count) v2 ^= 0xff;
    v0 = (v0 + v1) | 0;
    v1 = ((v1 << 5) | (v1 >>> 27)) ^ v0;
    v0 = (v0 << 16) | (v0 >>> 16);
    v2 = (v2 + v3) | 0;
    v3 = ((v3 << 8) | (v3 >>> 24)) ^ v2;
    v0 = (v0 + v3) | 0;
    v3 = ((v3 << 7) | (v3 >>> 25)) ^ v0;
    v2 = (v2 + v1) | 0;
    v1 = ((v1 << 13) | (v1 >>> 19)) ^ v2;
    v2 = (v2 << 16) | (v2 >>> 16);
    v0 ^= word;
  }
  return v1 ^ v3;
}

/**
 * Open-addressing index from words to ids, with linear probing. An entry has 32 bits: the id, and
 * the upper bits of the hash as a tag, so that a wrong entry rarely costs a comparison of words.
 * Removal shifts later entries back, so that no tombstones remain. Ids with equal words may be in
 * the index together, in insertion order. Invariants: no empty place is between an entry and its
 * home; no entry is `PROBE_MAX` or more places after its home, so that every search ends.
 */
export class HashIndex {
  readonly words: Uint32Array;
  readonly width: number;
  readonly entries: Int32Array;
  readonly mask: number;
  readonly idMask: number;
  private readonly probesMax: number;
  private readonly seedLo: number;
  private readonly seedHi: number;

  /**
   * `words`: ids' words, `width` per id; those of `id` begin at `words[id * width]`. Ids are 1 to
   * `idsMax`.
   */
  constructor(words: Uint32Array, width: number, idsMax: number, random: Random) {
    assert(idsMax >= 1 && idsMax <= IDS_MAX, "an index holds 1 to 2^26 ids");
    // The load factor at `idsMax` is between 3/8 and 3/4: 5.3 to 10.7 bytes per id.
    let places = 8;
    while (places * 3 < idsMax * 4) places *= 2;
    this.words = words;
    this.width = width;
    this.entries = new Int32Array(new ArrayBuffer(places * 4));
    this.mask = places - 1;
    this.idMask = 2 ** (32 - Math.clz32(idsMax)) - 1;
    this.probesMax = Math.min(PROBE_MAX, places - 1);
    this.seedLo = random.u32() | 0;
    this.seedHi = random.u32() | 0;
  }

  hash(words: Uint32Array, at: number): number {
    return keyedHash(words, at, this.width, this.seedLo, this.seedHi);
  }

  /**
   * Returns the id with these words that was inserted first, or 0. `hash` must be the hash of the
   * words.
   */
  find(words: Uint32Array, at: number, hash: number): number {
    const found = this.seek(words, at, hash, 0);
    return found < 0 ? 0 : this.idAt(hash, found);
  }

  /**
   * Returns the distance from the home position to the first entry at distance `from` or more whose
   * id has these words; -1 if there is none.
   */
  seek(words: Uint32Array, at: number, hash: number, from: number): number {
    const { entries, mask, idMask, width, words: own, probesMax } = this;
    const tag = hash & ~idMask;
    for (let step = from; step < probesMax; step++) {
      const entry = entries[(hash + step) & mask];
      if (entry === 0) return -1;
      if ((entry & ~idMask) !== tag) continue;
      const start = (entry & idMask) * width;
      let differing = 0;
      for (let i = 0; i < width; i++) differing |= own[start + i] ^ words[at + i];
      if (differing === 0) return step;
    }
    return -1;
  }

  idAt(hash: number, step: number): number {
    return this.entries[(hash + step) & this.mask] & this.idMask;
  }

  /**
   * Inserts `id`. Its words must be stored already and have this hash. Returns false if no entry
   * near its home position is empty.
   */
  insert(id: number, hash: number): boolean {
    const { entries, mask, idMask, probesMax } = this;
    for (let step = 0; step < probesMax; step++) {
      const place = (hash + step) & mask;
      if (entries[place] !== 0) continue;
      entries[place] = (hash & ~idMask) | id;
      return true;
    }
    return false;
  }

  /** Removes `id`. Its words must still be stored. */
  remove(id: number): void {
    const { entries, mask, idMask, width, words } = this;
    let hole = this.hash(words, id * width) & mask;
    while ((entries[hole] & idMask) !== id) {
      assert(entries[hole] !== 0, "an id to be removed stands in its index");
      hole = (hole + 1) & mask;
    }
    for (let place = (hole + 1) & mask; entries[place] !== 0; place = (place + 1) & mask) {
      const home = this.hash(words, (entries[place] & idMask) * width);
      // Move the entry into the hole unless its home position is after the hole.
      if (((place - home) & mask) < ((place - hole) & mask)) continue;
      entries[hole] = entries[place];
      hole = place;
    }
    entries[hole] = 0;
  }
}

/**
 * Aliases of nodes. An alias may name several nodes, and a node may have several aliases. An entry
 * is a pair (alias, node). The entries of one node form a chain, so that they can be removed
 * together. Free entries are linked through `nextOfNode`.
 */
export class AliasIndex {
  readonly entriesMax: number;
  /** Number of 32-bit words per alias. */
  readonly width: number;
  readonly words: Uint32Array;
  readonly nodes: Int32Array;
  readonly nextOfNode: Int32Array;
  readonly firstOfNode: Int32Array;
  readonly index: HashIndex;
  count = 0;
  highest = 0;
  firstFree = 0;

  constructor(width: number, entriesMax: number, nodesMax: number, random: Random) {
    const words = new Uint32Array(new ArrayBuffer((entriesMax + 1) * width * 4));
    this.entriesMax = entriesMax;
    this.width = width;
    this.words = words;
    this.nodes = new Int32Array(new ArrayBuffer((entriesMax + 1) * 4));
    this.nextOfNode = new Int32Array(new ArrayBuffer((entriesMax + 1) * 4));
    this.firstOfNode = new Int32Array(new ArrayBuffer((nodesMax + 1) * 4));
    this.index = new HashIndex(words, width, entriesMax, random);
  }

  /** Adds an alias of `width` words to a node. */
  add(node: number, name: Uint32Array): AliasResult {
    const hash = this.index.hash(name, 0);
    let sharing = 0;
    for (let step = this.step(name, hash, -1); step >= 0; step = this.step(name, hash, step)) {
      if (this.nodes[this.index.idAt(hash, step)] === node) return "present";
      sharing++;
    }
    if (sharing >= NODES_PER_ALIAS_MAX || this.namesOf(node) >= ALIASES_PER_NODE_MAX) return "full";
    const entry = this.take();
    if (entry === 0) return "full";
    for (let i = 0; i < this.width; i++) this.words[entry * this.width + i] = name[i];
    if (!this.index.insert(entry, hash)) {
      this.give(entry);
      return "full";
    }
    this.nodes[entry] = node;
    this.nextOfNode[entry] = this.firstOfNode[node];
    this.firstOfNode[node] = entry;
    return "added";
  }

  /** Returns the aliases of the node as bytes, each word in little-endian order. */
  namesGivenTo(node: number): Uint8Array[] {
    const names: Uint8Array[] = [];
    for (let entry = this.firstOfNode[node]; entry !== 0; entry = this.nextOfNode[entry]) {
      const words = this.words.slice(entry * this.width, (entry + 1) * this.width);
      names.push(new Uint8Array(words.buffer));
    }
    return names;
  }

  /**
   * Copies the first two words of the node's latest aliases, at most `max` aliases, to `into[at]`.
   * Returns the number of aliases copied.
   */
  readStarts(node: number, into: Uint32Array, at: number, max: number): number {
    let names = 0;
    for (let entry = this.firstOfNode[node]; entry !== 0; entry = this.nextOfNode[entry]) {
      if (names === max) break;
      into[at + names * 2] = this.words[entry * this.width];
      into[at + names * 2 + 1] = this.words[entry * this.width + 1];
      names++;
    }
    return names;
  }

  /** Removes all aliases of the node. */
  removeNode(node: number): void {
    let entry = this.firstOfNode[node];
    // Write nothing for a node without aliases, so that its memory page is never touched.
    if (entry === 0) return;
    this.firstOfNode[node] = 0;
    while (entry !== 0) {
      const next = this.nextOfNode[entry];
      this.index.remove(entry);
      this.give(entry);
      entry = next;
    }
  }

  nodesOf(name: Uint32Array, out: Int32Array): number {
    const hash = this.index.hash(name, 0);
    let found = 0;
    for (let step = this.step(name, hash, -1); step >= 0; step = this.step(name, hash, step)) {
      if (found === out.length) break;
      out[found++] = this.nodes[this.index.idAt(hash, step)];
    }
    return found;
  }

  private step(name: Uint32Array, hash: number, after: number): number {
    return this.index.seek(name, 0, hash, after + 1);
  }

  private namesOf(node: number): number {
    let names = 0;
    for (let entry = this.firstOfNode[node]; entry !== 0; entry = this.nextOfNode[entry]) names++;
    return names;
  }

  private take(): number {
    let entry = this.firstFree;
    if (entry !== 0) this.firstFree = this.nextOfNode[entry];
    else if (this.highest === this.entriesMax) return 0;
    else entry = ++this.highest;
    this.count++;
    return entry;
  }

  private give(entry: number): void {
    assert(this.count > 0, "an alias to give back exists");
    this.nodes[entry] = 0;
    this.nextOfNode[entry] = this.firstFree;
    this.firstFree = entry;
    this.count--;
  }
}

/** Reads 32 bytes from `bytes[at]` into eight little-endian words. `at` needs no alignment. */
export function wordsOfBytes(bytes: Uint8Array, at: number, into: Uint32Array): void {
  for (let word = 0; word < 8; word++) {
    const from = at + word * 4;
    into[word] =
      bytes[from] | (bytes[from + 1] << 8) | (bytes[from + 2] << 16) | (bytes[from + 3] << 24);
  }
}
