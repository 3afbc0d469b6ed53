import type { Database } from "bun:sqlite";
import type { AliasRow } from "../block-index.ts";
import { DamagedIndex } from "./damaged.ts";
import type { NamespaceKeys } from "./namespace-keys.ts";
import { isSeal, sealOfAlias } from "./seal.ts";
import { Tally } from "./tally.ts";

const PAGE_ROWS = 4096;
const PAGE = `SELECT digest, layer, alias, namespace_id, seal FROM aliases
  WHERE (digest, layer, alias) > (?, ?, ?) ORDER BY digest, layer, alias LIMIT ${PAGE_ROWS}`;
type Scanned = [
  digest: Uint8Array,
  layer: number,
  alias: Uint8Array,
  namespaceId: number,
  seal: Uint8Array,
];

const NONE = new Uint8Array(0);

/**
 * The table of aliases, checked whole and then read again page by page. A wrong alias would lead
 * an engine to another prompt's bytes, so each row's seal is looked at both times. Throws
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
    throw new DamagedIndex("aliases are missing, or of an earlier day");
  }

  /** Null at the end. */
  next(): readonly AliasRow[] | null {
    const { digest, layer, alias } = this.#last ?? { digest: NONE, layer: 0, alias: NONE };
    const found = this.#db.query<Scanned, [Uint8Array, number, Uint8Array]>(PAGE);
    const rows = (found.values(digest, layer, alias) as Scanned[]).map((row) => this.#checked(row));
    if (rows.length === 0) return null;
    this.#last = rows.at(-1)!;
    return rows;
  }

  #checked([digest, layer, alias, namespaceId, stored]: Scanned): AliasRow {
    const namespaceKey = this.#keys.keyOf(namespaceId);
    const row = { digest, layer, alias };
    const seal = namespaceKey === undefined ? null : sealOfAlias(row, namespaceKey);
    if (namespaceKey === undefined || seal === null || !isSeal(stored, seal)) {
      throw new DamagedIndex("an alias is not as it was written");
    }
    this.#tally.add(seal);
    return { ...row, namespaceKey };
  }
}
