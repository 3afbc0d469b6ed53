import type { Database } from "bun:sqlite";
import { eq } from "drizzle-orm";
import { drizzle } from "drizzle-orm/bun-sqlite";
import type { IndexOwner, RunProgress } from "../protocol.ts";
import { run } from "../schema/index.ts";
import { sealOfRun, u64Bytes, u64Of } from "./seal.ts";
import { Tally } from "./tally.ts";

/** The one row of the table `run`. */
export interface RunRecord {
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

function sealOf(columns: Columns): Buffer {
  const plain = Object.values(columns).map((value) =>
    Buffer.isBuffer(value) ? value.toHex() : value,
  );
  return Buffer.from(u64Bytes(sealOfRun(plain as (string | number | boolean | null)[])));
}

/** Null where there is none, or none that is as it was written. */
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
  return sealOf(columnsOf(record)).equals(row.seal) ? record : null;
}

export function writeRunRecord(db: Database, record: RunRecord): void {
  const columns = columnsOf(record);
  const values = { ...columns, seal: sealOf(columns) };
  drizzle(db).insert(run).values(values).onConflictDoUpdate({ target: run.id, set: values }).run();
}
