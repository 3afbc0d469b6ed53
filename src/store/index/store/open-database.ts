import { Database } from "bun:sqlite";
import { closeSync, fsyncSync, openSync } from "node:fs";
import { dirname } from "node:path";
import { HearthError } from "../../../core/index.ts";
import { crashPoint } from "../../../native/index.ts";
import type { IndexOwner } from "../index-worker-client.ts";
import blocks from "./migrations/0000-blocks.sql" with { type: "text" };
import macKeys from "./migrations/0001-mac-keys.sql" with { type: "text" };

/** One step of the schema; the version of an index is how many of them it has seen. */
interface Migration {
  readonly name: string;
  readonly sql: string;
}

/** Every file of `migrations/`, in order. A released one is never changed. */
const MIGRATIONS: readonly Migration[] = [
  { name: "0000-blocks", sql: blocks },
  { name: "0001-mac-keys", sql: macKeys },
];

/** What a file of ours is: the first migration writes the id into it. */
export interface DatabaseKind {
  readonly applicationId: number;
  readonly migrations: readonly Migration[];
}

/** "HRTH" */
const BLOCK_INDEX: DatabaseKind = { applicationId: 0x48525448, migrations: MIGRATIONS };

/**
 * `EXCLUSIVE`: other programs are kept out, and the log's index lies in memory instead of in a
 * mapped file, which would end the process where its disk is full. The log is written back every
 * 32 MB instead of every 4: changes hit random pages, and most are hit again before that.
 */
const PRAGMAS = [
  "locking_mode = EXCLUSIVE",
  "synchronous = NORMAL",
  "cache_size = -65536",
  "wal_autocheckpoint = 8192",
  "journal_size_limit = 67108864",
  "cell_size_check = ON",
  "trusted_schema = OFF",
];

/**
 * Opens or makes the file, brings its schema up to date and checks it as far as SQLite can: the
 * schema is ours to the letter, pages and free list are sound (`quick_check`: 0.2 s for a million
 * rows). Throws DamagedIndex, or what SQLite throws.
 */
export function openDatabase(path: string, busyMs: number, kind = BLOCK_INDEX): Database {
  const db = new Database(path, { create: true, readwrite: true });
  try {
    db.run(`PRAGMA busy_timeout = ${busyMs}`);
    for (const pragma of PRAGMAS) db.run(`PRAGMA ${pragma}`);
    db.query("PRAGMA journal_mode = WAL").get();
    checkKind(db, kind);
    migrate(db, kind.migrations);
    checkSchema(db, kind);
    checkPages(db);
    return db;
  } catch (thrown) {
    db.close(true);
    throw thrown;
  }
}

function checkKind(db: Database, { applicationId, migrations }: DatabaseKind): void {
  type Id = { application_id: number };
  const id = db.query<Id, []>("PRAGMA application_id").get()!.application_id;
  const version = schemaVersion(db);
  if (id === 0 && version === 0 && schemaOf(db).length === 0) return;
  if (id !== applicationId) throw new DamagedIndex("it is a database of some other program");
  if (version <= migrations.length) return;
  const known = `this one knows ${migrations.length}`;
  throw new DamagedIndex(`a newer Hearth made it: its schema is version ${version}, ${known}`);
}

function schemaOf(db: Database): string[] {
  type Entry = { type: string; name: string; sql: string | null };
  const entries = db.query<Entry, []>("SELECT type, name, sql FROM sqlite_schema").all();
  return entries.map(({ type, name, sql }) => `${type} ${name} ${sql}`).sort();
}

function checkSchema(db: Database, kind: DatabaseKind): void {
  using model = new Database(":memory:");
  migrate(model, kind.migrations);
  const [found, wanted] = [schemaOf(db), schemaOf(model)];
  if (found.join("\n") === wanted.join("\n")) return;
  throw new DamagedIndex("its tables are not as they were made");
}

function checkPages(db: Database): void {
  type Verdict = { quick_check: string };
  const verdict = db.query<Verdict, []>("PRAGMA quick_check(1)").get()!.quick_check;
  if (verdict !== "ok") throw new DamagedIndex(`it is corrupt: ${verdict}`);
}

function schemaVersion(db: Database): number {
  return db.query<{ user_version: number }, []>("PRAGMA user_version").get()!.user_version;
}

/** Brings the schema up to date, each step whole or not at all. Throws what SQLite throws. */
function migrate(db: Database, migrations: readonly Migration[] = MIGRATIONS): void {
  for (let version = schemaVersion(db); version < migrations.length; version++) {
    const step = db.transaction(() => {
      db.run(migrations[version]!.sql);
      crashPoint("index.half-migrated");
      db.run(`PRAGMA user_version = ${version + 1}`);
    });
    step.immediate();
    crashPoint("index.migrated");
  }
}

export type Owner = Pick<IndexOwner, "worker" | "machine">;

/** Throws INDEX_FOREIGN where a file is another worker's or machine's. */
export function mustBeOurs(path: string, owner: Owner, wanted: Owner): void {
  const { worker, machine } = owner;
  if (worker === wanted.worker && machine === wanted.machine) return;
  const folder = dirname(path);
  const whose = `worker "${worker}" on machine "${machine}"`;
  throw new HearthError("INDEX_FOREIGN", `the index in ${folder} belongs to ${whose}`, {
    fix: "name another index_dir, or remove that folder if its cache is no longer wanted",
  });
}

/** So that the names of the log and the database survive a loss of power, too. */
export function syncFolder(folder: string): void {
  const fd = openSync(folder, "r");
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** The file cannot be used and never will be: it is set aside, and a new one takes its place. */
export class DamagedIndex extends Error {
  override readonly name = "DamagedIndex";
}

/**
 * SQLite's codes for a disk that does not do it now and may do it later. All others that come up
 * while a file is opened speak of the file: not a database, corrupt, a bad sector, not our tables.
 */
const PASSING = [
  "SQLITE_FULL",
  "SQLITE_READONLY",
  "SQLITE_CANTOPEN",
  "SQLITE_PERM",
  "SQLITE_NOMEM",
];

function codeOf(thrown: unknown): string {
  return String((thrown as { code?: unknown } | null)?.code ?? "");
}

export function isBusy(thrown: unknown): boolean {
  return codeOf(thrown).startsWith("SQLITE_BUSY");
}

/** Whether what SQLite threw speaks of the file, not of the disk below it. */
export function isAboutFile(thrown: unknown): boolean {
  if (thrown instanceof DamagedIndex) return true;
  const code = codeOf(thrown);
  return code.startsWith("SQLITE_") && !PASSING.some((passing) => code.startsWith(passing));
}

/** For people: SQLite's words with its code. */
export function wordsOf(thrown: unknown): string {
  const code = codeOf(thrown);
  const message = thrown instanceof Error ? thrown.message : String(thrown);
  return code === "" ? message : `${message} (${code})`;
}
