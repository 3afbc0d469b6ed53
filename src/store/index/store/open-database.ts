import { Database } from "bun:sqlite";
import { DamagedIndex } from "./damaged.ts";
import { MIGRATIONS, type Migration, migrate, schemaVersion } from "./migrations.ts";

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
