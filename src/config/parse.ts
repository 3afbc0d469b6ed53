import { assert } from "../core/index.ts";
import { SUM_CHECKS } from "./checks.ts";
import type { MachineFacts } from "./facts.ts";
import { type Kind, typeName } from "./kinds.ts";
import { type ConfigProblem, formatKey, sortProblems } from "./problems.ts";
import { type Config, keyNamesOf, SCHEMA_KEYS, type SchemaKey, SECTION_NAMES } from "./schema.ts";
import { nearestWord } from "./suggest.ts";
import { type ParsedText, parseText } from "./syntax.ts";

export type ConfigResult =
  | { readonly ok: true; readonly config: Config }
  | { readonly ok: false; readonly problems: readonly ConfigProblem[] };

/**
 * A configuration larger than this is refused unread. The sample file is 8 KiB; the worst text of
 * this size, thousands of empty sections, is read in 35 ms.
 */
export const CONFIG_BYTES_MAX = 64 * 1024;
export const TOO_LARGE = "is larger than 64 KiB";
/** So many problems are reported at once; a file with more is not a configuration. */
const PROBLEMS_MAX = 100;

type Table = Readonly<Record<string, unknown>>;
type Report = (path: readonly string[], at: "key" | "value", what: string, instead: string) => void;

interface Reading {
  readonly text: ParsedText;
  readonly root: Table;
  readonly facts: MachineFacts;
  readonly report: Report;
  /** Whether so much is wrong that nothing more is reported. */
  isFull(): boolean;
  /** Values by dotted name. */
  readonly values: Map<string, unknown>;
  /** The names under which the file gave a value, by dotted name of the schema key. */
  readonly given: Map<string, string>;
  /** Dotted names that were meant but came out wrong: they are not called missing as well. */
  readonly excused: Set<string>;
}

/**
 * Reads a configuration. All problems are reported at once, in the order of the file. Never throws
 * and reads nothing but its arguments; `file` is only named in problems.
 */
export function parseConfig(source: string, file: string, facts: MachineFacts): ConfigResult {
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
  const reading: Reading = {
    text,
    root: text.root,
    facts,
    report,
    isFull,
    values: new Map(),
    given: new Map(),
    excused: new Set(),
  };
  for (const name of text.leftOut) excuse(reading, name);
  checkNames(reading);
  for (const key of SCHEMA_KEYS) readGiven(reading, key);
  for (const key of SCHEMA_KEYS) if (key.spec.standard.is !== "derived") fillIn(reading, key);
  for (const key of SCHEMA_KEYS) if (key.spec.standard.is === "derived") fillIn(reading, key);
  const config = freezeConfig(reading.values);
  runSumChecks(reading, config);
  return problems.length > 0 ? failed(problems) : { ok: true, config };
}

function failed(problems: readonly ConfigProblem[]): ConfigResult {
  return { ok: false, problems: sortProblems(problems) };
}

/** Takes note that the file meant to give this key, under either of its names, or this section. */
function excuse({ excused }: Reading, dotted: string): void {
  for (const { section, name, spec } of SCHEMA_KEYS) {
    if ([name, section, `${section}.${spec.also?.key}`].includes(dotted)) excused.add(name);
  }
}

/** The place of a key, else of the nearest table above it in the file, else the first line. */
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

/** Refuses every name that is not in the schema. */
function checkNames(reading: Reading): void {
  for (const [name, value] of Object.entries(reading.root)) {
    if (SECTION_NAMES.includes(name)) checkSection(reading, name, value);
    else if (isTable(value) || Array.isArray(value)) {
      const near = nearestWord(name, SECTION_NAMES);
      const list = SECTION_NAMES.map((section) => `[${section}]`).join(" ");
      const instead = near === null ? `this version has ${list}` : `did you mean [${near}]`;
      reading.report([name], "key", "unknown section", instead);
    } else reportUnknownKey(reading, null, name);
  }
}

function checkSection(reading: Reading, section: string, value: unknown): void {
  if (!isTable(value)) {
    const what = Array.isArray(value) ? "is a list of tables" : `is ${typeName(value)}`;
    const instead = `write [${section}] and its keys below`;
    reading.report([section], "key", `${what}, not a section`, instead);
    excuse(reading, section);
    return;
  }
  const known = keyNamesOf(section);
  for (const key of Object.keys(value)) {
    if (!known.includes(key)) reportUnknownKey(reading, section, key);
  }
}

function reportUnknownKey(reading: Reading, section: string | null, name: string): void {
  if (reading.isFull()) return;
  const home = SECTION_NAMES.find((other) => other !== section && keyNamesOf(other).includes(name));
  const near = section === null ? null : nearestWord(name, keyNamesOf(section));
  const path = section === null ? [name] : [section, name];
  const where = section === null ? "unknown key outside any section" : "unknown key";
  if (near !== null) excuse(reading, `${section}.${near}`);
  reading.report(path, "key", where, adviceForName(section, near, home));
}

function adviceForName(
  section: string | null,
  near: string | null,
  home: string | undefined,
): string {
  if (near !== null) return `did you mean ${near}`;
  if (home !== undefined) return `it belongs in [${home}]`;
  if (section === null) return "write it below a [section] header";
  return `[${section}] has ${keyNamesOf(section).join(", ")}`;
}

/** Reads one key where the file gives it. */
function readGiven(reading: Reading, key: SchemaKey): void {
  const { spec, section, name } = key;
  const table = own(reading.root, section);
  if (!isTable(table)) return;
  const also = spec.also;
  const first = own(table, spec.key);
  const second = also === undefined ? undefined : own(table, also.key);
  if (also !== undefined && first !== undefined && second !== undefined) {
    reading.given.set(name, spec.key);
    const [path, other] = laterOf(reading.text, section, spec.key, also.key);
    reading.report(path, "key", `says the same as ${section}.${other}`, "keep one of the two");
    return;
  }
  if (first !== undefined) readOne(reading, key, spec.key, spec.kind, first);
  else if (also !== undefined && second !== undefined)
    readOne(reading, key, also.key, also.kind, second);
}

function laterOf(text: ParsedText, section: string, a: string, b: string): [string[], string] {
  const offset = (name: string) => text.keys.locate([section, name])?.key ?? 0;
  return offset(a) > offset(b) ? [[section, a], b] : [[section, b], a];
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
  else reading.report([key.section, as], "value", read.what, read.instead);
}

/** Puts the default where the file is silent. */
function fillIn(reading: Reading, { spec, section, name }: SchemaKey): void {
  const { values, given } = reading;
  if (given.has(name) || reading.excused.has(name)) return;
  const { standard } = spec;
  const missing = (what: string) => {
    const instead = `write ${spec.key} = ${JSON.stringify(spec.example)} below [${section}]`;
    reading.report([section, spec.key], "key", what, instead);
  };
  switch (standard.is) {
    case "literal": {
      const read = spec.kind.read(standard.literal);
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
      if (standard.needs.some((other) => !values.has(other))) return;
      const known = <Value>(other: string) => values.get(other) as Value;
      const value = standard.from({ facts: reading.facts, value: known });
      if (value === undefined) missing("is missing and cannot be worked out here");
      else values.set(name, value);
      return;
    }
    default:
      standard satisfies never;
  }
}

function freezeConfig(values: ReadonlyMap<string, unknown>): Config {
  const config: Record<string, Record<string, unknown>> = {};
  for (const { section, field, name } of SCHEMA_KEYS) {
    config[section] ??= {};
    config[section][field] = values.get(name);
  }
  for (const section of Object.values(config)) Object.freeze(section);
  return Object.freeze(config) as Config;
}

/** The rules over several keys, each where all of its keys are right in themselves. */
function runSumChecks({ values, given, facts, report }: Reading, config: Config): void {
  for (const check of SUM_CHECKS) {
    if (!check.keys.every((name) => values.has(name))) continue;
    const found = check.find(config, facts);
    if (found === null) continue;
    const blamed = check.keys.find((name) => given.has(name)) ?? check.keys[0]!;
    const [section, key] = blamed.split(".") as [string, string];
    report([section, given.get(blamed) ?? key], "value", found.what, found.instead);
  }
}
