import type { Database } from "bun:sqlite";
import { dirname } from "node:path";
import { eq } from "drizzle-orm";
import { drizzle } from "drizzle-orm/bun-sqlite";
import { blob, integer, real, sqliteTable, text } from "drizzle-orm/sqlite-core";
import { assert } from "../../../core/index.ts";
import { crashPoint } from "../../../native/index.ts";
import type { LedgerChanges, OpenOrder } from "../index-worker-client.ts";
import {
  DamagedIndex,
  type DatabaseKind,
  type Owner,
  openDatabase,
  requireOwner,
  Statements,
  syncFolder,
} from "../store/open-database.ts";
import { isSeal, sealOfColumns, storedSeal, Tally, u64Bytes, u64Of } from "../store/seal.ts";
import holds from "./migrations/0000-holds.sql" with { type: "text" };
import parts from "./migrations/0001-parts.sql" with { type: "text" };
import issuerOrder from "./migrations/0002-issuer-order.sql" with { type: "text" };
import leaseGrants from "./migrations/0003-lease-grants.sql" with { type: "text" };
import type {
  CommandRow,
  IssuerRow,
  LedgerChange,
  LedgerContents,
  PartRow,
  RetentionRow,
} from "./retention-ledger.ts";
import { sealOfCommand, sealOfHold, sealOfIssuer, sealOfPart } from "./row-seals.ts";

const bytes = (name: string) => blob(name, { mode: "buffer" });

/**
 * Table with one row: the owner of the ledger, the time of the last write, and the tallies of the
 * other tables. `migrations/` creates the table, and a test compares both. 64-bit numbers are
 * BLOBs, little-endian.
 */
export const ledger = sqliteTable("ledger", {
  id: integer("id").primaryKey(),
  worker: text("worker").notNull(),
  machine: text("machine").notNull(),
  incarnation: bytes("incarnation").notNull(),
  bootId: text("boot_id"),
  bootMs: real("boot_ms"),
  holdCount: integer("hold_count").notNull(),
  holdSum: bytes("hold_sum").notNull(),
  commandCount: integer("command_count").notNull(),
  commandSum: bytes("command_sum").notNull(),
  issuerCount: integer("issuer_count").notNull(),
  issuerSum: bytes("issuer_sum").notNull(),
  seal: bytes("seal").notNull(),
});

/** Number of rows in one page of the ledger's contents. */
const PAGE_ROWS = 1_000;

/** An open retention ledger in which every row was verified. Used by the worker thread. */
export class LedgerStore {
  static readonly file = "holds.sqlite";
  static readonly lock = "holds.lock";
  static readonly what = "the ledger";
  readonly lastSeen: LedgerContents["lastSeen"];
  readonly #path: string;
  readonly #db: Database;
  readonly #applier: ChangeApplier;
  #record: LedgerRecord;
  #rings: LedgerRings;
  /**
   * `#contents`: the rows as they were when the ledger was opened. `#read`: number of rows already
   * returned by `next`.
   */
  #contents: LedgerChange[] = [];
  #read = 0;
  #isFolderSynced = false;

  /**
   * Opens and verifies the ledger. Throws DamagedIndex or the error of SQLite if the file cannot be
   * used, INDEX_FOREIGN if it has another owner.
   */
  constructor(path: string, { owner, incarnation, busyMs }: OpenOrder) {
    this.#path = path;
    this.#db = openDatabase(path, busyMs, LEDGER);
    try {
      const record = recordOf(this.#db, { owner, incarnation });
      requireOwner(path, record.owner, owner);
      this.lastSeen = record.lastSeen;
      this.#record = { ...record, incarnation };
      this.#rings = loadRows(this.#db, record.tallies, this.#contents);
      this.#applier = new ChangeApplier(this.#db);
    } catch (thrown) {
      this.#db.close(true);
      throw thrown;
    }
  }

  get rows(): number {
    return this.#record.tallies.holds.count;
  }

  /** Returns the next rows as they were when the ledger was opened; null at the end. */
  next(): readonly LedgerChange[] | null {
    const page = this.#contents.slice(this.#read, this.#read + PAGE_ROWS);
    this.#read += page.length;
    if (page.length > 0) return page;
    this.#contents = [];
    return null;
  }

  /** Writes all changes in one transaction. Throws the error of SQLite; then nothing is written. */
  commit({ rows, lastSeen }: LedgerChanges, durable: boolean): void {
    const { holds, commands, issuers } = this.#record.tallies;
    const tallies = { holds: holds.copy(), commands: commands.copy(), issuers: issuers.copy() };
    const record = { ...this.#record, lastSeen: lastSeen ?? this.#record.lastSeen, tallies };
    let rings = this.#rings;
    this.#db.run(`PRAGMA synchronous = ${durable ? "FULL" : "NORMAL"}`);
    const write = this.#db.transaction(() => {
      rings = this.#applier.apply(rows, tallies, rings);
      crashPoint("ledger.rows-changed");
      writeLedgerRecord(this.#db, record);
      crashPoint("ledger.before-commit");
    });
    write.immediate();
    crashPoint("ledger.committed");
    [this.#record, this.#rings] = [record, rings];
    // One sync is enough: the directory entry of SQLite's log does not change until the log is
    // closed.
    if (!durable || this.#isFolderSynced) return;
    syncFolder(dirname(this.#path));
    this.#isFolderSynced = true;
  }

  /** Writes SQLite's log back into the file and closes the file. */
  close(): void {
    crashPoint("ledger.before-close");
    this.#db.close(true);
    crashPoint("ledger.closed");
  }
}

/** Returns the row of the table `ledger`. Creates it if the ledger is new. */
function recordOf(db: Database, made: Pick<LedgerRecord, "owner" | "incarnation">): LedgerRecord {
  const found = readLedgerRecord(db);
  if (found !== null) return found;
  const hasRows = db.query(
    `SELECT 1 FROM ledger UNION ALL SELECT 1 FROM holds UNION ALL SELECT 1 FROM parts
     UNION ALL SELECT 1 FROM commands LIMIT 1`,
  );
  if (hasRows.get() !== null) {
    throw new DamagedIndex("the record of its last run is missing or damaged");
  }
  const { owner, incarnation } = made;
  const tallies = { holds: new Tally(), commands: new Tally(), issuers: new Tally() };
  const record = { owner, incarnation, lastSeen: null, tallies };
  db.transaction(() => writeLedgerRecord(db, record)).immediate();
  return record;
}

/**
 * Maximum number of commands, and of bytes of their receipts. Above it the oldest commands are
 * removed.
 */
const COMMANDS_MAX = 65_536;
const RECEIPT_BYTES_MAX = 64 * 2 ** 20;
/** Maximum number of issuers. Above it the issuer that was written longest ago is removed. */
const ISSUERS_MAX = 4_096;

const FIND_HOLD = "SELECT seal FROM holds WHERE id = ?";
const PUT_HOLD = "INSERT OR REPLACE INTO holds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
const DELETE_HOLD = "DELETE FROM holds WHERE id = ?";
const FIND_PART = "SELECT id, seal FROM parts WHERE hold = ? AND part = ?";
const FIND_PARTS = "SELECT id, seal FROM parts WHERE hold = ?";
const PUT_PART = "INSERT OR REPLACE INTO parts VALUES (?, ?, ?, ?, ?)";
const DELETE_PART = "DELETE FROM parts WHERE id = ?";
const PUT_COMMAND = "INSERT INTO commands VALUES (?, ?, ?, ?, ?)";
const OLDEST = `SELECT id, octet_length(receipt) AS bytes, seal FROM commands
  ORDER BY id LIMIT 1`;
const DELETE_COMMAND = "DELETE FROM commands WHERE id = ?";
const FIND_ISSUER = "SELECT seal FROM issuers WHERE issuer = ?";
const PUT_ISSUER = "INSERT OR REPLACE INTO issuers VALUES (?, ?, ?, ?, ?)";
const OLDEST_ISSUER = "SELECT issuer, seal FROM issuers ORDER BY used, issuer LIMIT 1";
const DELETE_ISSUER = "DELETE FROM issuers WHERE issuer = ?";

interface Found {
  readonly seal: Uint8Array;
}
interface FoundPart extends Found {
  readonly id: number;
}
interface FoundCommand extends FoundPart {
  readonly bytes: number;
}
interface FoundIssuer extends Found {
  readonly issuer: string;
}
/** Writes changes to the tables and updates their tallies, within the caller's transaction. */
class ChangeApplier {
  readonly #sql: Statements;

  constructor(db: Database) {
    this.#sql = new Statements(db);
  }

  /**
   * Writes the changes. Throws the error of SQLite; the caller must then restore the tallies and
   * the positions (`rings`).
   */
  apply(changes: readonly LedgerChange[], tallies: LedgerTallies, rings: LedgerRings): LedgerRings {
    let { nextId, receiptBytes, nextUse } = rings;
    for (const change of changes) {
      switch (change.kind) {
        case "hold":
          this.#putHold(change.row, tallies);
          break;
        case "part":
          this.#putPart(change.row, tallies);
          break;
        case "removeHold":
          this.#removeHold(change.id, tallies);
          break;
        case "issuer":
          this.#putIssuer(change.row, nextUse++, tallies);
          break;
        case "removeIssuer":
          this.#removeIssuer(change.issuer, tallies);
          break;
        case "command":
          receiptBytes += this.#putCommand(change.row, nextId++, tallies);
          receiptBytes -= this.#forget(receiptBytes, tallies);
          break;
        default:
          change satisfies never;
      }
      crashPoint("ledger.row-changed");
    }
    return { nextId, receiptBytes, nextUse };
  }

  #putHold(row: RetentionRow, { holds }: LedgerTallies): void {
    const seal = sealOfHold(row);
    const found = this.#sql.get<Found>(FIND_HOLD, row.id);
    if (found !== null) holds.remove(storedSeal(found.seal));
    const { id, kind, owner, name, deadlineBootMs, bootId, priority, idleMs } = row;
    const purges = row.purges ? 1 : 0;
    const limits = [deadlineBootMs, bootId, priority, idleMs, row.createdWallMs];
    this.#sql.run(PUT_HOLD, id, kind, owner, name, ...limits, row.blocks, u64Bytes(seal), purges);
    holds.add(seal);
  }

  #putPart(row: PartRow, { holds }: LedgerTallies): void {
    const { hold, part, blocks } = row;
    const found = this.#sql.get<FoundPart>(FIND_PART, hold, part);
    if (found !== null) holds.remove(storedSeal(found.seal));
    if (blocks.length === 0) {
      if (found !== null) this.#sql.run(DELETE_PART, found.id);
      return;
    }
    const seal = sealOfPart(row);
    this.#sql.run(PUT_PART, found?.id ?? null, hold, part, blocks, u64Bytes(seal));
    holds.add(seal);
  }

  #removeHold(id: number, { holds }: LedgerTallies): void {
    for (const part of this.#sql.all<FoundPart>(FIND_PARTS, id)) {
      this.#sql.run(DELETE_PART, part.id);
      holds.remove(storedSeal(part.seal));
    }
    const found = this.#sql.get<Found>(FIND_HOLD, id);
    if (found === null) return;
    this.#sql.run(DELETE_HOLD, id);
    holds.remove(storedSeal(found.seal));
  }

  #putIssuer(row: IssuerRow, use: number, { issuers }: LedgerTallies): void {
    const seal = sealOfIssuer(row, use);
    const found = this.#sql.get<Found>(FIND_ISSUER, row.issuer);
    if (found !== null) issuers.remove(storedSeal(found.seal));
    const numbers = [u64Bytes(row.epoch), u64Bytes(row.seq), u64Bytes(seal)];
    this.#sql.run(PUT_ISSUER, row.issuer, ...numbers, use);
    issuers.add(seal);
    while (issuers.count > ISSUERS_MAX) {
      const oldest = this.#sql.get<FoundIssuer>(OLDEST_ISSUER);
      assert(oldest !== null, "a counted row exists");
      this.#sql.run(DELETE_ISSUER, oldest.issuer);
      issuers.remove(storedSeal(oldest.seal));
    }
  }

  #removeIssuer(issuer: string, { issuers }: LedgerTallies): void {
    const found = this.#sql.get<Found>(FIND_ISSUER, issuer);
    if (found === null) return;
    this.#sql.run(DELETE_ISSUER, issuer);
    issuers.remove(storedSeal(found.seal));
  }

  /** Writes a command and returns the bytes of its receipt. */
  #putCommand(row: CommandRow, id: number, { commands }: LedgerTallies): number {
    const seal = sealOfCommand(row, id);
    this.#sql.run(PUT_COMMAND, id, row.issuer, row.id, row.receipt, u64Bytes(seal));
    commands.add(seal);
    return Buffer.byteLength(row.receipt);
  }

  /** Removes the oldest commands above the limits and returns the bytes of their receipts. */
  #forget(receiptBytes: number, { commands }: LedgerTallies): number {
    let gone = 0;
    while (commands.count > COMMANDS_MAX || receiptBytes - gone > RECEIPT_BYTES_MAX) {
      const oldest = this.#sql.get<FoundCommand>(OLDEST);
      assert(oldest !== null, "a counted row exists");
      this.#sql.run(DELETE_COMMAND, oldest.id);
      commands.remove(storedSeal(oldest.seal));
      gone += oldest.bytes;
    }
    return gone;
  }
}

const HOLDS = `SELECT id, kind, owner, name, deadline_boot_ms AS deadlineBootMs, boot_id AS bootId,
  priority, idle_ms AS idleMs, created_wall_ms AS createdWallMs, blocks, seal, purges
  FROM holds ORDER BY id`;
const PARTS = "SELECT hold, part, blocks, seal FROM parts ORDER BY hold, part";
const COMMANDS = `SELECT id, issuer, name, receipt, octet_length(receipt) AS bytes, seal
  FROM commands ORDER BY id`;
const ISSUERS = "SELECT issuer, epoch, seq, seal, used FROM issuers ORDER BY used, issuer";

interface StoredHold extends Omit<RetentionRow, "purges">, Found {
  readonly purges: number;
}
interface StoredPart extends PartRow, Found {}
interface StoredCommand extends Omit<CommandRow, "id">, FoundCommand {
  readonly name: string;
}
interface StoredIssuer extends FoundIssuer {
  readonly epoch: Uint8Array;
  readonly seq: Uint8Array;
  readonly used: number;
}

/** Positions in the tables of commands and issuers, which replace their oldest rows. */
interface LedgerRings {
  /** Id of the next command, and total bytes of the receipts of all commands. */
  readonly nextId: number;
  readonly receiptBytes: number;
  /** Position of the next issuer that is written. */
  readonly nextUse: number;
}

/**
 * Reads all rows. Verifies each row against its seal, and all rows against the tallies. Throws
 * DamagedIndex if a row is damaged or missing.
 */
function loadRows(db: Database, expected: LedgerTallies, into: LedgerChange[]): LedgerRings {
  const found = { holds: new Tally(), commands: new Tally(), issuers: new Tally() };
  for (const { seal, purges, ...rest } of db.query<StoredHold, []>(HOLDS).iterate()) {
    const row = { ...rest, purges: purges !== 0 };
    if (!["pin", "retain", "lease"].includes(row.kind)) throw notAsWritten("a hold");
    count(found.holds, seal, sealOfHold(row), "a hold");
    into.push({ kind: "hold", row });
  }
  for (const { seal, ...row } of db.query<StoredPart, []>(PARTS).iterate()) {
    // The seal covers 32 bits of the part number, but the column can contain 64.
    if (row.part !== row.part >>> 0) throw notAsWritten("a part of a hold");
    count(found.holds, seal, sealOfPart(row), "a part of a hold");
    into.push({ kind: "part", row });
  }
  let [nextId, receiptBytes, nextUse] = [1, 0, 1];
  for (const stored of db.query<StoredCommand, []>(COMMANDS).iterate()) {
    const row = { issuer: stored.issuer, id: stored.name, receipt: stored.receipt };
    count(found.commands, stored.seal, sealOfCommand(row, stored.id), "a command");
    into.push({ kind: "command", row });
    nextId = stored.id + 1;
    receiptBytes += stored.bytes;
  }
  for (const stored of db.query<StoredIssuer, []>(ISSUERS).iterate()) {
    const [epoch, seq] = [u64Of(stored.epoch), u64Of(stored.seq)];
    if (epoch === null || seq === null) throw notAsWritten("an issuer");
    const row = { issuer: stored.issuer, epoch, seq };
    count(found.issuers, stored.seal, sealOfIssuer(row, stored.used), "an issuer");
    into.push({ kind: "issuer", row });
    nextUse = stored.used + 1;
  }
  for (const table of ["holds", "commands", "issuers"] as const) {
    if (found[table].equals(expected[table])) continue;
    throw new DamagedIndex(`${table} are missing or outdated`);
  }
  return { nextId, receiptBytes, nextUse };
}

function count(tally: Tally, stored: Uint8Array, seal: bigint, what: string): void {
  if (!isSeal(stored, seal)) throw notAsWritten(what);
  tally.add(seal);
}

function notAsWritten(what: string): DamagedIndex {
  return new DamagedIndex(`damaged row: ${what}`);
}

interface LedgerTallies {
  readonly holds: Tally;
  readonly commands: Tally;
  readonly issuers: Tally;
}

/** The single row of the table `ledger`. */
interface LedgerRecord {
  readonly owner: Owner;
  /** Incarnation of the run of the agent that wrote the row. */
  readonly incarnation: bigint;
  readonly lastSeen: LedgerContents["lastSeen"];
  readonly tallies: LedgerTallies;
}

const ROW_ID = 1;

type Columns = Omit<typeof ledger.$inferInsert, "seal">;

function columnsOf({ owner, incarnation, lastSeen, tallies }: LedgerRecord): Columns {
  const { holds, commands, issuers } = tallies;
  return {
    id: ROW_ID,
    worker: owner.worker,
    machine: owner.machine,
    incarnation: Buffer.from(u64Bytes(incarnation)),
    bootId: lastSeen?.bootId ?? null,
    bootMs: lastSeen?.bootMs ?? null,
    holdCount: holds.count,
    holdSum: Buffer.from(u64Bytes(holds.sum)),
    commandCount: commands.count,
    commandSum: Buffer.from(u64Bytes(commands.sum)),
    issuerCount: issuers.count,
    issuerSum: Buffer.from(u64Bytes(issuers.sum)),
  };
}

function tallyOf(count: number, sum: Uint8Array): Tally | null {
  const value = u64Of(sum);
  return value === null ? null : new Tally(count, value);
}

/** Reads the row of the table `ledger`. Returns null if it is missing or damaged. */
function readLedgerRecord(db: Database): LedgerRecord | null {
  const row = drizzle(db).select().from(ledger).where(eq(ledger.id, ROW_ID)).get();
  if (row === undefined) return null;
  const { worker, machine, bootId, bootMs } = row;
  const holds = tallyOf(row.holdCount, row.holdSum);
  const commands = tallyOf(row.commandCount, row.commandSum);
  const issuers = tallyOf(row.issuerCount, row.issuerSum);
  const incarnation = u64Of(row.incarnation);
  if (holds === null || commands === null || issuers === null || incarnation === null) return null;
  const record: LedgerRecord = {
    owner: { worker, machine },
    incarnation,
    lastSeen: bootId === null || bootMs === null ? null : { bootId, bootMs },
    tallies: { holds, commands, issuers },
  };
  return sealOfColumns(columnsOf(record)).equals(row.seal) ? record : null;
}

function writeLedgerRecord(db: Database, record: LedgerRecord): void {
  const columns = columnsOf(record);
  const values = { ...columns, seal: sealOfColumns(columns) };
  const target = ledger.id;
  drizzle(db).insert(ledger).values(values).onConflictDoUpdate({ target, set: values }).run();
}

/**
 * Application id "HRTL", and all files of `migrations/` in order. A released migration never
 * changes.
 */
const LEDGER: DatabaseKind = {
  applicationId: 0x4852544c,
  migrations: [
    { name: "0000-holds", sql: holds },
    { name: "0001-parts", sql: parts },
    { name: "0002-issuer-order", sql: issuerOrder },
    { name: "0003-lease-grants", sql: leaseGrants },
  ],
};
