import { Database, type Statement } from "bun:sqlite";
import { closeSync, fsyncSync, openSync } from "node:fs";
import { dirname } from "node:path";
import { HearthError } from "../../../core/index.ts";
import { crashPoint } from "../../../native/index.ts";
import type { IndexOwner } from "../index-worker-client.ts";
import blocks from "./migrations/0000-blocks.sql" with { type: "text" };
import macKeys from "./migrations/0001-mac-keys.sql" with { type: "text" };

/**
 * One step of the database schema. The schema version of a file is the number of steps applied to
 * it.
 */
interface Migration {
  readonly name: string;
  readonly sql: string;
}

/** Describes a kind of Hearth database. Its first migration writes the application id. */
export interface DatabaseKind {
  readonly applicationId: number;
  readonly migrations: readonly Migration[];
}

/**
 * Application id "HRTH", and all files of `migrations/` in order. A released migration never
 * changes.
 */
const BLOCK_INDEX: DatabaseKind = {
  applicationId: 0x48525448,
  migrations: [
    { name: "0000-blocks", sql: blocks },
    { name: "0001-mac-keys", sql: macKeys },
  ],
};

/**
 * `EXCLUSIVE` locks out other programs, and keeps the index of the log in memory instead of in a
 * mapped file, which would end the process if the disk is full. The log is checkpointed every 32 MB
 * instead of every 4: changes hit random pages, and most pages change again before that.
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
 * Opens or creates the file, applies missing schema steps, and checks as much as SQLite can: the
 * schema is exactly the expected one, and pages and free list are valid (`quick_check`: 0.2 s for a
 * million rows). Throws DamagedIndex or the error of SQLite.
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
  if (id !== applicationId) throw new DamagedIndex("database of another program");
  if (version <= migrations.length) return;
  throw new DamagedIndex(
    `written by a newer Hearth: schema version ${version}, this one supports ${migrations.length}`,
  );
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
  throw new DamagedIndex("schema differs from ours");
}

function checkPages(db: Database): void {
  type Verdict = { quick_check: string };
  const verdict = db.query<Verdict, []>("PRAGMA quick_check(1)").get()!.quick_check;
  if (verdict !== "ok") throw new DamagedIndex(`corrupt: ${verdict}`);
}

function schemaVersion(db: Database): number {
  return db.query<{ user_version: number }, []>("PRAGMA user_version").get()!.user_version;
}

/** Applies missing schema steps, each in its own transaction. Throws the error of SQLite. */
function migrate(db: Database, migrations: readonly Migration[]): void {
  for (let version = schemaVersion(db); version < migrations.length; version++) {
    const step = db.transaction(() => {
      db.run(migrations[version].sql);
      crashPoint("index.half-migrated");
      db.run(`PRAGMA user_version = ${version + 1}`);
    });
    step.immediate();
    crashPoint("index.migrated");
  }
}

export type Owner = Pick<IndexOwner, "worker" | "machine">;

/** Throws INDEX_FOREIGN if the file belongs to another worker or machine. */
export function requireOwner(path: string, owner: Owner, wanted: Owner): void {
  const { worker, machine } = owner;
  if (worker === wanted.worker && machine === wanted.machine) return;
  const folder = dirname(path);
  const whose = `worker "${worker}" on machine "${machine}"`;
  throw new HearthError("INDEX_FOREIGN", `the index in ${folder} belongs to ${whose}`, {
    fix: "name another index_dir, or remove that folder if its cache can be discarded",
  });
}

type Value = string | number | Uint8Array | null;

/** Cache of prepared statements by their SQL text. */
export class Statements {
  readonly #db: Database;
  readonly #prepared = new Map<string, Statement>();

  constructor(db: Database) {
    this.#db = db;
  }

  get<Row>(sql: string, ...values: Value[]): Row | null {
    return this.#of(sql).get(...values) as Row | null;
  }

  all<Row>(sql: string, ...values: Value[]): Row[] {
    return this.#of(sql).all(...values) as Row[];
  }

  run(sql: string, ...values: Value[]): void {
    this.#of(sql).run(...values);
  }

  #of(sql: string): Statement {
    let statement = this.#prepared.get(sql);
    if (statement === undefined) {
      statement = this.#db.prepare(sql);
      this.#prepared.set(sql, statement);
    }
    return statement;
  }
}

/** Makes the directory entries of the database and its log durable. */
export function syncFolder(folder: string): void {
  const fd = openSync(folder, "r");
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** Error for a file that is permanently unusable. It is set aside and replaced by a new one. */
export class DamagedIndex extends Error {
  override readonly name = "DamagedIndex";
}

/**
 * SQLite error codes for disk conditions that may pass. Any other code while a file is opened means
 * that the file is damaged, for example not a database, corrupt, on a bad sector, or with
 * unexpected tables.
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

/**
 * Returns whether an error of SQLite means damage to the file rather than a condition of the disk.
 */
export function isAboutFile(thrown: unknown): boolean {
  if (thrown instanceof DamagedIndex) return true;
  const code = codeOf(thrown);
  return code.startsWith("SQLITE_") && !PASSING.some((passing) => code.startsWith(passing));
}

/** Returns SQLite's message with its code, for logs. */
export function sqliteMessage(thrown: unknown): string {
  const code = codeOf(thrown);
  const message = thrown instanceof Error ? thrown.message : String(thrown);
  return code === "" ? message : `${message} (${code})`;
}
