import { assert, nearestWord, type TomlLiteral, typeName } from "../core/index.ts";
import type { SumCheck } from "./checks.ts";
import type { MachineFacts } from "./load.ts";
import { type ConfigProblem, formatKey, sortProblems } from "./problems.ts";
import { AGENT_BOOK, type Config } from "./schema.ts";
import { type ConfigBook, keyNamesOf, keysOf, type SchemaKey } from "./spec.ts";
import { parseText, positionAt, type TomlDocument } from "./toml-positions.ts";

export type ConfigResult<C = Config> =
  | { readonly ok: true; readonly config: C }
  | { readonly ok: false; readonly problems: readonly ConfigProblem[] };

/** Values by dotted name that override the file, as from the command line. */
export type Overrides = Readonly<Record<string, TomlLiteral>>;

/**
 * A configuration larger than this is refused unread. The sample file is 8 KiB; the worst text of
 * this size, thousands of empty sections, is read in 35 ms.
 */
export const CONFIG_BYTES_MAX = 64 * 1024;

export const TOO_LARGE = "is larger than 64 KiB";

/** Maximum problems to report for one file. */
const PROBLEMS_MAX = 100;

type Table = Readonly<Record<string, unknown>>;

type Report = (path: readonly string[], at: "key" | "value", what: string, instead: string) => void;

interface Reading {
  readonly book: ConfigBook;
  /** Keys of the book, then those of its named tables. */
  readonly keys: readonly SchemaKey[];
  readonly document: TomlDocument;
  readonly root: Table;
  readonly facts: MachineFacts;
  readonly report: Report;
  /** Whether the maximum number of problems is reached. */
  isFull(): boolean;
  /** Values by dotted name. */
  readonly values: Map<string, unknown>;
  /** Dotted names of the keys that the file or an override gives. */
  readonly given: Set<string>;
  /** Dotted names with an invalid value, which are not reported as missing. */
  readonly excused: Set<string>;
}

/**
 * Reads an agent's configuration. Reports all problems together, in the order of the file. Never
 * throws and does no I/O; `file` is the name used in problems.
 */
export function parseConfig(source: string, file: string, facts: MachineFacts): ConfigResult {
  return parseBook<Config>(AGENT_BOOK, source, file, facts);
}

/**
 * Like the function for agents, for any kind of file. `C` is the configuration that `book`
 * describes.
 */
export function parseBook<C>(
  book: ConfigBook,
  source: string,
  file: string,
  facts: MachineFacts,
  overrides: Overrides = {},
): ConfigResult<C> {
  if (source.length > CONFIG_BYTES_MAX) {
    return failed([
      { file, line: 0, column: 0, key: "", what: TOO_LARGE, instead: "name a TOML file" },
    ]);
  }
  const text = source.startsWith("\ufeff") ? ` ${source.slice(1)}` : source;
  const parsed = parseText(text, file);
  const { document } = parsed;
  const problems = [...parsed.problems];
  if (document === null) return failed(problems);

  const isFull = () => problems.length >= PROBLEMS_MAX;
  const report: Report = (path, at, what, instead) => {
    if (isFull()) return;
    const place = positionAt(text, offsetOf(document, path, at));
    problems.push({ file, ...place, key: formatKey(path), what, instead });
  };
  const { root } = document;
  const reading: Reading = {
    book,
    keys: [...book.keys, ...namedKeys(book, root)],
    document,
    root,
    facts,
    report,
    isFull,
    values: new Map(),
    given: new Set(),
    excused: new Set(),
  };
  for (const name of parsed.leftOut) excuse(reading, name);
  checkNames(reading);
  const { keys } = reading;
  for (const key of keys) readGiven(reading, key);
  for (const key of keys) override(reading, key, overrides[key.name]);
  for (const key of keys) if (key.spec.defaultValue.is !== "derived") fillIn(reading, key);
  for (const key of keys) if (key.spec.defaultValue.is === "derived") fillIn(reading, key);
  const config = freezeConfig(reading);
  runSumChecks(reading, config);
  return problems.length > 0 ? failed(problems) : { ok: true, config: config as C };
}

function failed(problems: readonly ConfigProblem[]): ConfigResult<never> {
  return { ok: false, problems: sortProblems(problems) };
}

/** Keys of the named tables in `root`. */
function namedKeys(book: ConfigBook, root: Table): SchemaKey[] {
  return Object.entries(book.named).flatMap(([section, named]) => {
    const tables = own(root, section);
    if (!isTable(tables)) return [];
    const names = Object.keys(tables).filter((name) => isTable(tables[name]));
    return names
      .slice(0, named.most)
      .filter((name) => named.nameKind.read(name).ok)
      .flatMap((name) => keysOf([section, name], named));
  });
}

/** Records that the file gives this key or section. */
function excuse({ excused, keys }: Reading, dotted: string): void {
  for (const { path, section, name } of keys) {
    if ([name, section, path.join(".")].includes(dotted)) excused.add(name);
  }
}

/** The offset of a key, else of the nearest table above it in the file, else of the first line. */
function offsetOf(document: TomlDocument, path: readonly string[], at: "key" | "value"): number {
  for (let depth = path.length; depth > 0; depth--) {
    const place = document.locate(path.slice(0, depth));
    if (place !== null) return depth === path.length ? place[at] : place.key;
  }
  return 0;
}

function isTable(value: unknown): value is Table {
  return (
    typeof value === "object" && value !== null && !Array.isArray(value) && !(value instanceof Date)
  );
}

function own(table: Table, name: string): unknown {
  return Object.hasOwn(table, name) ? table[name] : undefined;
}

/** Reports every name that is not in the schema. */
function checkNames(reading: Reading): void {
  const { sectionNames, named } = reading.book;
  for (const [name, value] of Object.entries(reading.root)) {
    if (Object.hasOwn(named, name)) checkNamed(reading, name, value);
    else if (sectionNames.includes(name)) checkSection(reading, [name], value);
    else if (isTable(value) || Array.isArray(value)) {
      const near = nearestWord(name, sectionNames);
      const list = sectionNames.map((section) => `[${section}]`).join(" ");
      const instead = near === null ? `this version has ${list}` : `did you mean [${near}]`;
      reading.report([name], "key", "unknown section", instead);
    } else reportUnknownKey(reading, [], name);
  }
}

/** Tables with names of their own. */
function checkNamed(reading: Reading, section: string, value: unknown): void {
  const { nameKind, nameExample, most } = reading.book.named[section];
  const header = `[${section}.${nameExample}]`;
  if (!isTable(value)) {
    const what = Array.isArray(value) ? "is a list of tables" : `is ${typeName(value)}`;
    reading.report([section], "key", `${what}, not named tables`, `write ${header}`);
    return;
  }
  const tables = Object.entries(value);
  if (tables.length > most) {
    reading.report([section], "key", `holds ${tables.length} tables`, `use at most ${most}`);
  }
  for (const [name, table] of tables.slice(0, most)) {
    const read = nameKind.read(name);
    if (!read.ok) reading.report([section, name], "key", read.what, `write ${header}`);
    else if (!isTable(table) && !Array.isArray(table)) {
      reading.report([section, name], "key", "is outside a table", `write it below ${header}`);
    } else checkSection(reading, [section, name], table);
  }
}

function checkSection(reading: Reading, table: readonly string[], value: unknown): void {
  if (!isTable(value)) {
    const what = Array.isArray(value) ? "is a list of tables" : `is ${typeName(value)}`;
    const instead = `write [${formatKey(table)}] and its keys below`;
    reading.report(table, "key", `${what}, not a section`, instead);
    excuse(reading, table.join("."));
    return;
  }
  const known = keyNamesOf(reading.book, table[0]);
  for (const key of Object.keys(value)) {
    if (!known.includes(key)) reportUnknownKey(reading, table, key);
  }
}

function reportUnknownKey(reading: Reading, table: readonly string[], name: string): void {
  if (reading.isFull()) return;
  const { book } = reading;
  const reason = own(book.removed, [...table, name].join("."));
  if (reason !== undefined) {
    reading.report([...table, name], "key", "was removed", String(reason));
    return;
  }
  const section = table[0] ?? null;
  const has = (other: string) => keyNamesOf(book, other).includes(name);
  const home = book.sectionNames.find((other) => other !== section && has(other));
  const known = section === null ? [] : keyNamesOf(book, section);
  const near = nearestWord(name, known);
  const where = section === null ? "unknown key outside any section" : "unknown key";
  if (near !== null) excuse(reading, [...table, near].join("."));
  reading.report([...table, name], "key", where, adviceForName(table, known, near, home));
}

function adviceForName(
  table: readonly string[],
  known: readonly string[],
  near: string | null,
  home: string | undefined,
): string {
  if (near !== null) return `did you mean ${near}`;
  if (home !== undefined) return `it belongs in [${home}]`;
  if (table.length === 0) return "write it below a [section] header";
  return `[${formatKey(table)}] has ${known.join(", ")}`;
}

/** Reads one key where the file gives it. */
function readGiven(reading: Reading, { spec, path, name }: SchemaKey): void {
  const table = tableAt(reading.root, path);
  const raw = table === null ? undefined : own(table, spec.key);
  if (raw === undefined) return;
  reading.given.add(name);
  const read = spec.kind.read(raw);
  if (read.ok) reading.values.set(name, read.value);
  else reading.report([...path, spec.key], "value", read.what, read.instead);
}

function tableAt(root: Table, path: readonly string[]): Table | null {
  let table: unknown = root;
  for (const part of path) {
    if (!isTable(table)) return null;
    table = own(table, part);
  }
  return isTable(table) ? table : null;
}

function override(reading: Reading, key: SchemaKey, raw: TomlLiteral | undefined): void {
  if (raw === undefined) return;
  const read = key.spec.kind.read(raw);
  reading.given.add(key.name);
  if (read.ok) reading.values.set(key.name, read.value);
  else reading.report([], "key", `${key.name} ${read.what}`, read.instead);
}

/** Fills in the default if the file does not set the key. */
function fillIn(reading: Reading, { spec, path, name }: SchemaKey): void {
  const { values, given } = reading;
  if (given.has(name) || reading.excused.has(name)) return;
  const { defaultValue } = spec;
  const missing = (what: string) => {
    const line = `${spec.key} = ${JSON.stringify(spec.example)}`;
    const instead = `write ${line} below [${formatKey(path)}]`;
    reading.report([...path, spec.key], "key", what, instead);
  };
  switch (defaultValue.is) {
    case "literal": {
      const read = spec.kind.read(defaultValue.literal);
      assert(read.ok, `the default of ${name} is allowed`);
      values.set(name, read.value);
      return;
    }
    case "unset":
      values.set(name, null);
      return;
    case "required":
      missing("is missing");
      return;
    case "derived": {
      if (defaultValue.needs.some((other) => !values.has(other))) return;
      const known = <Value>(other: string) => values.get(other) as Value;
      const value = defaultValue.from({ facts: reading.facts, value: known });
      if (value === undefined) missing("is missing and has no default on this machine");
      else values.set(name, value);
      return;
    }
    default:
      defaultValue satisfies never;
  }
}

function freezeConfig({ book, keys, values }: Reading): object {
  const config: Record<string, Record<string, unknown> | readonly unknown[]> = {};
  const tables = new Map<string, Record<string, unknown>>();
  for (const { path, field, name } of keys) {
    const table = path.join(".");
    if (!tables.has(table)) tables.set(table, path.length === 1 ? {} : { name: path[1] });
    tables.get(table)![field] = values.get(name);
  }
  for (const [name, table] of tables) {
    Object.freeze(table);
    if (!name.includes(".")) config[name] = table;
  }
  for (const section of Object.keys(book.named)) {
    const own = [...tables].filter(([name]) => name.startsWith(`${section}.`));
    config[section] = Object.freeze(own.map(([, table]) => table));
  }
  return Object.freeze(config);
}

/** Applies each rule over several keys if all of its keys are valid. */
function runSumChecks({ book, values, given, facts, report }: Reading, config: object): void {
  for (const check of book.checks as readonly SumCheck<object>[]) {
    if (!check.keys.every((name) => values.has(name))) continue;
    const found = check.find(config, facts, (name) => values.get(name));
    if (found === null) continue;
    const blamed = check.keys.find((name) => given.has(name)) ?? check.keys[0];
    report(found.at ?? blamed.split("."), "value", found.what, found.instead);
  }
}
