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

const TEXT_MAX = 60;

/**
 * `text` in quotes, truncated and escaped, so that the contents of a file cannot forge a line or
 * control a terminal.
 */
export function quoteText(text: string): string {
  const cut = text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}...` : text;
  return JSON.stringify(cut).replace(
    /[^\x20-\x7e]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
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

const LENGTH_MAX = 40;

/** Edits (insert, delete, replace, swap of neighbours) that turn `a` into `b`. */
function editDistance(a: string, b: string): number {
  let before: number[] = [];
  let above = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1];
      let least = Math.min(above[j]! + 1, row[j - 1]! + 1, above[j - 1]! + (same ? 0 : 1));
      const swapped = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1];
      if (swapped) least = Math.min(least, before[j - 2]! + 1);
      row.push(least);
    }
    before = above;
    above = row;
  }
  return above[b.length]!;
}

function normal(word: string): string {
  return word.toLowerCase().replaceAll("-", "_");
}

/** The most similar word of `known`, or null if none is similar. */
export function nearestWord(word: string, known: readonly string[]): string | null {
  if (word === "" || word.length > LENGTH_MAX) return null;
  let best: string | null = null;
  let bestDistance = Math.max(1, Math.floor(word.length / 3)) + 1;
  for (const candidate of known) {
    const distance = editDistance(normal(word), normal(candidate));
    if (distance < bestDistance) {
      best = candidate;
      bestDistance = distance;
    }
  }
  return best;
}
