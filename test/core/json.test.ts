import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { type Json, parseJson, stringifyJson } from "../../src/core/index.ts";

describe("JSON with 64-bit integers", () => {
  test.each([
    ["18446744073709551615", 18446744073709551615n],
    ["-9223372036854775808", -9223372036854775808n],
    ["9007199254740993", 9007199254740993n],
    ["9007199254740991", 9007199254740991],
    ["0", 0],
    ["1.5", 1.5],
    ["1e3", 1000],
  ])("%s is read without loss", (text, value) => {
    expect(parseJson(text)).toBe(value);
  });

  test("a number that is no integer stays a double, however large", () => {
    expect(parseJson("1e300")).toBe(1e300);
    expect(parseJson("12345678901234567890.5")).toBe(Number("12345678901234567890.5"));
  });

  test("bigints are written as plain integers, at any depth", () => {
    const value = { hashes: [18446744073709551615n, 5], parent: { id: -1n } };
    expect(stringifyJson(value)).toBe('{"hashes":[18446744073709551615,5],"parent":{"id":-1}}');
  });

  test("any 64-bit integer comes back as the number it was", () => {
    fc.assert(
      fc.property(fc.bigInt(-(2n ** 63n), 2n ** 64n - 1n), (value) => {
        const back = parseJson(stringifyJson({ value })) as { value: number | bigint };
        expect(BigInt(back.value)).toBe(value);
      }),
      { seed: 5, numRuns: 2000 },
    );
  });

  test("what was read is written the same", () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const text = JSON.stringify(value);
        expect(stringifyJson(parseJson(text))).toBe(JSON.stringify(JSON.parse(text)));
      }),
      { seed: 6, numRuns: 500 },
    );
  });

  test("lists a hundred thousand deep are a SyntaxError, never a full stack", () => {
    const deep = 100_000;
    expect(() => parseJson("[".repeat(deep) + "]".repeat(deep))).toThrow(SyntaxError);
  });

  test("what is no JSON, or a number without end, is a SyntaxError", () => {
    for (const text of ["", "{", "[1,]", "01", `1${"0".repeat(500)}`, "18446744073709551615n"]) {
      expect(() => parseJson(text) as Json).toThrow(SyntaxError);
    }
  });

  test("so are lists that lie too deep in each other, while many side by side are read", () => {
    const deep = (levels: number) => `${"[".repeat(levels)}1${"]".repeat(levels)}`;
    expect(stringifyJson(parseJson(deep(500)))).toBe(deep(500));
    expect(() => parseJson(deep(1_000_000))).toThrow(SyntaxError);
    expect(parseJson(`[${new Array(20_000).fill("[]").join(",")}]`)).toHaveLength(20_000);
  });
});
