/**
 * Where each key stands in a TOML text. smol-toml gives positions for syntax errors only, so this
 * walks the raw text beside it: tolerant, never throwing, and right wherever the text is valid
 * TOML. Values are skipped, not understood.
 */

import { parse } from "smol-toml";

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
