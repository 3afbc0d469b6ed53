import { describe, expect, test } from "bun:test";
import { formatProblem, type MachineFacts, parseConfig } from "../../src/config/index.ts";
import { BAD_FILES } from "./bad-files.ts";

const FACTS: MachineFacts = { hostname: "test-host", memoryBytes: 16 * 2 ** 30 };

describe("bad configuration files", () => {
  test("there are at least 100 of them, each under its own name", () => {
    expect(BAD_FILES.length).toBeGreaterThanOrEqual(100);
    expect(new Set(BAD_FILES.map(([name]) => name)).size).toBe(BAD_FILES.length);
  });

  for (const [name, text, ...expected] of BAD_FILES) {
    test(name, () => {
      const result = parseConfig(text, "hearth.toml", FACTS);
      if (result.ok) throw new Error("was accepted");
      const places = result.problems.map(({ line, column, key }) => `${line}:${column} ${key}`);
      expect(places).toEqual(expected.map(([at]) => at));
      for (const [index, [, says]] of expected.entries()) {
        const line = formatProblem(result.problems[index]!);
        expect(line).toStartWith("hearth.toml:");
        expect(line).toContain(says);
        expect(line).toMatch(/^[\x20-\x7e]+$/);
      }
    });
  }
});
