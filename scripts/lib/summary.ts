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
export function parseZigSummary(output: string, exitCode: number): Ran {
  const line = /^Build Summary: .*$/m.exec(output)?.[0] ?? "";
  const passed = count(line, /(\d+)\/\d+ tests passed/);
  const skipped = count(line, /(\d+) skipped/);
  const failed = count(line, /\d+\/(\d+) tests passed/) - passed - skipped;
  const none = exitCode === 0 && passed + skipped + failed === 0;
  return settle({ kind: "ran", passed, failed: none ? 1 : failed, skipped }, exitCode);
}

/** Reads unittest's `Ran 12 tests in 0.1s` and `FAILED (failures=1, errors=2, skipped=3)`. */
export function parsePythonSummary(output: string, exitCode: number): Ran {
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

/**
 * Reads the totals of the JUnit report that `bun test` writes at its end. No report means that Bun
 * died on the way: one failure.
 */
export function parseBunReport(report: string | undefined, exitCode: number): Ran {
  const root = /<testsuites [^>]*>/.exec(report ?? "")?.[0];
  if (root === undefined) return { kind: "ran", passed: 0, failed: 1, skipped: 0 };
  const failed = count(root, /failures="(\d+)"/) + count(root, /errors="(\d+)"/);
  const skipped = count(root, /skipped="(\d+)"/);
  const passed = count(root, /tests="(\d+)"/) - failed - skipped;
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
