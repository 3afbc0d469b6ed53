/** What a test runner did, in one form for Bun, Zig and Python. */
export interface Ran {
  readonly kind: "ran";
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
}

export type Outcome = Ran | { readonly kind: "skipped"; readonly why: string };

function count(text: string, pattern: RegExp): number {
  return Number(pattern.exec(text)?.[1] ?? 0);
}

/** A runner that went wrong as a whole is one failure more than it told of, and at least one. */
function settle(ran: Ran, exitCode: number): Ran {
  return exitCode !== 0 && ran.failed === 0 ? { ...ran, failed: 1 } : ran;
}

/** Reads `Build Summary: 3/3 steps succeeded; 40/42 tests passed (1 skipped, 1 failed)`. */
export function parseZigSummary(printed: string, exitCode: number): Ran {
  const output = Bun.stripANSI(printed);
  const line = /^Build Summary: .*$/m.exec(output)?.[0] ?? "";
  const passed = count(line, /(\d+)\/\d+ tests passed/);
  const skipped = count(line, /(\d+) skipped/);
  const failed = count(line, /\d+\/(\d+) tests passed/) - passed - skipped;
  const none = exitCode === 0 && passed + skipped + failed === 0;
  return settle({ kind: "ran", passed, failed: none ? 1 : failed, skipped }, exitCode);
}

/** Reads unittest's `Ran 12 tests in 0.1s` and `FAILED (failures=1, errors=2, skipped=3)`. */
export function parsePythonSummary(printed: string, exitCode: number): Ran {
  const output = Bun.stripANSI(printed);
  const total = count(output, /^Ran (\d+) tests? in/m);
  const verdict = /^(?:OK|FAILED|NO TESTS RAN)(?: \(.*\))?\s*$/m.exec(output)?.[0] ?? "";
  const failed =
    count(verdict, /failures=(\d+)/) +
    count(verdict, /errors=(\d+)/) +
    count(verdict, /unexpected successes=(\d+)/);
  const skipped = count(verdict, /skipped=(\d+)/);
  const passed = Math.max(0, total - failed - skipped);
  const none = total === 0 && exitCode === 0;
  return settle({ kind: "ran", passed, failed: none ? 1 : failed, skipped }, exitCode);
}

/** The reasons in unittest's verbose output, each with the number of tests it left out. */
export function pythonSkips(printed: string): Map<string, number> {
  const reasons = new Map<string, number>();
  for (const match of Bun.stripANSI(printed).matchAll(/\.\.\. skipped (["'])(.*)\1$/gm)) {
    reasons.set(match[2]!, (reasons.get(match[2]!) ?? 0) + 1);
  }
  return reasons;
}

/**
 * Reads the lines ` 12 pass`, ` 1 fail`, ` 3 skip`, ` 1 todo` above the last `Ran 17 tests across 2
 * files.` A file that cannot be loaded is among the failures. Without that end Bun died on the way:
 * one failure more.
 */
export function parseBunSummary(output: string, exitCode: number): Ran {
  const lines = Bun.stripANSI(output).trimEnd().split("\n");
  const end = lines.findLastIndex((line) => /^Ran \d+ tests? across \d+ files?\./.test(line));
  if (end < 0) return { kind: "ran", passed: 0, failed: 1, skipped: 0 };
  let start = end;
  while (start > 0 && /^ \d+ /.test(lines[start - 1]!)) start--;
  const block = lines.slice(start, end).join("\n");
  const passed = count(block, /^ (\d+) pass$/m);
  const failed = count(block, /^ (\d+) fail$/m);
  const skipped = count(block, /^ (\d+) skip$/m) + count(block, /^ (\d+) todo$/m);
  return settle({ kind: "ran", passed, failed, skipped }, exitCode);
}

export function total(outcomes: readonly Outcome[]): Ran {
  let [passed, failed, skipped] = [0, 0, 0];
  for (const outcome of outcomes) {
    if (outcome.kind === "skipped") continue;
    passed += outcome.passed;
    failed += outcome.failed;
    skipped += outcome.skipped;
  }
  return { kind: "ran", passed, failed, skipped };
}

/** `"12 passed, 0 failed, 1 skipped"`. */
export function summaryLine({ passed, failed, skipped }: Ran): string {
  return `${passed} passed, ${failed} failed, ${skipped} skipped`;
}
