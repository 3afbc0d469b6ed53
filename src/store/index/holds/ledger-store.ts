import type { Database } from "bun:sqlite";
import { dirname } from "node:path";
import { crashPoint } from "../../../native/index.ts";
import type { CommitLedgerOrder, OpenLedgerOrder } from "../protocol.ts";
import { DamagedIndex } from "../store/damaged.ts";
import { mustBeOurs } from "../store/must-be-ours.ts";
import { openDatabase } from "../store/open-database.ts";
import { type OpenedStore, openLocked } from "../store/open-store.ts";
import { syncFolder } from "../store/sync-folder.ts";
import { Tally } from "../store/tally.ts";
import { RecordsApplier } from "./apply-records.ts";
import type { LedgerContents } from "./hold-ledger.ts";
import { type LedgerRecord, readLedgerRecord, writeLedgerRecord } from "./ledger-record.ts";
import { type LedgerRings, loadRows } from "./load-rows.ts";
import { LEDGER } from "./migrations.ts";
import { RecordReader, RecordWriter } from "./records.ts";

export const LEDGER_FILE = "holds.sqlite";

export function openLedgerStore(order: OpenLedgerOrder): OpenedStore<LedgerStore> {
  const open = (path: string) => new LedgerStore(path, order);
  return openLocked({ ...order, lock: "holds.lock", file: LEDGER_FILE, what: "the ledger", open });
}

/** An open ledger all of whose rows have been checked. Lives in the worker. */
export class LedgerStore {
  readonly lastSeen: LedgerContents["lastSeen"];
  readonly #path: string;
  readonly #db: Database;
  readonly #applier: RecordsApplier;
  #record: LedgerRecord;
  #rings: LedgerRings;
  #contents: RecordWriter | null = new RecordWriter();
  #isFolderSynced = false;

  /**
   * Throws DamagedIndex or what SQLite throws where the file cannot be used, HearthError
   * INDEX_FOREIGN where it is somebody else's.
   */
  constructor(path: string, { owner, incarnation, busyMs }: OpenLedgerOrder) {
    this.#path = path;
    this.#db = openDatabase(path, busyMs, LEDGER);
    try {
      const record = recordOf(this.#db, { owner, incarnation });
      mustBeOurs(path, record.owner, owner);
      this.lastSeen = record.lastSeen;
      this.#record = { ...record, incarnation };
      this.#rings = loadRows(this.#db, record.tallies, this.#contents!);
      this.#applier = new RecordsApplier(this.#db);
    } catch (thrown) {
      this.#db.close(true);
      throw thrown;
    }
  }

  get rows(): number {
    return this.#record.tallies.holds.count;
  }

  /** Every row as it was when the ledger was opened; once. */
  takeContents(): { readonly buffer: ArrayBuffer; readonly length: number } {
    const { buffer, length } = this.#contents ?? new RecordWriter();
    this.#contents = null;
    return { buffer, length };
  }

  /** All of it in one transaction, or nothing: throws what SQLite throws. */
  commit({ changes, length, lastSeen, durable }: CommitLedgerOrder): void {
    const { holds, commands, issuers } = this.#record.tallies;
    const tallies = { holds: holds.copy(), commands: commands.copy(), issuers: issuers.copy() };
    const record = { ...this.#record, lastSeen: lastSeen ?? this.#record.lastSeen, tallies };
    let rings = this.#rings;
    this.#db.run(`PRAGMA synchronous = ${durable ? "FULL" : "NORMAL"}`);
    try {
      this.#db.run("BEGIN IMMEDIATE");
      if (changes !== null) {
        rings = this.#applier.apply(new RecordReader(changes, length), tallies, rings);
      }
      crashPoint("ledger.rows-changed");
      writeLedgerRecord(this.#db, record);
      crashPoint("ledger.before-commit");
      this.#db.run("COMMIT");
      crashPoint("ledger.committed");
    } catch (thrown) {
      if (this.#db.inTransaction) this.#db.run("ROLLBACK");
      throw thrown;
    }
    [this.#record, this.#rings] = [record, rings];
    // The log keeps its name until it is closed.
    if (!durable || this.#isFolderSynced) return;
    syncFolder(dirname(this.#path));
    this.#isFolderSynced = true;
  }

  /** Writes the log back into the file. */
  close(): void {
    crashPoint("ledger.before-close");
    this.#db.close(true);
    crashPoint("ledger.closed");
  }
}

/** The record, made where the ledger is new. */
function recordOf(db: Database, made: Pick<LedgerRecord, "owner" | "incarnation">): LedgerRecord {
  const found = readLedgerRecord(db);
  if (found !== null) return found;
  const hasRows = db.query(
    `SELECT 1 FROM ledger UNION ALL SELECT 1 FROM holds UNION ALL SELECT 1 FROM parts
     UNION ALL SELECT 1 FROM commands LIMIT 1`,
  );
  if (hasRows.get() !== null) {
    throw new DamagedIndex("the record of the run that wrote it is missing or damaged");
  }
  const { owner, incarnation } = made;
  const tallies = { holds: new Tally(), commands: new Tally(), issuers: new Tally() };
  const record = { owner, incarnation, lastSeen: null, tallies };
  db.transaction(() => writeLedgerRecord(db, record)).immediate();
  return record;
}
