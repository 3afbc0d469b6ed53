import { assert, stringifyJson } from "../core/index.ts";
import type { Io, Sink } from "./io.ts";

type Value = string | number | bigint | boolean | null;
export type Row = Readonly<Record<string, Value>>;

const SEPARATOR = "  ";

function shown(value: Value): string {
  if (value === null) return "-";
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(5)));
}

/** One document on one line. */
export function printJson(io: Io, document: unknown): void {
  io.out.write(`${stringifyJson(document)}\n`);
}

/** The line, or on a terminal as much of it as stands in one row there. */
export function fitted({ isTerminal, columns }: Sink, line: string): string {
  return isTerminal && line.length > columns ? `${line.slice(0, columns - 1)}…` : line;
}

/** The rows without those of these columns that are zero in all of them. */
export function withoutZeros(rows: readonly Row[], columns: readonly string[]): Row[] {
  const idle = columns.filter((name) => rows.every((row) => row[name] === 0));
  return rows.map((row) =>
    Object.fromEntries(Object.entries(row).filter(([name]) => !idle.includes(name))),
  );
}

/**
 * A table with the columns of the first row, numbers to the right; with `json` a document for each
 * row. Words in the last column are cut where a terminal ends.
 */
export function printRows(io: Io, rows: readonly Row[], json: boolean): void {
  if (json) {
    for (const row of rows) printJson(io, row);
    return;
  }
  const [first] = rows;
  if (first === undefined) return;
  const names = Object.keys(first);
  const cells = rows.map((row) =>
    names.map((name) => {
      assert(Object.hasOwn(row, name), `every row has ${name}`);
      return shown(row[name]!);
    }),
  );
  const widths = names.map((name, column) =>
    Math.max(name.length, ...cells.map((line) => line[column]!.length)),
  );
  const isNumber = names.map((name) =>
    rows.every((row) => typeof row[name] !== "string" && typeof row[name] !== "boolean"),
  );
  const line = (parts: readonly string[]) =>
    parts
      .map((part, column) =>
        isNumber[column] ? part.padStart(widths[column]!) : part.padEnd(widths[column]!),
      )
      .join(SEPARATOR)
      .trimEnd();
  const isCut = isNumber.at(-1) === false;
  const lines = [names, ...cells].map(line);
  const shortened = isCut ? lines.map((one) => fitted(io.out, one)) : lines;
  io.out.write(shortened.map((one) => `${one}\n`).join(""));
}

/** One result: a line for each of its fields, or with `json` one document. */
export function printRecord(io: Io, record: Row, json: boolean): void {
  if (json) {
    printJson(io, record);
    return;
  }
  const width = Math.max(...Object.keys(record).map((name) => name.length));
  for (const [name, value] of Object.entries(record)) {
    io.out.write(`${name.padEnd(width)}${SEPARATOR}${shown(value)}\n`);
  }
}
