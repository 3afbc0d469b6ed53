import { join } from "node:path";
import { ROOT } from "./paths.ts";

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

/** The environment in which `import hearth_client` works from a checkout. */
export function pythonEnvironment(): Record<string, string> {
  const entries = Object.entries(process.env).filter(([, value]) => value !== undefined);
  const inherited = Object.fromEntries(entries) as Record<string, string>;
  return { ...inherited, PYTHONPATH: join(ROOT, "python") };
}
