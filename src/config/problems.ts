import { quoteText } from "../core/index.ts";

/** A problem in a configuration file, with its position. */
export interface ConfigProblem {
  readonly file: string;
  /** From 1; 0 for a problem of the whole file (it cannot be read). */
  readonly line: number;
  /** From 1, in characters; 0 for a problem of the whole file. */
  readonly column: number;
  /** Dotted, as in `kv.ram_gib`; a section alone, as in `kv`; empty where no key is involved. */
  readonly key: string;
  /** The problem. */
  readonly what: string;
  /** The suggested correction. */
  readonly instead: string;
}

/** `["kv", "ram_gib"]` → `kv.ram_gib`; segments that are not bare keys are quoted. */
export function formatKey(path: readonly string[]): string {
  const shown = path
    .slice(0, 8)
    .map((part) => (/^[A-Za-z0-9_-]{1,60}$/.test(part) ? part : quoteText(part)));
  return shown.join(".") + (path.length > shown.length ? "..." : "");
}

/** Formats `file:line:column key: problem; correction`. */
export function formatProblem(problem: ConfigProblem): string {
  const place =
    problem.line === 0 ? problem.file : `${problem.file}:${problem.line}:${problem.column}`;
  const key = problem.key === "" ? "" : ` ${problem.key}`;
  return `${place}${key}: ${problem.what}; ${problem.instead}`;
}

/** In reading order. */
export function sortProblems(problems: readonly ConfigProblem[]): ConfigProblem[] {
  return [...problems].sort((a, b) => a.line - b.line || a.column - b.column);
}
