import type { Database } from "bun:sqlite";
import type { AliasRow } from "../block-index.ts";
import { DamagedIndex } from "./damaged.ts";
import type { NamespaceKeys } from "./namespace-keys.ts";
import { isSeal, type SealedAlias, sealOfAlias } from "./seal.ts";
import { Tally } from "./tally.ts";

const BATCH_ROWS = 4096;

interface StoredAlias extends SealedAlias {
  readonly namespaceId: number;
  readonly seal: Uint8Array;
}

const SCAN = `SELECT digest, layer, alias, namespace_id AS namespaceId, seal FROM aliases
  ORDER BY digest, layer, alias`;

/**
 * The aliases in batches. A wrong one would lead an engine to another prompt's bytes, so each is
 * checked where it is handed out, and at the end their tally. Throws DamagedIndex.
 */
export function* readAliases(
  db: Database,
  keys: NamespaceKeys,
  expected: Tally,
): Generator<readonly AliasRow[]> {
  const tally = new Tally();
  let batch: AliasRow[] = [];
  for (const row of db.query<StoredAlias, []>(SCAN).iterate()) {
    const { digest, layer, alias } = row;
    const namespaceKey = keys.keyOf(row.namespaceId);
    const seal = namespaceKey === undefined ? null : sealOfAlias(row, namespaceKey);
    if (namespaceKey === undefined || seal === null || !isSeal(row.seal, seal)) {
      throw new DamagedIndex("an alias is not as it was written");
    }
    tally.add(seal);
    batch.push({ namespaceKey, layer, digest, alias });
    if (batch.length < BATCH_ROWS) continue;
    yield batch;
    batch = [];
  }
  if (!tally.equals(expected)) throw new DamagedIndex("aliases are missing, or of an earlier day");
  if (batch.length > 0) yield batch;
}
