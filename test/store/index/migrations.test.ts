import { Database } from "bun:sqlite";
import { expect, test } from "bun:test";
import { mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { getTableConfig } from "drizzle-orm/sqlite-core";
import { namespaces, run } from "../../../src/store/index/index.ts";
import { tempDir } from "../../support/index.ts";
import { INDEX_FILE, loadRows, openIndex, rowOf, rowsOf } from "./index-kit.ts";

const FOLDER = join(import.meta.dir, "../../../src/store/index/store/migrations");
const NAMES = readdirSync(FOLDER).sort();
const folders = tempDir();

/** The schema as it stands in a file: what each version's files made, and nothing else. */
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
  const index = await openIndex(folder);
  expect(await index.close(5_000)).toBe(true);
  madeBy(join(folders, "by-hand.sqlite"), NAMES.length);
  expect(schemaOf(join(folder, INDEX_FILE))).toEqual(schemaOf(join(folders, "by-hand.sqlite")));
});

test("an index of each older version is brought up to date", async () => {
  for (let version = 0; version < NAMES.length; version++) {
    const folder = join(folders, `from-${version}`);
    mkdirSync(folder);
    madeBy(join(folder, INDEX_FILE), version);
    const index = await openIndex(folder);
    expect(index.state.setAside).toBeNull();
    index.put(rowOf(1));
    expect(await index.close(5_000)).toBe(true);
    expect(schemaOf(join(folder, INDEX_FILE)).version).toBe(NAMES.length);
    await using again = await openIndex(folder);
    expect(await loadRows(again)).toEqual(rowsOf([1]));
  }
});

test("drizzle's tables are those that the files make", () => {
  const path = join(folders, "for-drizzle.sqlite");
  madeBy(path, NAMES.length);
  using db = new Database(path);
  for (const table of [namespaces, run]) {
    const { name, columns, primaryKeys, uniqueConstraints } = getTableConfig(table);
    type Column = { name: string; type: string; notnull: number; pk: number };
    const made = db.query<Column, []>(`PRAGMA table_info(${name})`).all();
    const key = primaryKeys[0]?.columns ?? columns.filter((column) => column.primary);
    expect(made.filter(({ pk }) => pk > 0).map((column) => column.name)).toEqual(
      key.map((column) => column.name),
    );
    expect(
      made.map((column) => [column.name, column.type, column.notnull === 1 || column.pk > 0]),
    ).toEqual(
      columns.map((column) => [column.name, column.getSQLType().toUpperCase(), column.notNull]),
    );
    const unique = `SELECT count(*) AS count FROM pragma_index_list('${name}') WHERE origin = 'u'`;
    const { count } = db.query<{ count: number }, []>(unique).get()!;
    expect(count).toBe(uniqueConstraints.length);
  }
});
