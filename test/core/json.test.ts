import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { type Json, JsonTooDeep, parseJson, stringifyJson } from "../../src/core/index.ts";

/** The value as a double. */
function rounded(_key: string, value: unknown): unknown {
  return typeof value === "bigint" ? Number(value) : value;
}

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

  test("a number that is not an integer stays a double, however large", () => {
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

  test("parsed JSON is written as the same text", () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const text = JSON.stringify(value);
        expect(stringifyJson(parseJson(text))).toBe(JSON.stringify(JSON.parse(text)));
      }),
      { seed: 6, numRuns: 500 },
    );
  });

  test("beside a long integer everything else reads as the runtime reads it", () => {
    fc.assert(
      fc.property(fc.jsonValue(), fc.constantFrom(" ", "\n\t", ""), (value, blank) => {
        const text = `[${blank}12345678901234567890${blank},${JSON.stringify(value, null, blank)}]`;
        const [long, other] = parseJson(text) as Json[];
        expect(long).toBe(12345678901234567890n);
        expect(JSON.stringify(other, rounded)).toBe(JSON.stringify(value));
      }),
      { seed: 7, numRuns: 1_000 },
    );
  });

  test("invalid JSON beside a long integer is refused", () => {
    const parts = fc.constantFrom(
      ...["[", "]", "{", "}", ",", ":", " ", "1", "-", "0", ".5", "e", "E+2", "true", "nul"],
      ...['"a"', '"\\u0041"', '"', "\\", "\n", "\u0001", "12345678901234567890", "-0", "\u00a0"],
    );
    const read = (parse: (text: string) => unknown, text: string) => {
      try {
        return { value: parse(text) };
      } catch (thrown) {
        expect(thrown).toBeInstanceOf(SyntaxError);
        return null;
      }
    };
    fc.assert(
      fc.property(fc.array(parts, { maxLength: 12 }), (some) => {
        const text = `[12345678901234567890,${some.join("")}]`;
        const [ours, theirs] = [read(parseJson, text), read(JSON.parse, text)];
        expect(JSON.stringify(ours, rounded)).toBe(JSON.stringify(theirs));
      }),
      { seed: 8, numRuns: 20_000 },
    );
  });

  test("a key that names the prototype is a key", () => {
    for (const number of ["1", "12345678901234567890"]) {
      const read = parseJson(`{"__proto__":{"a":${number}},"constructor":1}`) as object;
      expect(Object.keys(read)).toEqual(["__proto__", "constructor"]);
      expect(Object.getPrototypeOf(read)).toBe(Object.prototype);
    }
  });

  test("how deep it may be can be said", () => {
    expect(parseJson('[[{"a":[]}],[[["[[[["]]]]', 4)).toHaveLength(2);
    expect(() => parseJson('[[{"a":[1]}],[[[[]]]]]', 4)).toThrow(JsonTooDeep);
  });

  test("lists a hundred thousand deep are a SyntaxError, never a full stack", () => {
    const deep = 100_000;
    expect(() => parseJson("[".repeat(deep) + "]".repeat(deep))).toThrow(SyntaxError);
  });

  test("invalid JSON, or an unbounded number, is a SyntaxError", () => {
    for (const text of ["", "{", "[1,]", "01", `1${"0".repeat(500)}`, "18446744073709551615n"]) {
      expect(() => parseJson(text) as Json).toThrow(SyntaxError);
    }
  });

  test("lists nested too deep are a SyntaxError, while many side by side are read", () => {
    const deep = (levels: number) => `${"[".repeat(levels)}1${"]".repeat(levels)}`;
    expect(stringifyJson(parseJson(deep(500)))).toBe(deep(500));
    expect(() => parseJson(deep(1_000_000))).toThrow(SyntaxError);
    expect(parseJson(`[${new Array(20_000).fill("[]").join(",")}]`)).toHaveLength(20_000);
  });
});
