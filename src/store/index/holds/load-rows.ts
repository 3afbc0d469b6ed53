import type { Database } from "bun:sqlite";
import { DamagedIndex } from "../store/damaged.ts";
import { isSeal, u64Of } from "../store/seal.ts";
import { Tally } from "../store/tally.ts";
import type { HoldRow, PartRow } from "./hold-ledger.ts";
import type { LedgerTallies } from "./ledger-record.ts";
import type { RecordWriter } from "./records.ts";
import { sealInRing, sealOfRecord } from "./row-seals.ts";

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
interface StoredHold extends Omit<HoldRow, "purges">, Sealed {
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

/** How far the rings of commands and of issuers have come. */
export interface LedgerRings {
  /** Of the next command, and the bytes of the receipts that are there. */
  readonly nextId: number;
  readonly receiptBytes: number;
  /** Of the next issuer that is written. */
  readonly nextUse: number;
}

/**
 * Every row as records, each checked against its seal and all against the tallies. Throws
 * DamagedIndex where a row is not as it was written, or one is missing.
 */
export function loadRows(db: Database, expected: LedgerTallies, into: RecordWriter): LedgerRings {
  const found = { holds: new Tally(), commands: new Tally(), issuers: new Tally() };
  for (const row of db.query<StoredHold, []>(HOLDS).iterate()) {
    if (!["pin", "retain", "lease"].includes(row.kind)) throw notAsWritten("a hold");
    const record = into.hold({ ...row, purges: row.purges !== 0 });
    count(found.holds, row, sealOfRecord(record), "a hold");
  }
  for (const row of db.query<StoredPart, []>(PARTS).iterate()) {
    // Its seal takes 32 bits of it, the file holds up to 64.
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
    throw new DamagedIndex(`${table} are missing, or of an earlier day`);
  }
  return { nextId, receiptBytes, nextUse };
}

function count(tally: Tally, { seal: stored }: Sealed, seal: bigint, what: string): void {
  if (!isSeal(stored, seal)) throw notAsWritten(what);
  tally.add(seal);
}

function notAsWritten(what: string): DamagedIndex {
  return new DamagedIndex(`${what} is not as it was written`);
}
