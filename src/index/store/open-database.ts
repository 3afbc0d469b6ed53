import { Database } from "bun:sqlite";
import { DamagedIndex } from "./damaged.ts";
import { MIGRATIONS, migrate, schemaVersion } from "./migrations.ts";

/** "HRTH", as the first migration sets it. */
const APPLICATION_ID = 0x48525448;

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
export function openDatabase(path: string, busyMs: number): Database {
  const db = new Database(path, { create: true, readwrite: true });
  try {
    db.run(`PRAGMA busy_timeout = ${busyMs}`);
    for (const pragma of PRAGMAS) db.run(`PRAGMA ${pragma}`);
    db.query("PRAGMA journal_mode = WAL").get();
    checkKind(db);
    migrate(db);
    checkSchema(db);
    checkPages(db);
    return db;
  } catch (thrown) {
    db.close(true);
    throw thrown;
  }
}

function checkKind(db: Database): void {
  type Id = { application_id: number };
  const id = db.query<Id, []>("PRAGMA application_id").get()!.application_id;
  const version = schemaVersion(db);
  if (id === 0 && version === 0 && schemaOf(db).length === 0) return;
  if (id !== APPLICATION_ID) throw new DamagedIndex("it is a database of some other program");
  if (version <= MIGRATIONS.length) return;
  const known = `this one knows ${MIGRATIONS.length}`;
  throw new DamagedIndex(`a newer Hearth made it: its schema is version ${version}, ${known}`);
}

function schemaOf(db: Database): string[] {
  type Entry = { type: string; name: string; sql: string | null };
  const entries = db.query<Entry, []>("SELECT type, name, sql FROM sqlite_schema").all();
  return entries.map(({ type, name, sql }) => `${type} ${name} ${sql}`).sort();
}

function checkSchema(db: Database): void {
  using model = new Database(":memory:");
  migrate(model);
  const [found, wanted] = [schemaOf(db), schemaOf(model)];
  if (found.join("\n") === wanted.join("\n")) return;
  throw new DamagedIndex("its tables are not as they were made");
}

function checkPages(db: Database): void {
  type Verdict = { quick_check: string };
  const verdict = db.query<Verdict, []>("PRAGMA quick_check(1)").get()!.quick_check;
  if (verdict !== "ok") throw new DamagedIndex(`it is corrupt: ${verdict}`);
}
