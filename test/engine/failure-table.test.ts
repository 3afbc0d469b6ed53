import { expect, test } from "bun:test";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const TESTS = ["engine", "app"];

/** First column of the table "When things go wrong". */
function rowsOfTable(): string[] {
  const page = readFileSync(join(import.meta.dir, "../../docs/engine-protocol.md"), "utf8");
  const section = /^## \d+\. When things go wrong$([\s\S]*?)^## /m.exec(page)![1]!;
  const cells = section.split("\n").map((line) => /^\| (.*?) \| /.exec(line)?.[1]);
  return cells.filter((cell) => cell !== undefined && cell !== "what").map((cell) => cell!);
}

/** Names of tests and suites, including names that span two lines. */
function testNames(): string {
  const sources = TESTS.flatMap((folder) => {
    const path = join(import.meta.dir, "..", folder);
    const files = readdirSync(path).filter((name) => name.endsWith(".test.ts"));
    return files.map((name) => readFileSync(join(path, name), "utf8"));
  });
  return sources.join("\n").replaceAll(/" \+\s+"/g, "");
}

test("each row of the failure table has a test with its name", () => {
  const rows = rowsOfTable();
  expect(rows.length).toBeGreaterThan(30);
  const names = testNames();
  const untested = rows.filter((row) => {
    const name = RegExp.escape(row);
    return !new RegExp(`(?:test|describe)(?:\\.skipIf\\([^"]*\\))?\\(\\s*"${name}"`).test(names);
  });
  expect(untested).toEqual([]);
});
