import { parse, TomlError, type TomlTable } from "smol-toml";
import { messageOf } from "../core/index.ts";
import { type KeyMap, mapKeys, positionsOf, type Statement } from "./key-locator.ts";
import { type ConfigProblem, formatKey } from "./problems.ts";

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
const NESTING_MAX = 32;
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
    return { ok: true, root: parse(text, { integersAsBigInt: "asNeeded", maxDepth: NESTING_MAX }) };
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
