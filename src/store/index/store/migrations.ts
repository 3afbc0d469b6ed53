import type { Database } from "bun:sqlite";
import { crashPoint } from "../../../native/index.ts";
import blocks from "./migrations/0000-blocks.sql" with { type: "text" };
import macKeys from "./migrations/0001-mac-keys.sql" with { type: "text" };

/** One step of the schema; the version of an index is how many of them it has seen. */
export interface Migration {
  readonly name: string;
  readonly sql: string;
}

/** Every file of `migrations/`, in order. A released one is never changed. */
export const MIGRATIONS: readonly Migration[] = [
  { name: "0000-blocks", sql: blocks },
  { name: "0001-mac-keys", sql: macKeys },
];

export function schemaVersion(db: Database): number {
  return db.query<{ user_version: number }, []>("PRAGMA user_version").get()!.user_version;
}

/** Brings the schema up to date, each step whole or not at all. Throws what SQLite throws. */
export function migrate(db: Database, migrations: readonly Migration[] = MIGRATIONS): void {
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
