/** TOML text to values with the positions of their keys. */
import { type AST, ParseError, parseTOML } from "toml-eslint-parser";
import { messageOf } from "../core/index.ts";
import { type ConfigProblem, formatKey } from "./problems.ts";

export type TomlTable = { [name: string]: unknown };

interface KeyPlace {
  /** Offset of the key. */
  readonly key: number;
  /** Offset of the value; of the key itself for tables. */
  readonly value: number;
}

export interface TomlDocument {
  readonly root: TomlTable;
  /** First position of a path of at most 4 parts. Elements of arrays have no path. */
  locate(path: readonly string[]): KeyPlace | null;
}

/** A TOML text, parsed as far as its syntax is valid. */
export interface ParsedText {
  /** Null if no part of the file could be parsed reliably. */
  readonly document: TomlDocument | null;
  readonly problems: readonly ConfigProblem[];
  /** Dotted names of keys whose lines were skipped as invalid. */
  readonly leftOut: ReadonlySet<string>;
}

/** Deeper keys are skipped without a position: the schema has no key deeper than three. */
const PLACE_DEPTH_MAX = 4;
/** Maximum invalid or duplicate lines to skip; later ones are reported in the next run. */
const REPAIRS_MAX = 20;
/** In larger files the first syntax error ends parsing, because parsing again takes too long. */
const RETRY_CHARACTERS_MAX = 16 * 1024;
/** Values people forget to quote: `64GiB`, `30s`, `lru`, `/run/x.sock`, `127.0.0.1:7171`. */
const UNQUOTED = /^[A-Za-z0-9_./:-]+$/;
const HEADER = /^[ \t]*\[+([^[\]\n#]*)/;
const KEY = /^[ \t]*((?:"(?:\\.|[^"\\\n])*"|'[^'\n]*'|[A-Za-z0-9_-]+|[ \t]*\.[ \t]*)+)/;
const OPENED_VALUE = /^[ \t]*[^\s#=[][^=\n]*=[ \t]*(?=["'[{])/gm;
/** Errors that the parser reports at the next token. */
const MISSING = /^(?:Expected equal|Unspecified values|The key, equals sign|Unterminated)/;
const DUPLICATE = "Defining a key multiple times is invalid";

/** Line and column of an offset, both from 1, the column in characters. */
export function positionAt(text: string, offset: number): { line: number; column: number } {
  const before = text.slice(0, offset).split("\n");
  return { line: before.length, column: before.at(-1)!.length + 1 };
}

/**
 * Parses `text`. An invalid `key = value` line is reported and skipped, so that other problems are
 * found in the same run. An invalid header or an unclosed value ends parsing, because later keys
 * would be reported under the wrong table.
 */
export function parseText(text: string, file: string): ParsedText {
  const problems: ConfigProblem[] = [];
  const leftOut = new Set<string>();
  for (let left = text; ; ) {
    const outcome = tryParse(left);
    if (outcome.ok) return { document: outcome.document, problems, leftOut };
    const line = lineAt(text, outcome.offset);
    const key = formatKey(line.path);
    const first = outcome.isDuplicate ? firstOf(left, line) : null;
    const [what, instead] =
      first === null
        ? [
            `invalid TOML: ${outcome.what[0].toLowerCase()}${outcome.what.slice(1)}`,
            adviceFor(line),
          ]
        : line.isHeader
          ? [`the section is opened twice, first on line ${first}`, "move its keys into one place"]
          : [`is given twice, first on line ${first}`, "keep one of the two"];
    problems.push({ file, ...positionAt(text, outcome.offset), key, what, instead });
    const canGoOn =
      problems.length < REPAIRS_MAX && text.length <= RETRY_CHARACTERS_MAX && isOneLinePair(line);
    const rest = canGoOn ? blank(left, line) : left;
    if (rest === left) return { document: null, problems, leftOut };
    if (first === null) leftOut.add(key);
    left = rest;
  }
}

type Outcome =
  | { readonly ok: true; readonly document: TomlDocument }
  | {
      readonly ok: false;
      readonly what: string;
      readonly offset: number;
      readonly isDuplicate: boolean;
    };

function tryParse(text: string): Outcome {
  try {
    return { ok: true, document: readDocument(parseTOML(text, { tomlVersion: "1.1" })) };
  } catch (thrown) {
    const what = messageOf(thrown);
    const offset = thrown instanceof ParseError ? offsetOf(text, thrown) : 0;
    return { ok: false, what, offset, isDuplicate: what === DUPLICATE };
  }
}

/** The offset of what is wrong: the start of an unclosed value, or the end before a missing part. */
function offsetOf(text: string, { index, message }: ParseError): number {
  if (!MISSING.test(message)) return index;
  const before = text.slice(0, index).trimEnd();
  if (message.startsWith("Unterminated")) {
    const opened = [...before.matchAll(OPENED_VALUE)].at(-1);
    if (opened !== undefined) return opened.index + opened[0].length;
  }
  const isOnNextLine = index >= text.length || text.slice(before.length, index).includes("\n");
  return isOnNextLine ? before.length : index;
}

function readDocument(program: AST.TOMLProgram): TomlDocument {
  const root: TomlTable = Object.create(null);
  const places = new Map<string, KeyPlace>();
  const reader = new TableReader(places);
  for (const node of program.body[0].body) {
    if (node.type === "TOMLKeyValue") reader.addPair(root, [], node);
    else reader.addTable(root, node);
  }
  return { root, locate: (path) => places.get(JSON.stringify(path)) ?? null };
}

/** Turns nodes into tables and records the places of their keys. */
class TableReader {
  readonly #places: Map<string, KeyPlace>;

  constructor(places: Map<string, KeyPlace>) {
    this.#places = places;
  }

  addTable(root: TomlTable, { key, kind, body }: AST.TOMLTable): void {
    const path = key.keys.map(nameOf);
    this.#remember([], key, key.keys.at(-1)!.range[0]);
    const isArray = kind === "array";
    const parent = tableAt(root, isArray ? path.slice(0, -1) : path);
    if (isArray) parent[path.at(-1)!] = [];
    const table = isArray ? Object.create(null) : parent;
    for (const pair of body) this.addPair(table, path, pair);
  }

  addPair(table: TomlTable, base: readonly string[], { key, value }: AST.TOMLKeyValue): void {
    const path = key.keys.map(nameOf);
    this.#remember(base, key, value.range[0]);
    tableAt(table, path.slice(0, -1))[path.at(-1)!] = this.#valueOf(value, [...base, ...path]);
  }

  #valueOf(node: AST.TOMLContentNode, path: readonly string[]): unknown {
    // The schema has no arrays: only the type is reported.
    if (node.type === "TOMLArray") return [];
    if (node.type === "TOMLInlineTable") {
      const table: TomlTable = Object.create(null);
      if (path.length < PLACE_DEPTH_MAX) {
        for (const pair of node.body) this.addPair(table, path, pair);
      }
      return table;
    }
    const isHuge = node.kind === "integer" && !Number.isSafeInteger(node.value);
    return isHuge ? node.bigint : node.value;
  }

  /** Records every table that a dotted key opens, then the key itself. */
  #remember(base: readonly string[], { keys }: AST.TOMLKey, value: number): void {
    const path = [...base];
    for (const [index, part] of keys.slice(0, PLACE_DEPTH_MAX - base.length).entries()) {
      path.push(nameOf(part));
      const id = JSON.stringify(path);
      const key = part.range[0];
      const place = { key, value: index === keys.length - 1 ? value : key };
      if (!this.#places.has(id)) this.#places.set(id, place);
    }
  }
}

function nameOf(node: AST.TOMLBare | AST.TOMLQuoted): string {
  return node.type === "TOMLBare" ? node.name : node.value;
}

/** The table at `path`, created if missing; a detached one below an array of tables. */
function tableAt(root: TomlTable, path: readonly string[]): TomlTable {
  let table = root;
  for (const name of path) {
    table[name] ??= Object.create(null);
    const found = table[name];
    table = Array.isArray(found) ? Object.create(null) : (found as TomlTable);
  }
  return table;
}

/** One line of a file, as far as it can be understood without a parser. */
interface Line {
  readonly start: number;
  readonly end: number;
  readonly isHeader: boolean;
  /** Path of the key or table, including the table that the line lies in. */
  readonly path: readonly string[];
  readonly text: string;
  /** Text after the equals sign; null if there is none. */
  readonly value: string | null;
}

function lineAt(text: string, offset: number): Line {
  const start = text.lastIndexOf("\n", offset - 1) + 1;
  const feed = text.indexOf("\n", start);
  const end = feed === -1 ? text.length : feed;
  const line = text.slice(start, end);
  const header = HEADER.exec(line);
  if (header !== null) {
    return { start, end, isHeader: true, path: pathIn(header[1]), text: line, value: null };
  }
  const above = [...text.slice(0, start).matchAll(new RegExp(HEADER, "gm"))].at(-1);
  const key = KEY.exec(line);
  const equals = key === null ? undefined : /^[ \t]*=(.*)/.exec(line.slice(key[0].length))?.[1];
  const path = [...pathIn(above?.[1] ?? ""), ...pathIn(key?.[1] ?? "")];
  return { start, end, isHeader: false, path, text: line, value: equals ?? null };
}

/** `a."b c"` → `["a", "b c"]`; empty if it is not a key. */
function pathIn(key: string): string[] {
  try {
    const [node] = parseTOML(`${key.trim()} = 0`).body[0].body;
    return node?.type === "TOMLKeyValue" ? node.key.keys.map(nameOf) : [];
  } catch {
    return [];
  }
}

/** Line of the first occurrence of the key or table of `line`; null if it is on the same line. */
function firstOf(text: string, { start, path }: Line): number | null {
  const before = text.slice(0, start);
  const outcome = tryParse(before);
  const place = outcome.ok ? outcome.document.locate(path) : null;
  return place === null ? null : positionAt(before, place.key).line;
}

/** Whether skipping the line leaves the meaning of the rest unchanged. */
function isOneLinePair({ isHeader, path, text, value }: Line): boolean {
  // A line without an equals sign outside any section means that the file is not TOML.
  if (isHeader || /"""|'''/.test(text) || (value === null && path.length < 2)) return false;
  return text.replace(/[^[{]/g, "").length === text.replace(/[^\]}]/g, "").length;
}

/** `text` with one line replaced by spaces, so that all other positions stay the same. */
function blank(text: string, { start, end }: Line): string {
  return text.slice(0, start) + text.slice(start, end).replace(/[^\r]/g, " ") + text.slice(end);
}

function adviceFor({ isHeader, path, value: after }: Line): string {
  if (isHeader) return "write [section] on one line and key = value lines below it";
  if (after === null) {
    return path.length > 0
      ? "write key = value"
      : "write key = value lines below [section] headers";
  }
  const value = after.trim();
  const name = formatKey(path.slice(-1));
  if (value === "") return `write a value after ${name} =, or remove the line`;
  if (/^(true|false)$/i.test(value)) return `write ${name} = ${value.toLowerCase()}`;
  if (value.length <= 64 && UNQUOTED.test(value)) return `put it in quotes: ${name} = "${value}"`;
  return "check quotes, brackets and commas of this value";
}
