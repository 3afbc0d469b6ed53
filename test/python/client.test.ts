import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { FROM_CHECKOUT } from "../app/agent-process.ts";
import { openAgent } from "../engine/agent-kit.ts";
import { describePython, pythonEnvironment } from "../support/index.ts";
import { standIn } from "../support/stand-ins.ts";

const ROOT = join(import.meta.dir, "../..");
const EXAMPLE = join(ROOT, "python/example.py");

interface Run {
  readonly code: number;
  readonly out: string;
  readonly err: string;
}

/** Runs Python against an agent in this process, which must go on serving meanwhile. */
async function runWithAgent(python: string, words: readonly string[]): Promise<Run> {
  await using agent = await openAgent({ slots: 512, gpuPlan: "" });
  const cuda = standIn("libcuda.so.1").path;
  const child = Bun.spawn([python, ...words], {
    cwd: ROOT,
    env: {
      ...pythonEnvironment(),
      HEARTH_SOCKET: agent.socketPath,
      HEARTH_TEST_CUDA: cuda,
      HEARTH_TEST_AGENT: JSON.stringify(FROM_CHECKOUT),
    },
    stdin: "ignore",
    stdout: "pipe",
    stderr: "pipe",
  });
  const [out, err] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
  ]);
  const code = await child.exited;
  expect(agent.server.stats.faults).toBe(0);
  await agent.untilNothingHeld();
  return { code, out, err };
}

/** The first block of Python in a page. */
function firstPython(path: string): string | null {
  return /^```python\n([\s\S]*?)^```$/m.exec(readFileSync(path, "utf8"))?.[1] ?? null;
}

describePython("the Python client", (python) => {
  test("passes its own tests against an agent", async () => {
    const discover = ["discover", "--verbose", "-s", "python/tests", "-t", "python"];
    const { code, err } = await runWithAgent(python, ["-m", "unittest", ...discover]);
    const [, tests] = /^Ran (\d+) tests/m.exec(err) ?? [];
    expect({ code, err: code === 0 ? "" : err }).toEqual({ code: 0, err: "" });
    expect(Number(tests)).toBeGreaterThan(30);
    // Tests that need an agent all ran; PyTorch comes with engines only.
    expect(err).toMatch(/^OK(?: \(skipped=\d+\))?$/m);
    const reasons = [...err.matchAll(/ skipped ['"](.*)['"]$/gm)].map(([, reason]) => reason);
    expect(reasons.filter((reason) => reason !== "PyTorch is not installed")).toEqual([]);
  }, 300_000);

  test("its example runs as it is", async () => {
    const run = await runWithAgent(python, [EXAMPLE]);
    expect(run).toEqual({ code: 0, out: "hit: [True, True]\n", err: "" });
  });

  test.each(["README.md", "python/README.md"])("%s prints that example, and its output", (page) => {
    const text = readFileSync(join(ROOT, page), "utf8");
    expect(firstPython(join(ROOT, page))).toBe(readFileSync(EXAMPLE, "utf8"));
    expect(text).toContain("hit: [True, True]");
  });
});
