import { describe, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findPython } from "../../scripts/lib/python.ts";
import {
  parseBunReport,
  parsePythonSummary,
  parseZigSummary,
  summaryLine,
  total,
} from "../../scripts/lib/summary.ts";

const ran = (passed: number, failed: number, skipped: number) => {
  return { kind: "ran", passed, failed, skipped } as const;
};

describe("zig build test", () => {
  test.each([
    ["Build Summary: 3/3 steps succeeded; 40/40 tests passed", 0, ran(40, 0, 0)],
    ["Build Summary: 3/3 steps succeeded; 39/40 tests passed (1 skipped)", 0, ran(39, 0, 1)],
    [
      "Build Summary: 1/3 steps succeeded (1 failed); 37/40 tests passed (1 skipped, 2 failed)",
      1,
      ran(37, 2, 1),
    ],
    ["Build Summary: 0/3 steps succeeded (1 failed)", 1, ran(0, 1, 0)],
    ["Build Summary: 3/3 steps succeeded; 40/40 tests passed", 1, ran(40, 1, 0)],
    ["", 127, ran(0, 1, 0)],
    ["", 0, ran(0, 1, 0)],
  ])("%s, exit %i", (line, code, expected) => {
    expect(parseZigSummary(`noise\n${line}\ntest success\n`, code)).toEqual(expected);
  });
});

describe("python -m unittest", () => {
  test.each([
    ["Ran 12 tests in 0.103s\n\nOK\n", 0, ran(12, 0, 0)],
    ["Ran 12 tests in 0.103s\n\nOK (skipped=2)\n", 0, ran(10, 0, 2)],
    ["Ran 12 tests in 1.1s\n\nFAILED (failures=1, errors=2, skipped=3)\n", 1, ran(6, 3, 3)],
    ["Ran 1 test in 0.000s\n\nFAILED (unexpected successes=1)\n", 1, ran(0, 1, 0)],
    ["Ran 0 tests in 0.000s\n\nNO TESTS RAN\n", 5, ran(0, 1, 0)],
    ["Ran 0 tests in 0.000s\n\nOK\n", 0, ran(0, 1, 0)],
    ["Segmentation fault\n", 139, ran(0, 1, 0)],
  ])("%j, exit %i", (output, code, expected) => {
    expect(parsePythonSummary(output, code)).toEqual(expected);
  });

  const python = findPython();
  test.skipIf(python.kind !== "ready")("as this host's Python really prints it", () => {
    const folder = mkdtempSync(join(tmpdir(), "hearth-"));
    const source = `import unittest
class T(unittest.TestCase):
    def test_a(self): self.assertTrue(True)
    def test_b(self): self.assertTrue(False)
    def test_c(self): self.skipTest("why")
`;
    try {
      writeFileSync(join(folder, "test_x.py"), source);
      const path = python.kind === "ready" ? python.path : "";
      const child = Bun.spawnSync([path, "-m", "unittest", "discover", "-s", folder]);
      expect(parsePythonSummary(child.stderr.toString(), child.exitCode)).toEqual(ran(1, 1, 1));
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });
});

describe("bun test", () => {
  test("as this Bun really reports it", () => {
    const folder = mkdtempSync(join(tmpdir(), "hearth-"));
    const source = `import { test, describe, expect } from "bun:test";
test("a", () => expect(1).toBe(1));
test("b", () => expect(1).toBe(2));
test.skip("c", () => {});
describe.skip("d", () => { test("e", () => {}); });
`;
    try {
      writeFileSync(join(folder, "x.test.ts"), source);
      const report = join(folder, "report.xml");
      const reporter = ["--reporter=junit", `--reporter-outfile=${report}`];
      const words = [process.execPath, "test", ...reporter, "./x.test.ts"];
      const child = Bun.spawnSync(words, { cwd: folder, stderr: "pipe" });
      expect(parseBunReport(readFileSync(report, "utf8"), child.exitCode)).toEqual(ran(1, 1, 2));
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });

  test("a run that died without a report failed", () => {
    expect(parseBunReport(undefined, 139)).toEqual(ran(0, 1, 0));
  });

  test("an error between tests counts", () => {
    const report = `<testsuites name="bun test" tests="3" failures="0" skipped="0" time="1">`;
    expect(parseBunReport(report, 1)).toEqual(ran(3, 1, 0));
  });
});

test("the sum leaves out runners that were skipped", () => {
  const sum = total([ran(1, 2, 3), { kind: "skipped", why: "no python3" }, ran(10, 20, 30)]);
  expect(summaryLine(sum)).toBe("11 passed, 22 failed, 33 skipped");
});
