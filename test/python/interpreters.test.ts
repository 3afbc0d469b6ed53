import { describe, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { describePython, noteSkip, pythonEnvironment } from "../support/index.ts";

const ROOT = join(import.meta.dir, "../..");
const OTHERS = ["3.9", "3.10", "3.11", "3.12", "3.13", "3.14"] as const;
/** Tests that need no agent, and that depend on how an interpreter counts references. */
const TESTS = ["tests.test_views", "tests.test_client", "tests.test_channel"];
/** A hang detector: importing torch on a busy host takes a while. */
const TIMEOUT_MS = 180_000;

interface Run {
  readonly code: number;
  readonly err: string;
}

function runTests(python: string): Run {
  const child = Bun.spawnSync([python, "-m", "unittest", ...TESTS], {
    cwd: join(ROOT, "python"),
    env: pythonEnvironment(),
    stdin: "ignore",
    stdout: "ignore",
    stderr: "pipe",
    timeout: TIMEOUT_MS,
  });
  return { code: child.exitCode ?? -1, err: child.stderr.toString() };
}

/** A shim of pyenv is on the PATH for versions that cannot be started: it must answer. */
function answers(path: string, code: string): boolean {
  const stdio = { stdin: "ignore", stdout: "ignore", stderr: "ignore" } as const;
  return Bun.spawnSync([path, "-c", code], stdio).exitCode === 0;
}

/** The first interpreter that has NumPy and PyTorch: the one named, or the engine lanes' own. */
function findWithArrays(): string | null {
  const caches = process.env.XDG_CACHE_HOME || join(homedir(), ".cache");
  const engines = process.env.HEARTH_ENGINES_CACHE || join(caches, "hearth", "engines");
  const named = process.env.HEARTH_TEST_PYTHON;
  const candidates = [...(named ? [named] : []), join(engines, "vllm", "bin", "python")];
  const works = (path: string) => existsSync(path) && answers(path, "import numpy, torch");
  return candidates.find(works) ?? null;
}

describePython("the Python client on other interpreters", () => {
  for (const version of OTHERS) {
    const name = `Python ${version} passes the tests of views and connections`;
    const path = Bun.which(`python${version}`);
    if (path === null || !answers(path, "")) {
      noteSkip(name, `python${version} is not on the PATH, or does not start`);
      test.skip(name, () => {});
      continue;
    }
    test(
      name,
      () => {
        const run = runTests(path);
        expect({ code: run.code, err: run.code === 0 ? "" : run.err }).toEqual({
          code: 0,
          err: "",
        });
      },
      TIMEOUT_MS,
    );
  }
});

describe("objects of NumPy and PyTorch", () => {
  const name = "keep the slot of the view that they were made from";
  const path = findWithArrays();
  if (path === null) {
    const why = "no interpreter with numpy and torch; HEARTH_TEST_PYTHON names one";
    noteSkip(`NumPy and PyTorch ${name}`, why);
    test.skip(name, () => {});
    return;
  }
  test(
    name,
    () => {
      const run = runTests(path);
      expect({ code: run.code, err: run.code === 0 ? "" : run.err }).toEqual({ code: 0, err: "" });
      expect(run.err).not.toContain("SKIPPED");
    },
    TIMEOUT_MS,
  );
});
