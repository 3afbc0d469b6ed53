import { expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { HEALTH_CODE_NAMES } from "../../src/observability/index.ts";

const ROOT = join(import.meta.dir, "../..");
const page = readFileSync(join(ROOT, "docs/failure-modes.md"), "utf8");

/** Last cells of the tables: `file`: name. */
function testsNamed(): { file: string; name: string }[] {
  const rows = page.split("\n").filter((line) => line.startsWith("| ") && !/^\| fault /.test(line));
  return rows.map((row) => {
    const cell = row.split(" | ").at(-1)!.replace(/ \|$/, "");
    const match = /^`([^`]+)`: (.+)$/.exec(cell);
    if (match === null) throw new Error(`a row names no test: ${row}`);
    return { file: match[1]!, name: match[2]! };
  });
}

/**
 * Names of tests, as they stand in the source; also those that run over two lines, and those of
 * tables, which are the first of a row or stand behind the table.
 */
function declares(file: string, name: string): boolean {
  const path = join(ROOT, file);
  if (!existsSync(path)) return false;
  const source = readFileSync(path, "utf8").replaceAll(/["`] \+\s+["`]/g, "");
  const literal = RegExp.escape(name);
  const before = "(?:test|it|Contract|name:|\\[|\\)\\()\\(?\\s*";
  const declared = new RegExp(`${before}["\`][^"\`\\n]*${literal}`);
  return declared.test(source);
}

test("each row of docs/failure-modes.md names a test that is there", () => {
  const named = testsNamed();
  expect(named.length).toBeGreaterThan(80);
  expect(named.filter(({ file, name }) => !declares(file, name))).toEqual([]);
});

test("each health code of tiers, control plane, peers and devices has a row", () => {
  const ours = /^(KV_(SSD|INDEX|LIMITS|HOLDS|PINS)|NATS|AUDIT|PEERS|GPU|RDMA)/;
  const codes = HEALTH_CODE_NAMES.filter((code) => ours.test(code));
  expect(codes.filter((code) => !page.includes(`\`${code}\``))).toEqual([]);
});
