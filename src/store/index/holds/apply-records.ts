import type { Database, Statement } from "bun:sqlite";
import { assert } from "../../../core/index.ts";
import { crashPoint } from "../../../native/index.ts";
import { u64Bytes, u64Of } from "../store/seal.ts";
import type { CommandRow, HoldRow, IssuerRow, PartRow } from "./hold-ledger.ts";
import type { LedgerTallies } from "./ledger-record.ts";
import type { LedgerRings } from "./load-rows.ts";
import type { RecordReader } from "./records.ts";
import { sealInRing, sealOfRecord } from "./row-seals.ts";

/** Commands that are remembered, and bytes of their receipts: then the oldest are forgotten. */
export const COMMANDS_MAX = 65_536;
const RECEIPT_BYTES_MAX = 64 * 2 ** 20;
/** Issuers that are remembered: then the one written longest ago is forgotten. */
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

/** Writes records to the tables and keeps the tallies; the caller's transaction is around it. */
export class RecordsApplier {
  readonly #db: Database;
  readonly #statements = new Map<string, Statement>();

  constructor(db: Database) {
    this.#db = db;
  }

  /** Throws what SQLite throws; the tallies are then to be taken back, as are the rings. */
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

  #putHold(row: HoldRow, seal: bigint, { holds }: LedgerTallies): void {
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
      assert(oldest !== null, "what is counted is there");
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

  /** The bytes of its receipt. */
  #putCommand(row: CommandRow, id: number, record: Uint8Array, tallies: LedgerTallies): number {
    const seal = sealInRing(record, id);
    this.#run(PUT_COMMAND, id, row.issuer, row.id, row.receipt, u64Bytes(seal));
    tallies.commands.add(seal);
    return Buffer.byteLength(row.receipt);
  }

  /** The bytes of the receipts that went. */
  #forget(receiptBytes: number, { commands }: LedgerTallies): number {
    let gone = 0;
    while (commands.count > COMMANDS_MAX || receiptBytes - gone > RECEIPT_BYTES_MAX) {
      const oldest = this.#get<FoundCommand>(OLDEST);
      assert(oldest !== null, "what is counted is there");
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
