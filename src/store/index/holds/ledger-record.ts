import type { Database } from "bun:sqlite";
import { eq } from "drizzle-orm";
import { drizzle } from "drizzle-orm/bun-sqlite";
import type { Owner } from "../store/must-be-ours.ts";
import { sealOfRun, u64Bytes, u64Of } from "../store/seal.ts";
import { Tally } from "../store/tally.ts";
import type { LedgerContents } from "./hold-ledger.ts";
import { ledger } from "./schema/index.ts";

export interface LedgerTallies {
  readonly holds: Tally;
  readonly commands: Tally;
  readonly issuers: Tally;
}

/** The one row of the table `ledger`. */
export interface LedgerRecord {
  readonly owner: Owner;
  /** Of the run that wrote it. */
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

/** Null where there is none, or none that is as it was written. */
export function readLedgerRecord(db: Database): LedgerRecord | null {
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

export function writeLedgerRecord(db: Database, record: LedgerRecord): void {
  const columns = columnsOf(record);
  const values = { ...columns, seal: sealOf(columns) };
  const target = ledger.id;
  drizzle(db).insert(ledger).values(values).onConflictDoUpdate({ target, set: values }).run();
}
