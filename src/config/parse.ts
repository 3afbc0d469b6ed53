import { assert, nearestWord } from "../core/index.ts";
import type { SumCheck } from "./checks.ts";
import { type Kind, type TomlLiteral, typeName } from "./kinds.ts";
import type { MachineFacts } from "./load.ts";
import { type ConfigProblem, formatKey, sortProblems } from "./problems.ts";
import { AGENT_BOOK, type Config } from "./schema.ts";
import { type ConfigBook, keyNamesOf, keysOf, type SchemaKey } from "./spec.ts";
import { type ParsedText, parseText } from "./toml-positions.ts";

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
  readonly text: ParsedText;
  readonly root: Table;
  readonly facts: MachineFacts;
  readonly report: Report;
  /** Whether the maximum number of problems is reached. */
  isFull(): boolean;
  /** Values by dotted name. */
  readonly values: Map<string, unknown>;
  /** The names under which the file gave a value, by dotted name of the schema key. */
  readonly given: Map<string, string>;
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
  const text = parseText(source.startsWith("\ufeff") ? ` ${source.slice(1)}` : source, file);
  const problems = [...text.problems];
  if (text.root === null) return failed(problems);

  const isFull = () => problems.length >= PROBLEMS_MAX;
  const report: Report = (path, at, what, instead) => {
    if (isFull()) return;
    const place = placeOf(text, path, at);
    problems.push({ file, ...place, key: formatKey(path), what, instead });
  };
  const { root } = text;
  const reading: Reading = {
    book,
    keys: [...book.keys, ...namedKeys(book, root)],
    text,
    root,
    facts,
    report,
    isFull,
    values: new Map(),
    given: new Map(),
    excused: new Set(),
  };
  for (const name of text.leftOut) excuse(reading, name);
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

/** Records that the file gives this key, under either of its names, or this section. */
function excuse({ excused, keys }: Reading, dotted: string): void {
  for (const { path, section, name, spec } of keys) {
    const table = path.join(".");
    if ([name, section, table, `${table}.${spec.also?.key}`].includes(dotted)) excused.add(name);
  }
}

/** The position of a key, else of the nearest table above it in the file, else the first line. */
function placeOf(text: ParsedText, path: readonly string[], at: "key" | "value") {
  for (let depth = path.length; depth > 0; depth--) {
    const place = text.keys.locate(path.slice(0, depth));
    if (place !== null) return text.positionAt(depth === path.length ? place[at] : place.key);
  }
  return { line: 1, column: 1 };
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
  const { nameKind, nameExample, most } = reading.book.named[section]!;
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
  const known = keyNamesOf(reading.book, table[0]!);
  for (const key of Object.keys(value)) {
    if (!known.includes(key)) reportUnknownKey(reading, table, key);
  }
}

function reportUnknownKey(reading: Reading, table: readonly string[], name: string): void {
  if (reading.isFull()) return;
  const { book } = reading;
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
function readGiven(reading: Reading, key: SchemaKey): void {
  const { spec, path: place, name } = key;
  const table = tableAt(reading.root, place);
  if (table === null) return;
  const also = spec.also;
  const first = own(table, spec.key);
  const second = also === undefined ? undefined : own(table, also.key);
  if (also !== undefined && first !== undefined && second !== undefined) {
    reading.given.set(name, spec.key);
    const [path, other] = laterOf(reading.text, place, spec.key, also.key);
    const same = formatKey([...place, other]);
    reading.report(path, "key", `duplicates ${same}`, "keep one of the two");
    return;
  }
  if (first !== undefined) readOne(reading, key, spec.key, spec.kind, first);
  else if (also !== undefined && second !== undefined)
    readOne(reading, key, also.key, also.kind, second);
}

function tableAt(root: Table, path: readonly string[]): Table | null {
  let table: unknown = root;
  for (const part of path) {
    if (!isTable(table)) return null;
    table = own(table, part);
  }
  return isTable(table) ? table : null;
}

type Path = readonly string[];

function laterOf(text: ParsedText, table: Path, a: string, b: string): [Path, string] {
  const offset = (name: string) => text.keys.locate([...table, name])?.key ?? 0;
  return offset(a) > offset(b) ? [[...table, a], b] : [[...table, b], a];
}

function readOne(
  reading: Reading,
  key: SchemaKey,
  as: string,
  kind: Kind<unknown>,
  raw: unknown,
): void {
  reading.given.set(key.name, as);
  const read = kind.read(raw);
  if (read.ok) reading.values.set(key.name, read.value);
  else reading.report([...key.path, as], "value", read.what, read.instead);
}

function override(reading: Reading, key: SchemaKey, raw: TomlLiteral | undefined): void {
  if (raw === undefined) return;
  const read = key.spec.kind.read(raw);
  reading.given.set(key.name, key.spec.key);
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
    const found = check.find(config, facts);
    if (found === null) continue;
    const blamed = check.keys.find((name) => given.has(name)) ?? check.keys[0]!;
    const [section, key] = blamed.split(".") as [string, string];
    const place = found.at ?? [section, given.get(blamed) ?? key];
    report(place, "value", found.what, found.instead);
  }
}
