import type { Database } from "bun:sqlite";
import { dirname } from "node:path";
import { eq } from "drizzle-orm";
import { drizzle } from "drizzle-orm/bun-sqlite";
import { blob, integer, sqliteTable, text } from "drizzle-orm/sqlite-core";
import { assert } from "../../../core/index.ts";
import { crashPoint } from "../../../native/index.ts";
import type { AliasRow, BlockRows } from "../block-index.ts";
import { CHANGE, ChangeBatch, key32 } from "../change-log.ts";
import type { IndexChanges, IndexOwner, OpenOrder, RunProgress } from "../index-worker-client.ts";
import { AliasLoad, BlockLoad } from "./load-rows.ts";
import {
  DamagedIndex,
  openDatabase,
  requireOwner,
  Statements,
  syncFolder,
} from "./open-database.ts";
import {
  isSeal,
  type SealedBlock,
  sealOfAlias,
  sealOfBlock,
  sealOfColumns,
  storedSeal,
  Tally,
  u64Bytes,
  u64Of,
} from "./seal.ts";

/**
 * The tables that are read through drizzle. `migrations/` creates them, and a test compares both.
 * Values of 64 bits or more are stored as BLOBs (numbers in little-endian).
 */

const bytes = (name: string) => blob(name, { mode: "buffer" });

/**
 * Table that assigns a small number to each namespace key, so that rows do not repeat the 32 bytes.
 */
export const namespaces = sqliteTable("namespaces", {
  id: integer("id").primaryKey(),
  key: bytes("key").notNull(),
  /** Null if the namespace has no MAC key, or no block was stored with a MAC. */
  macKeyId: bytes("mac_key_id"),
});

/**
 * Table with one row: the owner of the index, the run of the agent that last wrote it, and the
 * tallies of the other tables.
 */
export const run = sqliteTable("run", {
  id: integer("id").primaryKey(),
  worker: text("worker").notNull(),
  machine: text("machine").notNull(),
  store: text("store").notNull(),
  incarnation: bytes("incarnation"),
  flushedSequence: integer("flushed_sequence").notNull(),
  clean: integer("clean", { mode: "boolean" }).notNull(),
  complete: integer("complete", { mode: "boolean" }).notNull(),
  blockCount: integer("block_count").notNull(),
  blockSum: bytes("block_sum").notNull(),
  aliasCount: integer("alias_count").notNull(),
  aliasSum: bytes("alias_sum").notNull(),
  seal: bytes("seal").notNull(),
});

/** Progress recorded in an index that no run has used yet. */
export const FIRST_RUN: RunProgress = {
  incarnation: null,
  flushedSequence: 0,
  clean: false,
  complete: false,
};

/**
 * An open block index in which every row was verified. Used by the worker thread.
 *
 * The key of a row is digest and layer instead of the BlockKey, which is their hash. The digest is
 * needed anyway, and the BlockKey would add 32 bytes per row. Rows are stored in the order of
 * insertion, so that the blocks of a prompt are adjacent and updated together (measured: four times
 * the rate of a table clustered by digest).
 */
export class IndexStore {
  static readonly file = "hearth.sqlite";
  static readonly lock = "hearth.lock";
  static readonly what = "the index";
  readonly previous: RunProgress;
  readonly #path: string;
  readonly #db: Database;
  readonly #owner: IndexOwner;
  readonly #keys: NamespaceKeys;
  readonly #writer: ChangeWriter;
  #blocks: Tally;
  #aliases: Tally;
  #load: BlockLoad | null;
  #aliasLoad: AliasLoad | null;

  /**
   * Opens and verifies the index. Throws DamagedIndex or the error of SQLite if the file cannot be
   * used, INDEX_FOREIGN if it has another owner.
   */
  constructor(path: string, { owner, busyMs }: Pick<OpenOrder, "owner" | "busyMs">) {
    this.#path = path;
    this.#owner = owner;
    this.#db = openDatabase(path, busyMs);
    try {
      const record = recordOf(this.#db, owner);
      checkOwner(path, record, owner);
      this.previous = record.progress;
      this.#blocks = record.blocks;
      this.#aliases = record.aliases;
      this.#keys = new NamespaceKeys(this.#db);
      this.#load = new BlockLoad(this.#db, this.#keys, record.blocks);
      this.#aliasLoad = new AliasLoad(this.#db, this.#keys, record.aliases);
      this.#writer = new ChangeWriter(this.#db, this.#keys);
    } catch (thrown) {
      this.#db.close(true);
      throw thrown;
    }
  }

  get rows(): number {
    return this.#blocks.count;
  }

  /** Returns the next rows of a table as they were when the index was opened; null at the end. */
  next(table: "blocks" | "aliases"): BlockRows | readonly AliasRow[] | null {
    return (table === "blocks" ? this.#load : this.#aliasLoad)?.next() ?? null;
  }

  /** Writes all changes in one transaction. Throws the error of SQLite; then nothing is written. */
  commit({ columns, count, progress }: IndexChanges, durable: boolean): void {
    // The first commit of this run ends recovery: drop loaded rows that were not requested.
    if (progress.incarnation !== this.previous.incarnation) this.#endLoads();
    const [blocks, aliases] = [this.#blocks.copy(), this.#aliases.copy()];
    if (durable) this.#db.run("PRAGMA synchronous = FULL");
    try {
      const write = this.#db.transaction(() => {
        if (columns !== null) this.#writer.apply(new ChangeBatch(columns), count, blocks, aliases);
        crashPoint("index.rows-changed");
        writeRunRecord(this.#db, { owner: this.#owner, progress, blocks, aliases });
        crashPoint("index.before-commit");
      });
      write.immediate();
      crashPoint("index.committed");
    } catch (thrown) {
      this.#keys.isStale = true;
      throw thrown;
    } finally {
      if (durable) this.#db.run("PRAGMA synchronous = NORMAL");
    }
    [this.#blocks, this.#aliases] = [blocks, aliases];
    if (durable) syncFolder(dirname(this.#path));
  }

  /** Writes SQLite's log back into the file and closes the file. */
  close(): void {
    this.#endLoads();
    crashPoint("index.before-close");
    this.#db.close(true);
    crashPoint("index.closed");
  }

  #endLoads(): void {
    this.#load = null;
    this.#aliasLoad = null;
  }
}

/** Returns the row of the table `run`. Creates it if the index is new. */
function recordOf(db: Database, owner: IndexOwner): RunRecord {
  const isNew = db.query("SELECT 1 FROM run LIMIT 1").get() === null;
  if (isNew) {
    if (db.query("SELECT 1 FROM blocks LIMIT 1").get() !== null) {
      throw new DamagedIndex("the record of its last run is missing");
    }
    const record = { owner, progress: FIRST_RUN, blocks: new Tally(), aliases: new Tally() };
    db.transaction(() => writeRunRecord(db, record)).immediate();
    return record;
  }
  const record = readRunRecord(db);
  if (record !== null) return record;
  throw new DamagedIndex("the record of its last run is damaged");
}

function checkOwner(path: string, record: RunRecord, wanted: IndexOwner): void {
  const { owner, progress, blocks } = record;
  requireOwner(path, owner, wanted);
  if (owner.store !== wanted.store) throw new DamagedIndex("index of another SSD folder");
  if (progress.complete || (progress.incarnation === null && blocks.count === 0)) return;
  throw new DamagedIndex("rows are missing: its last run ended before recovery was complete");
}

/** The single row of the table `run`. */
interface RunRecord {
  readonly owner: IndexOwner;
  readonly progress: RunProgress;
  readonly blocks: Tally;
  readonly aliases: Tally;
}

const ROW_ID = 1;

type Columns = Omit<typeof run.$inferInsert, "seal">;

function columnsOf({ owner, progress, blocks, aliases }: RunRecord): Columns {
  const { incarnation } = progress;
  return {
    id: ROW_ID,
    worker: owner.worker,
    machine: owner.machine,
    store: owner.store,
    incarnation: incarnation === null ? null : Buffer.from(u64Bytes(incarnation)),
    flushedSequence: progress.flushedSequence,
    clean: progress.clean,
    complete: progress.complete,
    blockCount: blocks.count,
    blockSum: Buffer.from(u64Bytes(blocks.sum)),
    aliasCount: aliases.count,
    aliasSum: Buffer.from(u64Bytes(aliases.sum)),
  };
}

/** Reads the row of the table `run`. Returns null if it is missing or damaged. */
export function readRunRecord(db: Database): RunRecord | null {
  const row = drizzle(db).select().from(run).where(eq(run.id, ROW_ID)).get();
  if (row === undefined) return null;
  const { blockSum, aliasSum, incarnation } = row;
  const sums = [u64Of(blockSum), u64Of(aliasSum)] as const;
  const number = incarnation === null ? null : u64Of(incarnation);
  if (sums[0] === null || sums[1] === null) return null;
  if (number === null && incarnation !== null) return null;
  const { worker, machine, store, flushedSequence, clean, complete } = row;
  const record: RunRecord = {
    owner: { worker, machine, store },
    progress: { incarnation: number, flushedSequence, clean, complete },
    blocks: new Tally(row.blockCount, sums[0]),
    aliases: new Tally(row.aliasCount, sums[1]),
  };
  return sealOfColumns(columnsOf(record)).equals(row.seal) ? record : null;
}

function writeRunRecord(db: Database, record: RunRecord): void {
  const columns = columnsOf(record);
  const values = { ...columns, seal: sealOfColumns(columns) };
  drizzle(db).insert(run).values(values).onConflictDoUpdate({ target: run.id, set: values }).run();
}

const MAC_KEY_ID_BYTES = 16;

/** In-memory copy of the table of namespaces, which has few rows and is read once. */
export class NamespaceKeys {
  readonly #db: Database;
  readonly #keys = new Map<number, Uint8Array>();
  readonly #ids = new Map<string, number>();
  readonly #macKeyIds = new Map<number, Uint8Array>();
  #nextId = 1;
  /**
   * True after a rollback that may have undone changes of the table: call `read` before the next
   * change.
   */
  isStale = false;

  constructor(db: Database) {
    this.#db = db;
    this.read();
  }

  read(): void {
    for (const map of [this.#keys, this.#ids, this.#macKeyIds]) map.clear();
    for (const { id, key, macKeyId } of drizzle(this.#db).select().from(namespaces).all()) {
      this.#enter(id, key);
      if (macKeyId === null) continue;
      if (macKeyId.length !== MAC_KEY_ID_BYTES) {
        throw new DamagedIndex("MAC key identifier of invalid length");
      }
      this.#macKeyIds.set(id, Uint8Array.from(macKeyId));
    }
    this.isStale = false;
  }

  /** Returns the identifier of the namespace's MAC key; null if none is known. */
  macKeyIdOf(id: number): Uint8Array | null {
    return this.#macKeyIds.get(id) ?? null;
  }

  setMacKeyId(id: number, macKeyId: Uint8Array): void {
    const known = this.macKeyIdOf(id);
    if (known !== null && Buffer.compare(known, macKeyId) === 0) return;
    this.#db.query("UPDATE namespaces SET mac_key_id = ? WHERE id = ?").run(macKeyId, id);
    this.#macKeyIds.set(id, macKeyId.slice());
  }

  /**
   * Returns the key of a namespace. Undefined if the table has no such row, which means that the
   * index is damaged.
   */
  keyOf(id: number): Uint8Array | undefined {
    return this.#keys.get(id);
  }

  /** Returns the id of a namespace key. Adds a row to the table if it has none. */
  idOf(key: Uint8Array): number {
    assert(key.length === 32, "a namespace key of 32 bytes");
    const known = this.#ids.get(nameOf(key));
    if (known !== undefined) return known;
    const id = this.#nextId;
    this.#db.query("INSERT INTO namespaces (id, key) VALUES (?, ?)").run(id, key);
    this.#enter(id, key.slice());
    return id;
  }

  #enter(id: number, key: Uint8Array): void {
    this.#keys.set(id, key);
    this.#ids.set(nameOf(key), id);
    this.#nextId = Math.max(this.#nextId, id + 1);
  }
}

function nameOf(key: Uint8Array): string {
  return Buffer.from(key.buffer, key.byteOffset, key.byteLength).toString("latin1");
}

interface Sealed {
  readonly seal: Uint8Array;
}

interface FoundBlock extends Sealed {
  readonly id: number;
}

interface WholeBlock extends FoundBlock, Omit<SealedBlock, "digest" | "layer"> {
  readonly namespaceId: number;
}

const FIND = "SELECT id, seal FROM blocks WHERE digest = ? AND layer = ?";
const FIND_WHOLE = `SELECT id, seal, namespace_id AS namespaceId, parent, bytes, checksum, variant,
  last_seen AS lastSeen, uses FROM blocks WHERE digest = ? AND layer = ?`;
const INSERT = `INSERT INTO blocks (digest, layer, namespace_id, parent, bytes, checksum, variant,
  last_seen, uses, seal) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`;
const REPLACE = `UPDATE blocks SET namespace_id = ?, parent = ?, bytes = ?, checksum = ?,
  variant = ?, last_seen = ?, uses = ?, seal = ? WHERE id = ?`;
const TOUCH = "UPDATE blocks SET last_seen = ?, uses = ?, seal = ? WHERE id = ?";
const DELETE = "DELETE FROM blocks WHERE id = ?";
const FIND_ALIASES = "SELECT seal FROM aliases WHERE digest = ? AND layer = ?";
const DELETE_ALIASES = "DELETE FROM aliases WHERE digest = ? AND layer = ?";
const FIND_ALIAS = "SELECT seal FROM aliases WHERE digest = ? AND layer = ? AND alias = ?";
const INSERT_ALIAS = `INSERT INTO aliases (digest, layer, alias, namespace_id, seal)
  VALUES (?, ?, ?, ?, ?)`;

const isZero = (bytes: Uint8Array): boolean => bytes.every((byte) => byte === 0);

/** Writes changes to the tables and updates their tallies, within the caller's transaction. */
class ChangeWriter {
  readonly #sql: Statements;
  readonly #keys: NamespaceKeys;

  constructor(db: Database, keys: NamespaceKeys) {
    this.#sql = new Statements(db);
    this.#keys = keys;
  }

  /**
   * Writes the first `count` changes of the batch. Throws the error of SQLite; the caller must then
   * restore the tallies and the namespaces.
   */
  apply(batch: ChangeBatch, count: number, blocks: Tally, aliases: Tally): void {
    if (this.#keys.isStale) this.#keys.read();
    const checksums = new Uint8Array(batch.checksums.buffer, batch.checksums.byteOffset);
    for (let row = 0; row < count; row++) {
      const digest = key32(batch.digests, row);
      const layer = batch.layers[row];
      switch (batch.kinds[row]) {
        case CHANGE.put: {
          const checksum = checksums.subarray(row * 8, row * 8 + 8);
          this.#put(batch, row, { digest, layer, checksum }, blocks);
          break;
        }
        case CHANGE.remove:
          this.#remove(digest, layer, blocks, aliases);
          break;
        case CHANGE.touch:
          this.#touch(digest, layer, batch.lastSeen[row], batch.uses[row], blocks);
          break;
        default:
          this.#alias(batch, row, aliases);
      }
      crashPoint("index.row-changed");
    }
  }

  #put(
    batch: ChangeBatch,
    row: number,
    named: Pick<SealedBlock, "digest" | "layer" | "checksum">,
    blocks: Tally,
  ): void {
    const namespaceKey = key32(batch.namespaceKeys, row);
    const namespaceId = this.#keys.idOf(namespaceKey);
    const macKeyId = batch.macKeyIds.subarray(row * 16, row * 16 + 16);
    if (!isZero(macKeyId)) this.#keys.setMacKeyId(namespaceId, macKeyId);
    const link = key32(batch.links, row);
    const parent = isZero(link) ? null : link;
    const { digest, layer, checksum } = named;
    const [bytes, variant] = [batch.bytes[row], batch.smalls[row]];
    const [lastSeen, uses] = [batch.lastSeen[row], batch.uses[row]];
    const block = { ...named, parent, bytes, variant, lastSeen, uses };
    const seal = checkedSeal(sealOfBlock(block, namespaceKey));
    const sealBytes = u64Bytes(seal);
    const found = this.#sql.get<FoundBlock>(FIND, digest, layer);
    const values = [namespaceId, parent, bytes, checksum, variant, lastSeen, uses, sealBytes];
    if (found === null) this.#sql.run(INSERT, digest, layer, ...values);
    else {
      this.#sql.run(REPLACE, ...values, found.id);
      blocks.remove(storedSeal(found.seal));
    }
    blocks.add(seal);
  }

  #remove(digest: Uint8Array, layer: number, blocks: Tally, aliases: Tally): void {
    const found = this.#sql.get<FoundBlock>(FIND, digest, layer);
    if (found === null) return;
    this.#sql.run(DELETE, found.id);
    blocks.remove(storedSeal(found.seal));
    const aliasesOfBlock = this.#sql.all<Sealed>(FIND_ALIASES, digest, layer);
    if (aliasesOfBlock.length === 0) return;
    this.#sql.run(DELETE_ALIASES, digest, layer);
    for (const { seal } of aliasesOfBlock) aliases.remove(storedSeal(seal));
  }

  #touch(digest: Uint8Array, layer: number, lastSeen: number, uses: number, blocks: Tally): void {
    const found = this.#sql.get<WholeBlock>(FIND_WHOLE, digest, layer);
    if (found === null) return;
    const namespaceKey = this.#keys.keyOf(found.namespaceId);
    assert(namespaceKey !== undefined, "a block's namespace has a row");
    // Verify the row before it gets a new seal, so that damage since the last read is not sealed as
    // correct.
    const before = { ...found, digest, layer };
    const sealBefore = checkedSeal(sealOfBlock(before, namespaceKey));
    if (!isSeal(found.seal, sealBefore)) {
      throw new DamagedIndex("damaged block row");
    }
    const seal = checkedSeal(sealOfBlock({ ...before, lastSeen, uses }, namespaceKey));
    this.#sql.run(TOUCH, lastSeen, uses, u64Bytes(seal), found.id);
    blocks.remove(sealBefore);
    blocks.add(seal);
  }

  /** Writes an alias. Ignores it if its block has no row. */
  #alias(batch: ChangeBatch, row: number, aliases: Tally): void {
    const digest = key32(batch.digests, row);
    const layer = batch.layers[row];
    const alias = key32(batch.links, row).subarray(0, batch.smalls[row]);
    if (this.#sql.get<FoundBlock>(FIND, digest, layer) === null) return;
    if (this.#sql.get<Sealed>(FIND_ALIAS, digest, layer, alias) !== null) return;
    const namespaceKey = key32(batch.namespaceKeys, row);
    const seal = checkedSeal(sealOfAlias({ digest, layer, alias }, namespaceKey));
    const namespaceId = this.#keys.idOf(namespaceKey);
    this.#sql.run(INSERT_ALIAS, digest, layer, alias, namespaceId, u64Bytes(seal));
    aliases.add(seal);
  }
}

function checkedSeal(seal: bigint | null): bigint {
  assert(seal !== null, "a row can be sealed");
  return seal;
}
