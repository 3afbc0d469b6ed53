import type { Database } from "bun:sqlite";
import { dirname } from "node:path";
import { crashPoint } from "../../../native/index.ts";
import type { AliasRow, BlockRows } from "../block-index.ts";
import { ChangeBatch } from "../change-batch.ts";
import type { IndexOwner, RunProgress } from "../protocol.ts";
import { AliasLoad } from "./alias-load.ts";
import { ChangeWriter } from "./apply-changes.ts";
import { BlockLoad } from "./block-load.ts";
import { DamagedIndex } from "./damaged.ts";
import { mustBeOurs } from "./must-be-ours.ts";
import { NamespaceKeys } from "./namespace-keys.ts";
import { openDatabase } from "./open-database.ts";
import { type RunRecord, readRunRecord, writeRunRecord } from "./run-record.ts";
import { syncFolder } from "./sync-folder.ts";
import { Tally } from "./tally.ts";

const FIRST: RunProgress = {
  incarnation: null,
  flushedSequence: 0,
  clean: false,
  complete: false,
};

/** An open index file all of whose rows have been checked. Lives in the worker. */
export class IndexStore {
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
   * Throws DamagedIndex or what SQLite throws where the file cannot be used, HearthError
   * INDEX_FOREIGN where it is somebody else's.
   */
  constructor(path: string, owner: IndexOwner, busyMs: number) {
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

  /** The rows as they were when the index was opened, in parts; null at the end. */
  nextBlocks(): BlockRows | null {
    const rows = this.#load?.next() ?? null;
    if (rows === null) this.#load = null;
    return rows;
  }

  nextAliases(): readonly AliasRow[] | null {
    const rows = this.#aliasLoad?.next() ?? null;
    if (rows === null) this.#aliasLoad = null;
    return rows;
  }

  /** All of it in one transaction, or nothing: throws what SQLite throws. */
  commit(
    changes: ArrayBuffer | null,
    count: number,
    progress: RunProgress,
    durable: boolean,
  ): void {
    // Recovery is over: what nobody has asked for is not kept.
    if (progress.incarnation !== this.previous.incarnation) this.#endLoads();
    const [blocks, aliases] = [this.#blocks.copy(), this.#aliases.copy()];
    if (durable) this.#db.run("PRAGMA synchronous = FULL");
    try {
      this.#db.run("BEGIN IMMEDIATE");
      if (changes !== null) this.#writer.apply(new ChangeBatch(changes), count, blocks, aliases);
      crashPoint("index.rows-changed");
      writeRunRecord(this.#db, { owner: this.#owner, progress, blocks, aliases });
      crashPoint("index.before-commit");
      this.#db.run("COMMIT");
      crashPoint("index.committed");
    } catch (thrown) {
      if (this.#db.inTransaction) this.#db.run("ROLLBACK");
      this.#keys.undo();
      throw thrown;
    } finally {
      if (durable) this.#db.run("PRAGMA synchronous = NORMAL");
    }
    this.#keys.settle();
    [this.#blocks, this.#aliases] = [blocks, aliases];
    if (durable) syncFolder(dirname(this.#path));
  }

  /** Writes the log back into the file. */
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

/** The record, made where the index is new. */
function recordOf(db: Database, owner: IndexOwner): RunRecord {
  const isNew = db.query("SELECT 1 FROM run LIMIT 1").get() === null;
  if (isNew) {
    if (db.query("SELECT 1 FROM blocks LIMIT 1").get() !== null) {
      throw new DamagedIndex("the record of the run that wrote it is missing");
    }
    const record = { owner, progress: FIRST, blocks: new Tally(), aliases: new Tally() };
    db.transaction(() => writeRunRecord(db, record)).immediate();
    return record;
  }
  const record = readRunRecord(db);
  if (record !== null) return record;
  throw new DamagedIndex("the record of the run that wrote it is not as it was written");
}

function checkOwner(path: string, record: RunRecord, wanted: IndexOwner): void {
  const { owner, progress, blocks } = record;
  mustBeOurs(path, owner, wanted);
  if (owner.store !== wanted.store) throw new DamagedIndex("it speaks of another SSD folder");
  if (progress.complete || (progress.incarnation === null && blocks.count === 0)) return;
  throw new DamagedIndex("rows are missing: the run that made it ended before it knew all blocks");
}
