import type { Database, Statement } from "bun:sqlite";
import { dirname } from "node:path";
import { eq } from "drizzle-orm";
import { drizzle } from "drizzle-orm/bun-sqlite";
import { assert } from "../../../core/index.ts";
import { crashPoint } from "../../../native/index.ts";
import type { CommitLedgerOrder, OpenLedgerOrder } from "../index-worker-client.ts";
import {
  DamagedIndex,
  type DatabaseKind,
  type Owner,
  openDatabase,
  requireOwner,
  syncFolder,
} from "../store/open-database.ts";
import { type OpenedStore, openLocked } from "../store/open-store.ts";
import { isSeal, sealOfRun, Tally, u64Bytes, u64Of } from "../store/seal.ts";
import { RecordReader, RecordWriter } from "./ledger-records.ts";
import holds from "./migrations/0000-holds.sql" with { type: "text" };
import parts from "./migrations/0001-parts.sql" with { type: "text" };
import issuerOrder from "./migrations/0002-issuer-order.sql" with { type: "text" };
import leaseGrants from "./migrations/0003-lease-grants.sql" with { type: "text" };
import type {
  CommandRow,
  IssuerRow,
  LedgerContents,
  PartRow,
  RetentionRow,
} from "./retention-ledger.ts";
import { ledger } from "./schema/index.ts";

export const LEDGER_FILE = "holds.sqlite";

export function openLedgerStore(order: OpenLedgerOrder): OpenedStore<LedgerStore> {
  const open = (path: string) => new LedgerStore(path, order);
  return openLocked({ ...order, lock: "holds.lock", file: LEDGER_FILE, what: "the ledger", open });
}

/** An open ledger with all rows verified. Used by the worker. */
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
   * Throws DamagedIndex or the error of SQLite if the file cannot be used, INDEX_FOREIGN if it has
   * another owner.
   */
  constructor(path: string, { owner, incarnation, busyMs }: OpenLedgerOrder) {
    this.#path = path;
    this.#db = openDatabase(path, busyMs, LEDGER);
    try {
      const record = recordOf(this.#db, { owner, incarnation });
      requireOwner(path, record.owner, owner);
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

  /** All rows as they were when the ledger was opened. Can be called once. */
  takeContents(): { readonly buffer: ArrayBuffer; readonly length: number } {
    const { buffer, length } = this.#contents ?? new RecordWriter();
    this.#contents = null;
    return { buffer, length };
  }

  /**
   * Writes all changes in one transaction. Throws the error of SQLite, and then nothing is written.
   */
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
    // The directory entry of the log does not change until it is closed, so one sync is enough.
    if (!durable || this.#isFolderSynced) return;
    syncFolder(dirname(this.#path));
    this.#isFolderSynced = true;
  }

  /** Checkpoints the log into the file. */
  close(): void {
    crashPoint("ledger.before-close");
    this.#db.close(true);
    crashPoint("ledger.closed");
  }
}

/** The record of the file, created if the ledger is new. */
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

/** Maximum number of commands, and of bytes of their receipts. Beyond it the oldest are removed. */
const COMMANDS_MAX = 65_536;
const RECEIPT_BYTES_MAX = 64 * 2 ** 20;
/** Maximum number of issuers. Beyond it the one written longest ago is removed. */
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
type Value = string | number | Uint8Array | null;

/** Writes records to the tables and updates the tallies, within the transaction of the caller. */
class RecordsApplier {
  readonly #db: Database;
  readonly #statements = new Map<string, Statement>();

  constructor(db: Database) {
    this.#db = db;
  }

  /** Throws the error of SQLite. The caller must then restore the tallies and the rings. */
  apply(records: RecordReader, tallies: LedgerTallies, rings: LedgerRings): LedgerRings {
    let { nextId, receiptBytes, nextUse } = rings;
    for (let next = records.next(); next !== null; next = records.next()) {
      switch (next.kind) {
        case "hold":
          this.#putHold(next.row, sealOfRecord(records.sealed), tallies);
          break;
        case "part":
          this.#putPart(next.row, sealOfRecord(records.sealed), tallies);
          break;
        case "removeHold":
          this.#removeHold(next.id, tallies);
          break;
        case "issuer":
          this.#putIssuer(next.row, nextUse, records.sealed, tallies);
          nextUse++;
          break;
        case "removeIssuer":
          this.#removeIssuer(next.issuer, tallies);
          break;
        case "command":
          receiptBytes += this.#putCommand(next.row, nextId, records.sealed, tallies);
          nextId++;
          receiptBytes -= this.#forget(receiptBytes, tallies);
          break;
        default:
          next satisfies never;
      }
      crashPoint("ledger.row-changed");
    }
    return { nextId, receiptBytes, nextUse };
  }

  #putHold(row: RetentionRow, seal: bigint, { holds }: LedgerTallies): void {
    const found = this.#get<Found>(FIND_HOLD, row.id);
    if (found !== null) holds.remove(sealIn(found));
    const { id, kind, owner, name, deadlineBootMs, bootId, priority, idleMs } = row;
    const purges = row.purges ? 1 : 0;
    const limits = [deadlineBootMs, bootId, priority, idleMs, row.createdWallMs];
    this.#run(PUT_HOLD, id, kind, owner, name, ...limits, row.blocks, u64Bytes(seal), purges);
    holds.add(seal);
  }

  #putPart({ hold, part, blocks }: PartRow, seal: bigint, { holds }: LedgerTallies): void {
    const found = this.#get<FoundPart>(FIND_PART, hold, part);
    if (found !== null) holds.remove(sealIn(found));
    if (blocks.length === 0) {
      if (found !== null) this.#run(DELETE_PART, found.id);
      return;
    }
    this.#run(PUT_PART, found?.id ?? null, hold, part, blocks, u64Bytes(seal));
    holds.add(seal);
  }

  #removeHold(id: number, { holds }: LedgerTallies): void {
    const parts = this.#statement(FIND_PARTS).all(id) as FoundPart[];
    for (const part of parts) {
      this.#run(DELETE_PART, part.id);
      holds.remove(sealIn(part));
    }
    const found = this.#get<Found>(FIND_HOLD, id);
    if (found === null) return;
    this.#run(DELETE_HOLD, id);
    holds.remove(sealIn(found));
  }

  #putIssuer(row: IssuerRow, use: number, record: Uint8Array, { issuers }: LedgerTallies): void {
    const seal = sealInRing(record, use);
    const found = this.#get<Found>(FIND_ISSUER, row.issuer);
    if (found !== null) issuers.remove(sealIn(found));
    const numbers = [u64Bytes(row.epoch), u64Bytes(row.seq), u64Bytes(seal)];
    this.#run(PUT_ISSUER, row.issuer, ...numbers, use);
    issuers.add(seal);
    while (issuers.count > ISSUERS_MAX) {
      const oldest = this.#get<FoundIssuer>(OLDEST_ISSUER);
      assert(oldest !== null, "a counted row exists");
      this.#run(DELETE_ISSUER, oldest.issuer);
      issuers.remove(sealIn(oldest));
    }
  }

  #removeIssuer(issuer: string, { issuers }: LedgerTallies): void {
    const found = this.#get<Found>(FIND_ISSUER, issuer);
    if (found === null) return;
    this.#run(DELETE_ISSUER, issuer);
    issuers.remove(sealIn(found));
  }

  /** Returns the bytes of the receipt. */
  #putCommand(row: CommandRow, id: number, record: Uint8Array, tallies: LedgerTallies): number {
    const seal = sealInRing(record, id);
    this.#run(PUT_COMMAND, id, row.issuer, row.id, row.receipt, u64Bytes(seal));
    tallies.commands.add(seal);
    return Buffer.byteLength(row.receipt);
  }

  /** Returns the bytes of the removed receipts. */
  #forget(receiptBytes: number, { commands }: LedgerTallies): number {
    let gone = 0;
    while (commands.count > COMMANDS_MAX || receiptBytes - gone > RECEIPT_BYTES_MAX) {
      const oldest = this.#get<FoundCommand>(OLDEST);
      assert(oldest !== null, "a counted row exists");
      this.#run(DELETE_COMMAND, oldest.id);
      commands.remove(sealIn(oldest));
      gone += oldest.bytes;
    }
    return gone;
  }

  #statement(sql: string): Statement {
    let statement = this.#statements.get(sql);
    if (statement === undefined) {
      statement = this.#db.prepare(sql);
      this.#statements.set(sql, statement);
    }
    return statement;
  }

  #get<Row>(sql: string, ...values: Value[]): Row | null {
    return this.#statement(sql).get(...values) as Row | null;
  }

  #run(sql: string, ...values: Value[]): void {
    this.#statement(sql).run(...values);
  }
}

function sealIn({ seal }: Found): bigint {
  const value = u64Of(seal);
  assert(value !== null, "a seal of eight bytes");
  return value;
}

const HOLDS = `SELECT id, kind, owner, name, deadline_boot_ms AS deadlineBootMs, boot_id AS bootId,
  priority, idle_ms AS idleMs, created_wall_ms AS createdWallMs, blocks, seal, purges
  FROM holds ORDER BY id`;
const PARTS = "SELECT hold, part, blocks, seal FROM parts ORDER BY hold, part";
const COMMANDS = `SELECT id, issuer, name, receipt, octet_length(receipt) AS bytes, seal
  FROM commands ORDER BY id`;
const ISSUERS = "SELECT issuer, epoch, seq, seal, used FROM issuers ORDER BY used, issuer";

interface Sealed {
  readonly seal: Uint8Array;
}
interface StoredHold extends Omit<RetentionRow, "purges">, Sealed {
  readonly purges: number;
}
interface StoredPart extends PartRow, Sealed {}
interface StoredCommand extends Sealed {
  readonly id: number;
  readonly issuer: string;
  readonly name: string;
  readonly receipt: string;
  readonly bytes: number;
}
interface StoredIssuer extends Sealed {
  readonly issuer: string;
  readonly epoch: Uint8Array;
  readonly seq: Uint8Array;
  readonly used: number;
}

/** Positions of the rings of commands and issuers. */
interface LedgerRings {
  /** Id of the next command, and total bytes of the stored receipts. */
  readonly nextId: number;
  readonly receiptBytes: number;
  /** Position of the next issuer. */
  readonly nextUse: number;
}

/**
 * Encodes every row, verified against its seal, and all rows against the tallies. Throws
 * DamagedIndex if a row is damaged or missing.
 */
function loadRows(db: Database, expected: LedgerTallies, into: RecordWriter): LedgerRings {
  const found = { holds: new Tally(), commands: new Tally(), issuers: new Tally() };
  for (const row of db.query<StoredHold, []>(HOLDS).iterate()) {
    if (!["pin", "retain", "lease"].includes(row.kind)) throw notAsWritten("a hold");
    const record = into.hold({ ...row, purges: row.purges !== 0 });
    count(found.holds, row, sealOfRecord(record), "a hold");
  }
  for (const row of db.query<StoredPart, []>(PARTS).iterate()) {
    // The seal covers 32 bits of it, but the column can contain 64.
    if (row.part !== row.part >>> 0) throw notAsWritten("a part of a hold");
    count(found.holds, row, sealOfRecord(into.part(row)), "a part of a hold");
  }
  let [nextId, receiptBytes, nextUse] = [1, 0, 1];
  for (const row of db.query<StoredCommand, []>(COMMANDS).iterate()) {
    const { id, issuer, name, receipt } = row;
    count(
      found.commands,
      row,
      sealInRing(into.command({ issuer, id: name, receipt }), id),
      "a command",
    );
    nextId = id + 1;
    receiptBytes += row.bytes;
  }
  for (const row of db.query<StoredIssuer, []>(ISSUERS).iterate()) {
    const [epoch, seq] = [u64Of(row.epoch), u64Of(row.seq)];
    if (epoch === null || seq === null) throw notAsWritten("an issuer");
    const record = into.issuer({ issuer: row.issuer, epoch, seq });
    count(found.issuers, row, sealInRing(record, row.used), "an issuer");
    nextUse = row.used + 1;
  }
  for (const table of ["holds", "commands", "issuers"] as const) {
    if (found[table].equals(expected[table])) continue;
    throw new DamagedIndex(`${table} are missing or outdated`);
  }
  return { nextId, receiptBytes, nextUse };
}

function count(tally: Tally, { seal: stored }: Sealed, seal: bigint, what: string): void {
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
  /** Incarnation of the run that wrote it. */
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

function sealOf(columns: Columns): Buffer {
  const plain = Object.values(columns).map((value) =>
    Buffer.isBuffer(value) ? value.toHex() : value,
  );
  return Buffer.from(u64Bytes(sealOfRun(plain as (string | number | null)[])));
}

function tallyOf(count: number, sum: Uint8Array): Tally | null {
  const value = u64Of(sum);
  return value === null ? null : new Tally(count, value);
}

/** Null if the record is missing or damaged. */
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
  return sealOf(columnsOf(record)).equals(row.seal) ? record : null;
}

function writeLedgerRecord(db: Database, record: LedgerRecord): void {
  const columns = columnsOf(record);
  const values = { ...columns, seal: sealOf(columns) };
  const target = ledger.id;
  drizzle(db).insert(ledger).values(values).onConflictDoUpdate({ target, set: values }).run();
}

/** "HRTL", and all files of `migrations/` in order. A released file never changes. */
const LEDGER: DatabaseKind = {
  applicationId: 0x4852544c,
  migrations: [
    { name: "0000-holds", sql: holds },
    { name: "0001-parts", sql: parts },
    { name: "0002-issuer-order", sql: issuerOrder },
    { name: "0003-lease-grants", sql: leaseGrants },
  ],
};

/** XXH3-64 over the encoded row. It detects accidents, like the seals of the block index. */
function sealOfRecord(record: Uint8Array): bigint {
  return Bun.hash.xxHash3(record);
}

/**
 * The seal of a row in a ring, which also covers its position. Position 0 is equal to no position.
 */
function sealInRing(record: Uint8Array, place: number): bigint {
  return Bun.hash.xxHash3(record, BigInt(place));
}
