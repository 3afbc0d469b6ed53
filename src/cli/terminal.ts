import { writeSync } from "node:fs";
import { isatty } from "node:tty";
import { assert, type Clock, stringifyJson } from "../core/index.ts";

/** Standard output or standard error of the process. */
export interface Sink {
  /** Writes the text before it returns. Throws the system's error if the write fails. */
  write(text: string): void;
  readonly isTerminal: boolean;
  /** Width of the terminal in characters. */
  readonly columns: number;
}

/** The outputs of a command: results go to `out`; progress, logs and errors go to `err`. */
export interface Io {
  readonly out: Sink;
  readonly err: Sink;
}

const COLUMNS_DEFAULT = 100;
const BUSY_WAIT_MS = 1;

function codeOf(thrown: unknown): string | undefined {
  return (thrown as NodeJS.ErrnoException).code;
}

/**
 * Blocks the thread for a moment. Used only if a pipe is full that another process made
 * non-blocking.
 */
function waitABit(): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, BUSY_WAIT_MS);
}

function writeAll(fd: number, bytes: Uint8Array): void {
  let at = 0;
  while (at < bytes.length) {
    try {
      at += writeSync(fd, bytes, at);
    } catch (thrown) {
      if (codeOf(thrown) !== "EAGAIN") throw thrown;
      waitABit();
    }
  }
}

/**
 * Returns a sink that writes synchronously, because the runtime's streams lose queued text when the
 * process ends.
 */
function sinkOf(fd: 1 | 2): Sink {
  const encoder = new TextEncoder();
  const isTerminal = isatty(fd);
  let gone = false;
  return {
    write(text) {
      if (gone) return;
      try {
        writeAll(fd, encoder.encode(text));
      } catch (thrown) {
        // A reader that closes the pipe early (`| head`) is not an error. The rest of the output is
        // discarded.
        if (codeOf(thrown) !== "EPIPE") throw thrown;
        gone = true;
      }
    },
    isTerminal,
    get columns() {
      if (!isTerminal) return COLUMNS_DEFAULT;
      return (fd === 1 ? process.stdout : process.stderr).columns || COLUMNS_DEFAULT;
    },
  };
}

export function processIo(): Io {
  return { out: sinkOf(1), err: sinkOf(2) };
}

type Value = string | number | bigint | boolean | null;
export type Row = Readonly<Record<string, Value>>;

const SEPARATOR = "  ";

function shown(value: Value): string {
  if (value === null) return "-";
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(5)));
}

/** Prints one JSON document on one line. */
export function printJson(io: Io, document: unknown): void {
  io.out.write(`${stringifyJson(document)}\n`);
}

/** Returns the line, shortened to one row if the sink is a terminal. */
export function fitted({ isTerminal, columns }: Sink, line: string): string {
  return isTerminal && line.length > columns ? `${line.slice(0, columns - 1)}…` : line;
}

/** Returns the rows without those of the named columns that are zero in every row. */
export function withoutZeros(rows: readonly Row[], columns: readonly string[]): Row[] {
  const idle = columns.filter((name) => rows.every((row) => row[name] === 0));
  return rows.map((row) =>
    Object.fromEntries(Object.entries(row).filter(([name]) => !idle.includes(name))),
  );
}

/**
 * Prints a table with the columns of the first row and numbers aligned to the right; with `json`,
 * one document per row. Text in the last column is shortened to the width of the terminal.
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
      return shown(row[name]);
    }),
  );
  const widths = names.map((name, column) =>
    Math.max(name.length, ...cells.map((line) => line[column].length)),
  );
  const isNumber = names.map((name) =>
    rows.every((row) => typeof row[name] !== "string" && typeof row[name] !== "boolean"),
  );
  const line = (parts: readonly string[]) =>
    parts
      .map((part, column) =>
        isNumber[column] ? part.padStart(widths[column]) : part.padEnd(widths[column]),
      )
      .join(SEPARATOR)
      .trimEnd();
  const isCut = isNumber.at(-1) === false;
  const lines = [names, ...cells].map(line);
  const shortened = isCut ? lines.map((one) => fitted(io.out, one)) : lines;
  io.out.write(shortened.map((one) => `${one}\n`).join(""));
}

/** Prints one record: a line for each field, or with `json` one document. */
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

interface MeasuringContext {
  readonly io: Io;
  readonly clock: Clock;
  readonly flags: { readonly json: boolean };
}

/** Runs a measurement with its progress line, then prints its result: rows, or one record. */
export async function printMeasured(
  { io, clock, flags: { json } }: MeasuringContext,
  measure: (onProgress: (what: string) => void) => Promise<Row | readonly Row[]>,
): Promise<void> {
  const progress = createProgress({ io, clock, json });
  const result = await measure((what) => progress.update(what));
  progress.end();
  if (Array.isArray(result)) printRows(io, result, json);
  else printRecord(io, result as Row, json);
}

const REDRAW_MS = 100;

/** Some lines on a terminal that are redrawn in place. */
interface LiveView {
  /** Redraws the lines if enough time has passed; only then calls `make`. */
  draw(make: () => readonly string[]): void;
  /** Removes the lines from the terminal. */
  clear(): void;
}

export function createLiveView(sink: Sink, clock: Clock): LiveView {
  let drawn = 0;
  let drawnMs = Number.NEGATIVE_INFINITY;
  const erase = () => {
    if (drawn > 0) sink.write(`\r\x1b[${drawn}A\x1b[J`);
    drawn = 0;
  };
  return {
    draw(make) {
      const nowMs = clock.monotonicMs();
      if (nowMs - drawnMs < REDRAW_MS) return;
      drawnMs = nowMs;
      const lines = make();
      erase();
      // A line that wraps cannot be erased, so lines are shortened.
      for (const line of lines) sink.write(`${line.slice(0, sink.columns - 1)}\n`);
      drawn = lines.length;
    },
    clear: erase,
  };
}

/** Returns a progress bar, such as `[#####.....]`, with `width` characters between the brackets. */
export function bar(share: number, width: number): string {
  const filled = Math.round(Math.min(1, Math.max(0, share)) * width);
  return `[${"#".repeat(filled)}${".".repeat(width - filled)}]`;
}

/** Progress of a long command on standard error. */
export interface Progress {
  /** Sets the progress line. Cheap to call often, because most calls print nothing. */
  update(text: string): void;
  /** Removes the progress line; if `text` is given, prints it in its place. */
  end(text?: string): void;
}

const PLAIN_MS = 10_000;
const CLEAR_LINE = "\r\x1b[2K";

interface ProgressOptions {
  readonly io: Io;
  readonly clock: Clock;
  /**
   * True if results are printed as JSON. Progress is then shown only if standard error is a
   * terminal.
   */
  readonly json: boolean;
}

/** Creates a progress display: one updated line on a terminal, elsewhere a line every 10 s. */
export function createProgress({ io, clock, json }: ProgressOptions): Progress {
  const { err } = io;
  if (json && !err.isTerminal) return { update: () => undefined, end: () => undefined };
  return err.isTerminal ? redrawn(err, clock) : plain(err, clock);
}

function redrawn(err: Io["err"], clock: Clock): Progress {
  let drawnMs = Number.NEGATIVE_INFINITY;
  return {
    update(text) {
      const nowMs = clock.monotonicMs();
      if (nowMs - drawnMs < REDRAW_MS) return;
      drawnMs = nowMs;
      // A line that wraps cannot be erased, so it is shortened.
      err.write(`${CLEAR_LINE}${text.slice(0, err.columns - 1)}`);
    },
    end(text) {
      const isDrawn = drawnMs > Number.NEGATIVE_INFINITY;
      err.write(`${isDrawn ? CLEAR_LINE : ""}${text === undefined ? "" : `${text}\n`}`);
    },
  };
}

function plain(err: Io["err"], clock: Clock): Progress {
  let printedMs = clock.monotonicMs();
  return {
    update(text) {
      const nowMs = clock.monotonicMs();
      if (nowMs - printedMs < PLAIN_MS) return;
      printedMs = nowMs;
      err.write(`${text}\n`);
    },
    end(text) {
      if (text !== undefined) err.write(`${text}\n`);
    },
  };
}
