import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import { mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { getTableConfig } from "drizzle-orm/sqlite-core";
import { ledger } from "../../../../src/store/index/index.ts";
import { tempDir } from "../../../support/index.ts";
import { contentsOf, holdOf, LEDGER_FILE, openLedger, readLedger } from "./ledger-kit.ts";

const FOLDER = join(import.meta.dir, "../../../../src/store/index/retention/migrations");
const NAMES = readdirSync(FOLDER).sort();
const folders = tempDir();

/** The schema as it stands in a file. */
function schemaOf(path: string): { version: number; sql: string[] } {
  using db = new Database(path);
  const version = db.query<{ user_version: number }, []>("PRAGMA user_version").get()!.user_version;
  type Entry = { sql: string | null };
  const entries = db.query<Entry, []>("SELECT sql FROM sqlite_schema ORDER BY name").all();
  return { version, sql: entries.flatMap(({ sql }) => (sql === null ? [] : [sql])) };
}

function madeBy(path: string, count: number): void {
  using db = new Database(path);
  for (const name of NAMES.slice(0, count)) db.run(readFileSync(join(FOLDER, name), "utf8"));
  db.run(`PRAGMA user_version = ${count}`);
}

test("every file of the folder is applied, in order", async () => {
  expect(NAMES.map((name) => Number.parseInt(name, 10))).toEqual([...NAMES.keys()]);
  const folder = join(folders, "new");
  const ledger = await openLedger(folder);
  expect(await ledger.close(5_000)).toBe(true);
  madeBy(join(folders, "by-hand.sqlite"), NAMES.length);
  expect(schemaOf(join(folder, LEDGER_FILE))).toEqual(schemaOf(join(folders, "by-hand.sqlite")));
});

test("a ledger of each older version is brought up to date", async () => {
  for (let version = 0; version < NAMES.length; version++) {
    const folder = join(folders, `from-${version}`);
    mkdirSync(folder);
    madeBy(join(folder, LEDGER_FILE), version);
    const ledger = await openLedger(folder);
    expect(ledger.state.setAside).toBeNull();
    ledger.putHold(holdOf(1));
    expect(await ledger.close(5_000)).toBe(true);
    expect(schemaOf(join(folder, LEDGER_FILE)).version).toBe(NAMES.length);
    expect((await readLedger(folder)).holds).toEqual(contentsOf([1]).holds);
  }
});

test("a row from before leases had grants keeps its seal, and is without one", async () => {
  const folder = join(folders, "grants");
  const ledger = await openLedger(folder);
  for (const purges of [false, true]) ledger.putHold(holdOf(5, { id: purges ? 2 : 5, purges }));
  expect(await ledger.close(5_000)).toBe(true);
  using db = new Database(join(folder, LEDGER_FILE));
  type Row = { purges: number; seal: string };
  const rows = db.query<Row, []>("SELECT purges, hex(seal) AS seal FROM holds ORDER BY id").all();
  // What a version without the column wrote for the hold that is without a grant.
  expect(rows[1]).toEqual({ purges: 0, seal: "97637A77BF465207" });
  expect(rows[0]!.purges).toBe(1);
});

test("drizzle's tables are those that the files make", () => {
  const path = join(folders, "for-drizzle.sqlite");
  madeBy(path, NAMES.length);
  using db = new Database(path);
  for (const table of [ledger]) {
    const { name, columns } = getTableConfig(table);
    type Column = { name: string; type: string; notnull: number; pk: number };
    const made = db.query<Column, []>(`PRAGMA table_info(${name})`).all();
    expect(
      made.map((column) => [
        column.name,
        column.type,
        column.pk > 0,
        column.notnull === 1 || column.pk > 0,
      ]),
    ).toEqual(
      columns.map((column) => [
        column.name,
        column.getSQLType().toUpperCase(),
        column.primary,
        column.notNull,
      ]),
    );
  }
});
