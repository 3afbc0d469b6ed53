import { describe, test } from "bun:test";
import { join } from "node:path";
import { isRequired, noteSkip } from "./skips.ts";

/** The oldest Python whose syntax `python/hearth_client` may use. */
const PYTHON_MIN = [3, 9] as const;

export type PythonVerdict =
  | { readonly kind: "ready"; readonly path: string }
  | { readonly kind: "skipped"; readonly why: string };

export function findPython(): PythonVerdict {
  const path = Bun.which("python3");
  if (path === null) return { kind: "skipped", why: "no python3 on the PATH" };
  const asked = Bun.spawnSync([path, "-c", "import sys; print(*sys.version_info[:2])"]);
  const [major = 0, minor = 0] = asked.stdout.toString().trim().split(" ").map(Number);
  const [wantedMajor, wantedMinor] = PYTHON_MIN;
  if (major > wantedMajor || (major === wantedMajor && minor >= wantedMinor)) {
    return { kind: "ready", path };
  }
  return { kind: "skipped", why: `${path} is older than ${PYTHON_MIN.join(".")} or does not run` };
}

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

/** The environment in which `import hearth_client` works from a checkout. */
export function pythonEnvironment(): Record<string, string> {
  const entries = Object.entries(process.env).filter(([, value]) => value !== undefined);
  const inherited = Object.fromEntries(entries) as Record<string, string>;
  return { ...inherited, PYTHONPATH: join(import.meta.dir, "../../python") };
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
