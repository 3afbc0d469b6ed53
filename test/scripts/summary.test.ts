import { describe, expect, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { findPython } from "../../scripts/lib/python.ts";
import {
  parseBunSummary,
  parsePythonSummary,
  parseZigSummary,
  pythonSkips,
  summaryLine,
  total,
} from "../../scripts/lib/summary.ts";
import { withTempDir } from "../support/index.ts";

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
  test.skipIf(python.kind !== "ready")("as this host's Python really prints it", async () => {
    await withTempDir((folder) => {
      const source = `import unittest
class T(unittest.TestCase):
    def test_a(self): self.assertTrue(True)
    def test_b(self): self.assertTrue(False)
    def test_c(self): self.skipTest("it's why")
`;
      writeFileSync(join(folder, "test_x.py"), source);
      const path = python.kind === "ready" ? python.path : "";
      const discover = ["discover", "--verbose", "-s", folder];
      const child = Bun.spawnSync([path, "-m", "unittest", ...discover]);
      const printed = child.stderr.toString();
      expect(parsePythonSummary(printed, child.exitCode)).toEqual(ran(1, 1, 1));
      expect([...pythonSkips(printed)]).toEqual([["it's why", 1]]);
    });
  });
});

describe("bun test", () => {
  test("as this Bun really prints it, with and without colours", async () => {
    await withTempDir((folder) => {
      const source = `import { test, describe, expect } from "bun:test";
test("a", () => expect(1).toBe(1));
test("b", () => expect(1).toBe(2));
test.skip("c", () => {});
test.todo("t");
describe.skip("d", () => { test("e", () => {}); });
`;
      writeFileSync(join(folder, "x.test.ts"), source);
      writeFileSync(join(folder, "y.test.ts"), 'import "./not-there.ts";');
      for (const FORCE_COLOR of ["0", "1"]) {
        const words = [process.execPath, "test", "./x.test.ts", "./y.test.ts"];
        const child = Bun.spawnSync(words, { cwd: folder, env: { ...process.env, FORCE_COLOR } });
        expect(parseBunSummary(child.stderr.toString(), child.exitCode)).toEqual(ran(1, 2, 3));
      }
    });
  });

  test("a run that died has no end, and failed", () => {
    expect(parseBunSummary("(pass) a\n 5 pass\npanic: index out of bounds\n", 134)).toEqual(
      ran(0, 1, 0),
    );
  });

  test("what a test printed is not taken for the summary", () => {
    const output = " 9 pass\n 9 fail\n\n 3 pass\n 0 fail\nRan 3 tests across 1 file. [1.00ms]\n";
    expect(parseBunSummary(output, 0)).toEqual(ran(3, 0, 0));
    expect(parseBunSummary(output, 1)).toEqual(ran(3, 1, 0));
  });
});

test("the sum leaves out runners that were skipped", () => {
  const sum = total([ran(1, 2, 3), { kind: "skipped", why: "no python3" }, ran(10, 20, 30)]);
  expect(summaryLine(sum)).toBe("11 passed, 22 failed, 33 skipped");
});
