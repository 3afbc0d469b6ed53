import { describe, test } from "bun:test";
import { findPython } from "../../scripts/lib/python.ts";
import { isRequired } from "../../scripts/lib/required.ts";
import { noteSkip } from "./skips.ts";

export { pythonEnvironment } from "../../scripts/lib/python.ts";

/**
 * The path of a usable python3, or null after saying that `suite` is skipped. Throws under
 * `REQUIRE_PYTHON=1` or `CI=true`.
 */
export function requirePython(suite: string): string | null {
  const verdict = findPython();
  if (verdict.kind === "ready") return verdict.path;
  if (isRequired("PYTHON")) throw new Error(`${suite}: ${verdict.why}`);
  noteSkip(suite, verdict.why);
  return null;
}

/** A `describe` for suites that start a Python process; the suite gets the interpreter's path. */
export function describePython(name: string, suite: (python: string) => void): void {
  const verdict = findPython();
  if (verdict.kind === "ready") {
    describe(name, () => suite(verdict.path));
  } else if (isRequired("PYTHON")) {
    test(`${name}: python3`, () => {
      throw new Error(verdict.why);
    });
  } else {
    noteSkip(name, verdict.why);
    describe.skip(name, () => suite("python3"));
  }
}
