import type { Database } from "bun:sqlite";
import type { AliasRow, BlockRows } from "../block-index.ts";
import type { NamespaceKeys } from "./index-store.ts";
import { DamagedIndex } from "./open-database.ts";
import { hashOfEntry, isSeal, type SealedBlock, sealOfAlias, sealOfBlock, Tally } from "./seal.ts";

const BATCH_ROWS = 4096;

/** Read rows as arrays in pages, which takes half the time of objects row by row. */
const PAGE_ROWS = 4096;
const SCAN = `SELECT id, namespace_id, digest, layer, parent, bytes, checksum, variant, last_seen,
  uses, seal FROM blocks WHERE id > ? ORDER BY id LIMIT ${PAGE_ROWS}`;
type ScannedBlock = [
  id: number,
  namespaceId: number,
  digest: Uint8Array,
  layer: number,
  parent: Uint8Array | null,
  bytes: number,
  checksum: Uint8Array,
  variant: number,
  lastSeen: number,
  uses: number,
  seal: Uint8Array,
];

/** SQLite answers this query from the table's index alone. */
const SCAN_INDEX = `SELECT digest, layer, id FROM blocks INDEXED BY sqlite_autoindex_blocks_1
  WHERE (digest, layer) > (?, ?) ORDER BY digest, layer LIMIT ${PAGE_ROWS}`;
type ScannedEntry = [digest: Uint8Array, layer: number, id: number];

/** Rows of the blocks of one namespace and layer. */
interface Group {
  readonly namespaceKey: Uint8Array;
  readonly macKeyId: Uint8Array | null;
  readonly layer: number;
  count: number;
}

/**
 * Reads and verifies the table of blocks. Keeps the rows in columns (about 100 bytes per row) until
 * `next` returns them. Accepts the table only if every row matches its seal, the sum of the seals
 * matches the committed tally, and SQLite's index of the table has the same rows. Otherwise throws
 * DamagedIndex.
 */
export class BlockLoad {
  readonly #count: number;
  readonly #groupOf: Uint32Array;
  readonly #digests: Uint8Array;
  readonly #parents: Uint8Array;
  readonly #bytes: Uint32Array;
  /** Checksums as stored, eight bytes per row. */
  readonly #checksums: Uint8Array;
  readonly #variants: Uint8Array;
  readonly #lastSeen: Uint32Array;
  readonly #uses: Uint16Array;
  readonly #groups: Group[] = [];
  readonly #order: Uint32Array;
  #group = 0;
  #taken = 0;
  #start = 0;

  constructor(db: Database, keys: NamespaceKeys, expected: Tally) {
    this.#count = expected.count;
    this.#groupOf = new Uint32Array(this.#count);
    this.#digests = new Uint8Array(this.#count * 32);
    this.#parents = new Uint8Array(this.#count * 32);
    this.#bytes = new Uint32Array(this.#count);
    this.#checksums = new Uint8Array(this.#count * 8);
    this.#variants = new Uint8Array(this.#count);
    this.#lastSeen = new Uint32Array(this.#count);
    this.#uses = new Uint16Array(this.#count);
    this.#compareIndex(db, this.#scan(db, keys, expected));
    this.#order = this.#sorted();
  }

  /**
   * Returns the next rows of one namespace and layer, the least recently used first; null at the
   * end.
   */
  next(): BlockRows | null {
    const group = this.#groups[this.#group];
    if (group === undefined) return null;
    const count = Math.min(BATCH_ROWS, group.count - this.#taken);
    const from = this.#start + this.#taken;
    const rows = this.#gather(group, this.#order.subarray(from, from + count));
    this.#taken += count;
    if (this.#taken === group.count) {
      this.#group++;
      this.#start += group.count;
      this.#taken = 0;
    }
    return rows;
  }

  /**
   * Reads all rows into the columns. Returns the tally that SQLite's index of the table must match.
   */
  #scan(db: Database, keys: NamespaceKeys, expected: Tally): Tally {
    const page = db.prepare<ScannedBlock, [number]>(SCAN);
    const numberOf = groupNumbers(this.#groups);
    const [tally, entries] = [new Tally(), new Tally()];
    let lastId = Number.MIN_SAFE_INTEGER;
    for (;;) {
      const rows = page.values(lastId) as ScannedBlock[];
      for (const row of rows) {
        const [id, namespaceId, digest, layer, parent, bytes, checksum, variant, seen, uses] = row;
        const block = { digest, layer, parent, bytes, checksum, variant, lastSeen: seen, uses };
        const namespaceKey = keys.keyOf(namespaceId);
        if (namespaceKey === undefined) throw new DamagedIndex("block of an unknown namespace");
        const seal = sealOfBlock(block, namespaceKey);
        if (seal === null || !isSeal(row[10], seal)) {
          throw new DamagedIndex("damaged block row");
        }
        if (tally.count === this.#count) throw new DamagedIndex("more blocks than recorded");
        const group = numberOf(namespaceId, layer, namespaceKey, keys.macKeyIdOf(namespaceId));
        this.#groups[group].count++;
        this.#groupOf[tally.count] = group;
        this.#enter(tally.count, block);
        tally.add(seal);
        entries.add(hashOfEntry(digest, layer, id));
        lastId = id;
      }
      if (rows.length < PAGE_ROWS) break;
    }
    page.finalize();
    if (!tally.equals(expected)) throw new DamagedIndex("blocks are missing or outdated");
    return entries;
  }

  #enter(at: number, block: SealedBlock): void {
    this.#digests.set(block.digest, at * 32);
    if (block.parent !== null) this.#parents.set(block.parent, at * 32);
    this.#bytes[at] = block.bytes;
    this.#checksums.set(block.checksum, at * 8);
    this.#variants[at] = block.variant;
    this.#lastSeen[at] = block.lastSeen;
    this.#uses[at] = block.uses;
  }

  /**
   * Compares SQLite's index of the table with the rows. A block that the index lacks would get a
   * second row. SQLite's own check of an index takes 2.2 s for a million rows.
   */
  #compareIndex(db: Database, entries: Tally): void {
    const page = db.prepare<ScannedEntry, [Uint8Array, number]>(SCAN_INDEX);
    const tally = new Tally();
    let [digest, layer]: [Uint8Array, number] = [new Uint8Array(0), 0];
    for (;;) {
      const found = page.values(digest, layer) as ScannedEntry[];
      for (const entry of found) {
        const after = order(digest, entry[0]);
        [digest, layer] = [entry[0], entry[1]];
        if (digest.length === 32 && after <= 0) tally.add(hashOfEntry(digest, layer, entry[2]));
      }
      if (found.length < PAGE_ROWS) break;
    }
    page.finalize();
    if (tally.equals(entries)) return;
    throw new DamagedIndex("the index of the blocks table does not match its rows");
  }

  /** Returns the row positions sorted by group, and within a group by the time of the last use. */
  #sorted(): Uint32Array {
    // Each 64-bit word is lastSeen * 2^32 + position, written as two halves and sorted as one
    // number.
    const words = new BigUint64Array(this.#count);
    const halves = new Uint32Array(words.buffer);
    const starts: number[] = [];
    for (const { count } of this.#groups) starts.push((starts.at(-1) ?? 0) + count);
    const free = starts.map((end, index) => end - this.#groups[index].count);
    for (let at = 0; at < this.#count; at++) {
      const place = free[this.#groupOf[at]]++;
      halves[place * 2] = at;
      halves[place * 2 + 1] = this.#lastSeen[at];
    }
    for (const [index, end] of starts.entries()) {
      words.subarray(end - this.#groups[index].count, end).sort();
    }
    const order = new Uint32Array(this.#count);
    for (let place = 0; place < this.#count; place++) order[place] = halves[place * 2];
    return order;
  }

  #gather(group: Group, positions: Uint32Array): BlockRows {
    const count = positions.length;
    const checksums = new BigUint64Array(count);
    const rows = {
      count,
      namespaceKey: Uint8Array.from(group.namespaceKey),
      macKeyId: group.macKeyId && Uint8Array.from(group.macKeyId),
      layer: group.layer,
      digests: gathered(this.#digests, 32, positions),
      parents: gathered(this.#parents, 32, positions),
      bytes: new Uint32Array(count),
      checksums,
      variants: new Uint8Array(count),
      lastSeen: new Uint32Array(count),
      uses: new Uint16Array(count),
    };
    new Uint8Array(checksums.buffer).set(gathered(this.#checksums, 8, positions));
    for (let to = 0; to < count; to++) {
      const at = positions[to];
      rows.bytes[to] = this.#bytes[at];
      rows.variants[to] = this.#variants[at];
      rows.lastSeen[to] = this.#lastSeen[at];
      rows.uses[to] = this.#uses[at];
    }
    return rows;
  }
}

/** Returns the rows at `positions` of a column with `width` bytes per row. */
function gathered(column: Uint8Array, width: number, positions: Uint32Array): Uint8Array {
  const rows = new Uint8Array(positions.length * width);
  let to = 0;
  for (const at of positions) {
    const from = at * width;
    for (let i = 0; i < width; i++) rows[to++] = column[from + i];
  }
  return rows;
}

/**
 * Returns a function that numbers pairs of namespace and layer and adds an entry for each new pair
 * to `groups`.
 */
function groupNumbers(groups: Group[]) {
  const numbers = new Map<string, number>();
  let last = { namespaceId: -1, layer: -1, number: -1 };
  return (
    namespaceId: number,
    layer: number,
    namespaceKey: Uint8Array,
    macKeyId: Uint8Array | null,
  ): number => {
    if (namespaceId === last.namespaceId && layer === last.layer) return last.number;
    const name = `${namespaceId} ${layer}`;
    const number =
      numbers.get(name) ?? groups.push({ namespaceKey, macKeyId, layer, count: 0 }) - 1;
    numbers.set(name, number);
    last = { namespaceId, layer, number };
    return number;
  };
}

/** Compares in SQLite's order of BLOBs. Returns a negative number if `a` sorts before `b`. */
function order(a: Uint8Array, b: Uint8Array): number {
  const length = Math.min(a.length, b.length);
  for (let i = 0; i < length; i++) if (a[i] !== b[i]) return a[i] - b[i];
  return a.length - b.length;
}

const PAGE = `SELECT digest, layer, alias, namespace_id, seal FROM aliases
  WHERE (digest, layer, alias) > (?, ?, ?) ORDER BY digest, layer, alias LIMIT ${PAGE_ROWS}`;
type ScannedAlias = [
  digest: Uint8Array,
  layer: number,
  alias: Uint8Array,
  namespaceId: number,
  seal: Uint8Array,
];

const NONE = new Uint8Array(0);

/**
 * Verifies the table of aliases, then reads it again page by page. Both passes check the seal of
 * each row, because a wrong alias would give an engine the bytes of another prompt. Throws
 * DamagedIndex.
 */
export class AliasLoad {
  readonly #db: Database;
  readonly #keys: NamespaceKeys;
  readonly #tally = new Tally();
  #last: AliasRow | null = null;

  constructor(db: Database, keys: NamespaceKeys, expected: Tally) {
    this.#db = db;
    this.#keys = keys;
    while (this.next() !== null);
    this.#last = null;
    if (this.#tally.equals(expected)) return;
    throw new DamagedIndex("aliases are missing or outdated");
  }

  /** Returns the next page of aliases; null at the end. */
  next(): readonly AliasRow[] | null {
    const { digest, layer, alias } = this.#last ?? { digest: NONE, layer: 0, alias: NONE };
    const found = this.#db.query<ScannedAlias, [Uint8Array, number, Uint8Array]>(PAGE);
    const rows = (found.values(digest, layer, alias) as ScannedAlias[]).map((row) =>
      this.#checked(row),
    );
    if (rows.length === 0) return null;
    this.#last = rows.at(-1)!;
    return rows;
  }

  #checked([digest, layer, alias, namespaceId, stored]: ScannedAlias): AliasRow {
    const namespaceKey = this.#keys.keyOf(namespaceId);
    const row = { digest, layer, alias };
    const seal = namespaceKey === undefined ? null : sealOfAlias(row, namespaceKey);
    if (namespaceKey === undefined || seal === null || !isSeal(stored, seal)) {
      throw new DamagedIndex("damaged alias row");
    }
    this.#tally.add(seal);
    return { ...row, namespaceKey };
  }
}
