/**
 * Where each key stands in a TOML text. smol-toml gives positions for syntax errors only, so this
 * walks the raw text beside it: tolerant, never throwing, and right wherever the text is valid
 * TOML. Values are skipped, not understood.
 */
import { parse, TomlError, type TomlTable } from "smol-toml";
import { messageOf } from "../core/index.ts";
import { type ConfigProblem, formatKey } from "./problems.ts";

/** One thing at the top level of a file: a table header or a `key = value`. */
export interface Statement {
  readonly kind: "table" | "array-table" | "pair" | "broken";
  /** Full path, the table's included; cut after 5 parts. */
  readonly path: readonly string[];
  /** Offsets: of the first character, of the value (of a header: its key), and after the last. */
  readonly start: number;
  readonly valueStart: number;
  readonly end: number;
}

export interface KeyPlace {
  readonly key: number;
  /** Offset of the value; of the key itself for tables. */
  readonly value: number;
}

export interface KeyMap {
  readonly statements: readonly Statement[];
  /** First place of a path, at most 4 deep; what stands inside an array has no path. */
  locate(path: readonly string[]): KeyPlace | null;
}

interface KeyPart {
  readonly name: string;
  readonly start: number;
}

interface Scanner {
  readonly text: string;
  at: number;
  readonly places: Map<string, KeyPlace>;
}

/** Deeper keys are passed over but not told apart: no key of ours is deeper than two. */
const PLACE_DEPTH_MAX = 4;
const PATH_PARTS_MAX = PLACE_DEPTH_MAX + 1;
const NESTING_MAX = 64;
const BARE_KEY = /[A-Za-z0-9_-]*/y;
const BLANKS = /[ \t]*/y;
const PLAIN_VALUE = /[^\n\r#,\]}]*/y;

/** Walks `text` once; linear in its length. */
export function mapKeys(text: string): KeyMap {
  const scanner: Scanner = { text, at: 0, places: new Map() };
  const statements: Statement[] = [];
  let table: readonly string[] = [];
  for (;;) {
    skipVoid(scanner);
    if (scanner.at >= text.length) break;
    const statement = text[scanner.at] === "[" ? scanHeader(scanner) : scanPair(scanner, table);
    if (statement.kind === "table" || statement.kind === "array-table") table = statement.path;
    statements.push(statement);
    skipLine(scanner);
  }
  return {
    statements,
    locate: (path) => scanner.places.get(placeId(path)) ?? null,
  };
}

/** Lines from 1, columns in characters from 1. */
export function positionsOf(text: string): (offset: number) => { line: number; column: number } {
  const starts = [0];
  for (let at = text.indexOf("\n"); at !== -1; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
  return (offset) => {
    let low = 0;
    let high = starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle]! <= offset) low = middle;
      else high = middle - 1;
    }
    return { line: low + 1, column: offset - starts[low]! + 1 };
  };
}

function placeId(path: readonly string[]): string {
  return JSON.stringify(path);
}

function remember(scanner: Scanner, path: readonly string[], place: KeyPlace): void {
  if (path.length > PLACE_DEPTH_MAX) return;
  const id = placeId(path);
  if (!scanner.places.has(id)) scanner.places.set(id, place);
}

/** Remembers every table that a dotted key opens on its way, then the key itself. */
function rememberParts(
  scanner: Scanner,
  base: readonly string[],
  parts: KeyPart[],
  value: number,
): void {
  const depth = Math.min(parts.length, PLACE_DEPTH_MAX - base.length + 1);
  for (let i = 0; i < depth; i++) {
    const path = [...base, ...parts.slice(0, i + 1).map((part) => part.name)];
    const key = parts[i]!.start;
    remember(scanner, path, { key, value: i === parts.length - 1 ? value : key });
  }
}

function pathOf(base: readonly string[], parts: readonly KeyPart[]): string[] {
  return [...base, ...parts.map((part) => part.name)].slice(0, PATH_PARTS_MAX);
}

/** Moves over what the sticky `pattern` matches; it matches the empty string too. */
function pass(scanner: Scanner, pattern: RegExp): void {
  pattern.lastIndex = scanner.at;
  pattern.test(scanner.text);
  scanner.at = pattern.lastIndex;
}

function scanHeader(scanner: Scanner): Statement {
  const start = scanner.at;
  const isArray = scanner.text.startsWith("[[", start);
  scanner.at += isArray ? 2 : 1;
  const parts = scanKey(scanner);
  const valueStart = parts[0]?.start ?? start;
  const closed = scanner.text.startsWith(isArray ? "]]" : "]", scanner.at);
  if (!closed || parts.length === 0) return brokenAt(scanner, start, parts);
  scanner.at += isArray ? 2 : 1;
  rememberParts(scanner, [], parts, parts[parts.length - 1]!.start);
  const path = pathOf([], parts);
  return { kind: isArray ? "array-table" : "table", path, start, valueStart, end: scanner.at };
}

function scanPair(scanner: Scanner, table: readonly string[]): Statement {
  const start = scanner.at;
  const parts = scanKey(scanner);
  if (parts.length === 0 || scanner.text[scanner.at] !== "=") {
    return brokenAt(scanner, start, parts, table);
  }
  scanner.at++;
  skipBlanks(scanner);
  const valueStart = scanner.at;
  rememberParts(scanner, table, parts, valueStart);
  const path = pathOf(table, parts);
  skipValue(scanner, path, NESTING_MAX);
  return { kind: "pair", path, start, valueStart, end: scanner.at };
}

function brokenAt(
  scanner: Scanner,
  start: number,
  parts: readonly KeyPart[],
  table: readonly string[] = [],
): Statement {
  const path = pathOf(table, parts);
  if (scanner.at === start) scanner.at++;
  return { kind: "broken", path, start, valueStart: start, end: scanner.at };
}

/** A dotted key (its first parts), up to whatever follows it; empty where none stands here. */
function scanKey(scanner: Scanner): KeyPart[] {
  const parts: KeyPart[] = [];
  const keep = (name: string, start: number) => {
    if (parts.length < PATH_PARTS_MAX) parts.push({ name, start });
  };
  for (;;) {
    skipBlanks(scanner);
    const start = scanner.at;
    const first = scanner.text[start];
    if (first === '"' || first === "'") {
      skipString(scanner);
      keep(unquoteKey(scanner.text.slice(start, scanner.at)), start);
    } else {
      pass(scanner, BARE_KEY);
      if (scanner.at === start) return parts;
      keep(scanner.text.slice(start, scanner.at), start);
    }
    skipBlanks(scanner);
    if (scanner.text[scanner.at] !== ".") return parts;
    scanner.at++;
  }
}

/** A quoted key without its quotes. Escapes are left to the TOML parser, so that both agree. */
function unquoteKey(quoted: string): string {
  const inside = quoted.slice(1, -1);
  if (quoted.startsWith("'") || !inside.includes("\\")) return inside;
  try {
    return String(parse(`key = ${quoted}`).key);
  } catch {
    return inside;
  }
}

function skipBlanks(scanner: Scanner): void {
  pass(scanner, BLANKS);
}

/** To the line feed that ends this line, or the end. */
function skipLine(scanner: Scanner): void {
  const feed = scanner.text.indexOf("\n", scanner.at);
  scanner.at = feed === -1 ? scanner.text.length : feed;
}

/** Blanks, line ends and comments. */
function skipVoid(scanner: Scanner): void {
  for (;;) {
    const next = scanner.text[scanner.at];
    if (next === "#") skipLine(scanner);
    else if (next === " " || next === "\t" || next === "\n" || next === "\r") scanner.at++;
    else return;
  }
}

/** A string of any of the four forms. A one-line string that is not closed ends with its line. */
function skipString(scanner: Scanner): void {
  const { text } = scanner;
  const quote = text[scanner.at]!;
  const isLong = text.startsWith(quote.repeat(3), scanner.at);
  scanner.at += isLong ? 3 : 1;
  for (; scanner.at < text.length; scanner.at++) {
    const next = text[scanner.at]!;
    if (next === "\\" && quote === '"') scanner.at++;
    else if (!isLong && next === "\n") return;
    else if (next === quote && (!isLong || text.startsWith(quote.repeat(3), scanner.at))) {
      scanner.at += isLong ? 3 : 1;
      // Up to two quotes may stand directly before the closing three.
      for (let extra = 0; isLong && extra < 2 && text[scanner.at] === quote; extra++) scanner.at++;
      return;
    }
  }
  scanner.at = text.length;
}

/** `path` is null inside arrays, where nothing is remembered. */
function skipValue(scanner: Scanner, path: readonly string[] | null, nesting: number): void {
  const first = scanner.text[scanner.at];
  if (first === '"' || first === "'") skipString(scanner);
  else if (nesting > 0 && first === "[") skipArray(scanner, nesting);
  else if (nesting > 0 && first === "{") skipInlineTable(scanner, path, nesting);
  else pass(scanner, PLAIN_VALUE);
}

function skipArray(scanner: Scanner, nesting: number): void {
  scanner.at++;
  for (;;) {
    skipVoid(scanner);
    const start = scanner.at;
    if (start >= scanner.text.length) return;
    if (scanner.text[start] === "]") {
      scanner.at++;
      return;
    }
    skipValue(scanner, null, nesting - 1);
    if (!skipComma(scanner, start)) return;
  }
}

function skipInlineTable(scanner: Scanner, path: readonly string[] | null, nesting: number): void {
  scanner.at++;
  for (;;) {
    skipVoid(scanner);
    const start = scanner.at;
    if (start >= scanner.text.length) return;
    if (scanner.text[start] === "}") {
      scanner.at++;
      return;
    }
    const parts = scanKey(scanner);
    if (parts.length === 0 || scanner.text[scanner.at] !== "=") return;
    scanner.at++;
    skipBlanks(scanner);
    if (path !== null) rememberParts(scanner, path, parts, scanner.at);
    skipValue(scanner, path === null ? null : pathOf(path, parts), nesting - 1);
    if (!skipComma(scanner, start)) return;
  }
}

/** After an element: over a comma if one is there. False where nothing moved: no loop stands. */
function skipComma(scanner: Scanner, start: number): boolean {
  skipVoid(scanner);
  if (scanner.text[scanner.at] === ",") scanner.at++;
  return scanner.at > start;
}

/** A TOML text, parsed as far as its syntax allows. */
export interface ParsedText {
  /** Null where no part of the file can be trusted to mean what it says. */
  readonly root: TomlTable | null;
  readonly problems: readonly ConfigProblem[];
  /** Dotted names of keys whose lines were left out as broken. */
  readonly leftOut: ReadonlySet<string>;
  readonly keys: KeyMap;
  readonly positionAt: (offset: number) => { line: number; column: number };
}

/** Inline tables and arrays deeper than this are refused. */
const REPAIR_NESTING_MAX = 32;
/** After so many lines broken or given twice, the rest is left for the next run. */
const REPAIRS_MAX = 20;
/** In larger files the first syntax error ends the reading: parsing again would take too long. */
const RETRY_CHARACTERS_MAX = 16 * 1024;
/** Values people forget to quote: `64GiB`, `30s`, `lru`, `/run/x.sock`, `127.0.0.1:7171`. */
const UNQUOTED = /^[A-Za-z0-9_./:-]+$/;

/**
 * Parses `text`. A broken `key = value` line is reported and left out, so that whatever else is
 * wrong is found in the same run; a broken header or an unclosed string ends the reading, for what
 * follows would be reported under the wrong table.
 */
export function parseText(text: string, file: string): ParsedText {
  const keys = mapKeys(text);
  const positionAt = positionsOf(text);
  const problems: ConfigProblem[] = [];
  const leftOut = new Set<string>();
  const ended = (root: TomlTable | null) => ({ root, problems, leftOut, keys, positionAt });
  const report = (offset: number, key: string, what: string, instead: string) =>
    problems.push({ file, ...positionAt(offset), key, what, instead });

  const twice = findDuplicates(keys.statements, REPAIRS_MAX);
  for (const { statement, first } of twice) {
    const { line } = positionAt(first.start);
    const [what, instead] =
      statement.kind === "table"
        ? [`the section is opened twice, first on line ${line}`, "move its keys into one place"]
        : [`is given twice, first on line ${line}`, "keep one of the two"];
    report(statement.start, formatKey(statement.path), what, instead);
  }
  const isHopeless =
    twice.length >= REPAIRS_MAX || twice.some(({ statement }) => statement.kind === "table");
  if (isHopeless) return ended(null);

  const endOfText = text.trimEnd().length;
  let left = twice.reduce((rest, { statement }) => blank(rest, statement), text);
  for (;;) {
    const outcome = tryParse(left);
    if (outcome.ok) return ended(outcome.root);
    const offset = Math.min(offsetOf(left, outcome), text.length);
    const statement = statementAt(keys.statements, offset);
    // What is not closed is noticed at the end of the file; it is to be mended where it begins.
    const atEnd = statement?.kind === "pair" && offset >= endOfText;
    const key = statement === null ? "" : formatKey(statement.path);
    report(atEnd ? statement.valueStart : offset, key, outcome.what, adviceFor(text, statement));
    const canGoOn =
      statement !== null &&
      problems.length < REPAIRS_MAX &&
      text.length <= RETRY_CHARACTERS_MAX &&
      // Outside any section, a line without an equals sign says that this is no TOML at all.
      (statement.kind === "pair" || statement.path.length > 1) &&
      isOneLinePair(text, statement);
    const rest = canGoOn ? blank(left, lineOf(text, statement)) : left;
    if (rest === left) return ended(null);
    leftOut.add(key);
    left = rest;
  }
}

type Outcome =
  | { readonly ok: true; readonly root: TomlTable }
  | { readonly ok: false; readonly what: string; readonly line: number; readonly column: number };

function tryParse(text: string): Outcome {
  try {
    return {
      ok: true,
      root: parse(text, { integersAsBigInt: "asNeeded", maxDepth: REPAIR_NESTING_MAX }),
    };
  } catch (thrown) {
    if (!(thrown instanceof TomlError)) {
      return { ok: false, what: `cannot be parsed: ${messageOf(thrown)}`, line: 1, column: 1 };
    }
    const sentence = thrown.message.split("\n")[0]!.replace(/^Invalid TOML document: /, "");
    return {
      ok: false,
      what: `no valid TOML: ${sentence}`,
      line: thrown.line,
      column: thrown.column,
    };
  }
}

function offsetOf(text: string, place: { line: number; column: number }): number {
  let start = 0;
  for (let line = 1; line < place.line; line++) start = text.indexOf("\n", start) + 1;
  return start + place.column - 1;
}

/** The first `most` keys and tables that come a second time. */
function findDuplicates(
  statements: readonly Statement[],
  most: number,
): { statement: Statement; first: Statement }[] {
  const seen = new Map<string, Statement>();
  const found: { statement: Statement; first: Statement }[] = [];
  for (const statement of statements) {
    // Deeper paths may have been cut, and below an array of tables the same key is a new one.
    if (statement.kind === "array-table") break;
    if (statement.kind === "broken" || statement.path.length > 2) continue;
    const id = `${statement.kind} ${JSON.stringify(statement.path)}`;
    const first = seen.get(id);
    if (first === undefined) seen.set(id, statement);
    else if (found.push({ statement, first }) >= most) break;
  }
  return found;
}

function statementAt(statements: readonly Statement[], offset: number): Statement | null {
  let found: Statement | null = null;
  for (const statement of statements) {
    if (statement.start > offset) break;
    found = statement;
  }
  return found;
}

function lineOf(text: string, statement: Statement): { start: number; end: number } {
  const feed = text.indexOf("\n", statement.start);
  return { start: statement.start, end: feed === -1 ? text.length : feed };
}

/** Whether leaving out the line of `statement` leaves the rest as it was meant. */
function isOneLinePair(text: string, statement: Statement): boolean {
  const { start, end } = lineOf(text, statement);
  const line = text.slice(start, end);
  if (line.startsWith("[") || /"""|'''/.test(line)) return false;
  const opened = line.replace(/[^[{]/g, "").length;
  const closed = line.replace(/[^\]}]/g, "").length;
  return opened === closed && statement.end <= end;
}

/** `text` with one stretch turned to spaces: line and column of everything else stay. */
function blank(text: string, { start, end }: { start: number; end: number }): string {
  return text.slice(0, start) + text.slice(start, end).replace(/[^\r\n]/g, " ") + text.slice(end);
}

function adviceFor(text: string, statement: Statement | null): string {
  if (statement === null) return "write key = value lines below [section] headers";
  if (statement.kind !== "pair") {
    return statement.path.length > 0 && text[statement.start] !== "["
      ? "write key = value"
      : "write [section] on one line and key = value lines below it";
  }
  const value = text.slice(statement.valueStart, statement.end).trim();
  const name = formatKey(statement.path.slice(-1));
  if (value === "") return `write a value after ${name} =, or remove the line`;
  if (/^(true|false)$/i.test(value)) return `write ${name} = ${value.toLowerCase()}`;
  if (value.length <= 64 && UNQUOTED.test(value)) return `put it in quotes: ${name} = "${value}"`;
  return "check quotes, brackets and commas of this value";
}
