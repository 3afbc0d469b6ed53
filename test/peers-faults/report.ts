import type { Result } from "./tally.ts";

const COLUMNS: readonly [string, (result: Result) => string][] = [
  ["transport", ({ transport }) => transport],
  ["phase", ({ phase }) => phase],
  ["pulls", ({ pulls }) => `${pulls}`],
  ["blocks", ({ blocks }) => `${blocks}`],
  ["ok", ({ ok }) => `${ok}`],
  ["missed", ({ missed }) => `${missed}`],
  ["late", ({ late }) => `${late}`],
  ["corrupt seen", ({ corruptSeen }) => `${corruptSeen}`],
  ["wrong bytes", ({ wrongBytes }) => `${wrongBytes}`],
  ["p50 ms", ({ p50Ms }) => p50Ms.toFixed(1)],
  ["p99 ms", ({ p99Ms }) => p99Ms.toFixed(1)],
];

/** A table for people. */
export function tableOf(results: readonly Result[]): string {
  const rows = [COLUMNS.map(([name]) => name), ...results.map(rowOf)];
  const widths = COLUMNS.map((_, column) => Math.max(...rows.map((row) => row[column]!.length)));
  const lines = rows.map((row) =>
    row.map((cell, i) => (i < 2 ? cell.padEnd(widths[i]!) : cell.padStart(widths[i]!))).join("  "),
  );
  return lines.join("\n");
}

function rowOf(result: Result): string[] {
  return COLUMNS.map(([, cell]) => cell(result));
}

/** The results for `--json`. */
export function reportOf(results: readonly Result[], seconds: number, seed: number) {
  const sum = (of: (result: Result) => number) => results.reduce((all, one) => all + of(one), 0);
  return {
    ...{ seconds: Number(seconds.toFixed(1)), seed, pulls: sum(({ pulls }) => pulls) },
    wrong_bytes: sum(({ wrongBytes }) => wrongBytes),
    problems: sum(({ problems }) => problems.length),
    phases: results.map(({ transport, phase, pulls, blocks, ok, missed, late, ...more }) => ({
      ...{ transport, phase, pulls, blocks, ok, missed, late },
      corrupt_seen: more.corruptSeen,
      wrong_bytes: more.wrongBytes,
      p50_ms: Number(more.p50Ms.toFixed(2)),
      p99_ms: Number(more.p99Ms.toFixed(2)),
      problems: more.problems,
    })),
  };
}
