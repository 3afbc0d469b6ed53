/**
 * Positions of the keys in a TOML text. smol-toml reports positions only for syntax errors, so this
 * scanner walks the raw text separately. It never throws, and is exact for valid TOML. Values are
 * skipped, not parsed.
 */
import { parse, TomlError, type TomlTable } from "smol-toml";
import { messageOf } from "../core/index.ts";
import { type ConfigProblem, formatKey } from "./problems.ts";

/** One top-level statement of a file: a table header or a `key = value`. */
export interface Statement {
  readonly kind: "table" | "array-table" | "pair" | "broken";
  /** Full path, including the table's; truncated after 5 parts. */
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
  /** First position of a path of at most 4 parts. Elements of arrays have no path. */
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

/** Deeper keys are skipped without a position: the schema has no key deeper than two. */
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

/** Records every table that a dotted key opens, then the key itself. */
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

/** Advances over the match of the sticky `pattern`, which may match the empty string. */
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

/** Scans a dotted key and returns its first parts; empty if there is no key. */
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

/** A quoted key without its quotes. The TOML parser decodes escapes, so that both agree. */
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

/** Advances to the line feed that ends this line, or to the end of the text. */
function skipLine(scanner: Scanner): void {
  const feed = scanner.text.indexOf("\n", scanner.at);
  scanner.at = feed === -1 ? scanner.text.length : feed;
}

/** Skips blanks, line ends and comments. */
function skipVoid(scanner: Scanner): void {
  for (;;) {
    const next = scanner.text[scanner.at];
    if (next === "#") skipLine(scanner);
    else if (next === " " || next === "\t" || next === "\n" || next === "\r") scanner.at++;
    else return;
  }
}

/** Skips a string of any of the four forms. An unclosed one-line string ends with its line. */
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
      // Up to two quotes may precede the closing three.
      for (let extra = 0; isLong && extra < 2 && text[scanner.at] === quote; extra++) scanner.at++;
      return;
    }
  }
  scanner.at = text.length;
}

/** `path` is null inside arrays, where no position is recorded. */
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

/**
 * Skips a comma after an element. False if the scanner has not advanced since `start`, which ends
 * the caller's loop.
 */
function skipComma(scanner: Scanner, start: number): boolean {
  skipVoid(scanner);
  if (scanner.text[scanner.at] === ",") scanner.at++;
  return scanner.at > start;
}

/** A TOML text, parsed as far as its syntax is valid. */
export interface ParsedText {
  /** Null if no part of the file could be parsed reliably. */
  readonly root: TomlTable | null;
  readonly problems: readonly ConfigProblem[];
  /** Dotted names of keys whose lines were skipped as invalid. */
  readonly leftOut: ReadonlySet<string>;
  readonly keys: KeyMap;
  readonly positionAt: (offset: number) => { line: number; column: number };
}

/** Inline tables and arrays deeper than this are refused. */
const REPAIR_NESTING_MAX = 32;
/** Maximum invalid or duplicate lines to skip; later ones are reported in the next run. */
const REPAIRS_MAX = 20;
/** In larger files the first syntax error ends parsing, because parsing again takes too long. */
const RETRY_CHARACTERS_MAX = 16 * 1024;
/** Values people forget to quote: `64GiB`, `30s`, `lru`, `/run/x.sock`, `127.0.0.1:7171`. */
const UNQUOTED = /^[A-Za-z0-9_./:-]+$/;

/**
 * Parses `text`. An invalid `key = value` line is reported and skipped, so that other problems are
 * found in the same run. An invalid header or an unclosed string ends parsing, because later keys
 * would be reported under the wrong table.
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
    // The parser reports an unclosed string at the end of the file; report it where it begins.
    const atEnd = statement?.kind === "pair" && offset >= endOfText;
    const key = statement === null ? "" : formatKey(statement.path);
    report(atEnd ? statement.valueStart : offset, key, outcome.what, adviceFor(text, statement));
    const canGoOn =
      statement !== null &&
      problems.length < REPAIRS_MAX &&
      text.length <= RETRY_CHARACTERS_MAX &&
      // A line without an equals sign outside any section means that the file is not TOML.
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
      what: `invalid TOML: ${sentence}`,
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

/** The first `most` duplicate keys and tables. */
function findDuplicates(
  statements: readonly Statement[],
  most: number,
): { statement: Statement; first: Statement }[] {
  const seen = new Map<string, Statement>();
  const found: { statement: Statement; first: Statement }[] = [];
  for (const statement of statements) {
    // Deeper paths may be truncated, and each element of an array of tables has its own keys.
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

/** Whether skipping the line of `statement` leaves the meaning of the rest unchanged. */
function isOneLinePair(text: string, statement: Statement): boolean {
  const { start, end } = lineOf(text, statement);
  const line = text.slice(start, end);
  if (line.startsWith("[") || /"""|'''/.test(line)) return false;
  const opened = line.replace(/[^[{]/g, "").length;
  const closed = line.replace(/[^\]}]/g, "").length;
  return opened === closed && statement.end <= end;
}

/** `text` with one range replaced by spaces, so that all other positions stay the same. */
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
