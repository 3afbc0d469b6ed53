import type { Database } from "bun:sqlite";
import { constants, copyFileSync, existsSync, lstatSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { assert, HearthError } from "../../core/index.ts";
import type { IndexedBlock, IndexedBlocks } from "../kvb/index.ts";
import { BATCH_ROWS, CHANGE, ChangeBatch } from "./change-log.ts";
import type { IndexOwner } from "./index-worker-client.ts";
import { BUSY_MS } from "./sqlite-writer.ts";
import { IndexStore, NamespaceKeys, readRunRecord } from "./store/index-store.ts";
import { AliasLoad, BlockLoad } from "./store/load-rows.ts";
import { DamagedIndex, isAboutFile, openDatabase, sqliteMessage } from "./store/open-database.ts";
import { lockFolder } from "./store/open-store.ts";
import { u64Of } from "./store/seal.ts";

/** Result of inspecting an index while no agent uses it, for tools. */
export type IndexInspection =
  | { readonly kind: "none" }
  | { readonly kind: "damaged"; readonly why: string }
  | { readonly kind: "sound"; readonly index: InspectedIndex };

/**
 * Inspects the index of a folder without changing the folder. Reads a copy in a temporary folder,
 * because even a read makes SQLite write its log back.
 */
export function inspectIndex(folder: string): IndexInspection {
  const path = join(folder, IndexStore.file);
  if (!existsSync(path)) return { kind: "none" };
  if (!lstatSync(path).isFile()) return { kind: "damaged", why: "is not a file" };
  const copies = mkdtempSync(join(tmpdir(), "hearth-fsck-"));
  try {
    for (const companion of ["", "-wal"]) {
      if (!existsSync(path + companion)) continue;
      copyFileSync(
        path + companion,
        join(copies, IndexStore.file + companion),
        constants.COPYFILE_FICLONE,
      );
    }
    return { kind: "sound", index: new InspectedIndex(folder, copies) };
  } catch (thrown) {
    rmSync(copies, { recursive: true, force: true });
    if (!isAboutFile(thrown)) throw thrown;
    return {
      kind: "damaged",
      why: thrown instanceof DamagedIndex ? thrown.message : sqliteMessage(thrown),
    };
  }
}

interface Row {
  readonly rowId: number;
  readonly digest: Uint8Array;
  readonly layer: number;
  readonly namespaceId: number;
  readonly parent: Uint8Array | null;
  readonly bytes: number;
  readonly checksum: Uint8Array;
  readonly variant: number;
}

const COLUMNS = `id AS rowId, digest, layer, namespace_id AS namespaceId, parent, bytes, checksum,
  variant`;
const FIND = `SELECT ${COLUMNS} FROM blocks WHERE digest = ? AND layer = ?`;
const ALL = `SELECT ${COLUMNS} FROM blocks ORDER BY id`;
const NAME = "SELECT digest, layer FROM blocks WHERE id = ?";

/** A copy of an index in which every row was verified. */
export class InspectedIndex implements IndexedBlocks, Disposable {
  readonly #folder: string;
  readonly #copies: string;
  readonly #db: Database;
  readonly #keys: NamespaceKeys;
  readonly #owner: IndexOwner;

  /** Opens and verifies the copy. Throws DamagedIndex or the error of SQLite. */
  constructor(folder: string, copies: string) {
    this.#folder = folder;
    this.#copies = copies;
    this.#db = openDatabase(join(copies, IndexStore.file), BUSY_MS);
    try {
      const record = readRunRecord(this.#db);
      if (record === null)
        throw new DamagedIndex("the record of its last run is missing or damaged");
      const { incarnation, complete } = record.progress;
      if (!complete && (incarnation !== null || record.blocks.count > 0)) {
        throw new DamagedIndex("its last run ended before recovery was complete");
      }
      this.#owner = record.owner;
      this.#keys = new NamespaceKeys(this.#db);
      // Loading a table verifies all its rows.
      new BlockLoad(this.#db, this.#keys, record.blocks);
      new AliasLoad(this.#db, this.#keys, record.aliases);
    } catch (thrown) {
      this.#db.close(true);
      throw thrown;
    }
  }

  find(digest: Uint8Array, layer: number): IndexedBlock | null {
    const row = this.#db.query<Row, [Uint8Array, number]>(FIND).get(digest, layer);
    return row === null ? null : this.#block(row);
  }

  *all(): Generator<IndexedBlock> {
    for (const row of this.#db.query<Row, []>(ALL).iterate()) yield this.#block(row);
  }

  #block({ namespaceId, checksum, ...row }: Row): IndexedBlock {
    const namespaceKey = this.#keys.keyOf(namespaceId);
    const sum = u64Of(checksum);
    assert(
      namespaceKey !== undefined && sum !== null,
      "a verified row has a namespace and a checksum",
    );
    return { ...row, namespaceKey, checksum: sum };
  }

  /** Removes rows and their aliases from the original index. The record of the last run stays. */
  drop(rowIds: readonly number[]): void {
    if (rowIds.length === 0) return;
    using lock = lockFolder(this.#folder);
    if (lock === null) {
      throw new HearthError("INDEX_IN_USE", `an agent uses the index in ${this.#folder}`, {
        fix: "stop it first",
      });
    }
    const store = new IndexStore(join(this.#folder, IndexStore.file), {
      owner: this.#owner,
      busyMs: BUSY_MS,
    });
    try {
      for (let from = 0; from < rowIds.length; from += BATCH_ROWS) {
        const ids = rowIds.slice(from, from + BATCH_ROWS);
        const columns = this.#removals(ids);
        store.commit({ columns, count: ids.length, progress: store.previous }, true);
      }
    } finally {
      store.close();
    }
  }

  #removals(rowIds: readonly number[]): ArrayBuffer {
    const batch = new ChangeBatch();
    for (const [at, rowId] of rowIds.entries()) {
      const row = this.#db.query<Pick<Row, "digest" | "layer">, [number]>(NAME).get(rowId);
      assert(row !== null, "a found row exists");
      batch.kinds[at] = CHANGE.remove;
      batch.layers[at] = row.layer;
      batch.digests.set(row.digest, at * 32);
    }
    return batch.buffer;
  }

  [Symbol.dispose](): void {
    this.#db.close(true);
    rmSync(this.#copies, { recursive: true, force: true });
  }
}
