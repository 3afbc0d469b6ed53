import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { readRouteRequest, ScanError, scanBody } from "../../../src/api/index.ts";

const NAMES = { tokens: ["tokens"], hashes: ["hashes"] };
const bytesOf = (text: string) => new TextEncoder().encode(text);
const scan = (text: string) => scanBody(bytesOf(text), NAMES);

/** Fields of a body according to `JSON.parse`, with hashes as exact as doubles. */
function literal(text: string) {
  const { tokens, hashes, ...rest } = JSON.parse(text);
  return { tokens, hashes, rest };
}

describe("scanning a body", () => {
  test("the scan equals JSON.parse for any spacing", () => {
    const blank = fc.constantFrom("", " ", "\n\t", "\r\n  ");
    const uint32 = fc.nat(0xffff_ffff);
    fc.assert(
      fc.property(
        fc.option(fc.array(uint32, { maxLength: 40 }), { nil: undefined }),
        fc.option(fc.array(uint32, { maxLength: 10 }), { nil: undefined }),
        fc.dictionary(fc.string(), fc.jsonValue(), { maxKeys: 6 }),
        fc.array(blank, { minLength: 4, maxLength: 4 }),
        (tokens, hashes, rest, [a, b, c, d]) => {
          delete rest.tokens;
          delete rest.hashes;
          const list = (numbers: readonly number[]) => `[${a}${numbers.join(`${b},${c}`)}${d}]`;
          const members = Object.entries(rest).map(
            ([name, value]) => `${JSON.stringify(name)}${c}:${d}${JSON.stringify(value)}`,
          );
          if (tokens !== undefined) members.unshift(`"tokens"${b}:${a}${list(tokens)}`);
          if (hashes !== undefined) members.push(`"hashes":${list(hashes)}`);
          const text = `${a}{${b}${members.join(`${c},${d}`)}${a}}${b}`;
          const wanted = literal(text);
          const got = scan(text);
          expect(got.tokens === null ? undefined : [...got.tokens]).toEqual(wanted.tokens);
          expect(got.hashes === null ? undefined : [...got.hashes].map(Number)).toEqual(
            wanted.hashes,
          );
          const parsed = [...got.rest].map(([name, json]) => [name, JSON.parse(json)]);
          expect(new Map(parsed as [string, unknown][])).toEqual(
            new Map(Object.entries(wanted.rest)),
          );
        },
      ),
      { numRuns: 500 },
    );
  });

  test("the scan throws only ScanError and accepts only JSON", () => {
    const piece = fc.constantFrom(
      ...['{"', "tokens", "hashes", '":', "[", "]", "{", "}", ",", '"', "\\", "1", "0", "-", "."],
      ...[" ", "e5", "true", "null", "\u0000", "é", '"model":"m"', "18446744073709551616", '"0x1"'],
    );
    fc.assert(
      fc.property(fc.array(piece, { maxLength: 14 }), (pieces) => {
        const text = pieces.join("");
        let got: ReturnType<typeof scan> | null = null;
        try {
          got = scan(text);
          for (const value of got.rest.values()) JSON.parse(value);
        } catch (thrown) {
          if (thrown instanceof ScanError || thrown instanceof SyntaxError) return;
          throw thrown;
        }
        expect(() => JSON.parse(text)).not.toThrow();
      }),
      { numRuns: 5_000 },
    );
  });

  test("hashes are exact, whether signed, decimal or hex", () => {
    const text =
      '{"hashes": [18446744073709551615, -1, "18446744073709551614", "0xFFFFFFFFFFFFFFFF", 0,' +
      ' "-9223372036854775808", 9007199254740993]}';
    const max = 2n ** 64n - 1n;
    expect([...scan(text).hashes!]).toEqual([
      max,
      max,
      max - 1n,
      max,
      0n,
      2n ** 63n,
      2n ** 53n + 1n,
    ]);
  });

  test.each([
    ['{"tokens": [1, 2', "tokens"],
    ['{"tokens": [4294967296]}', "list of integers"],
    ['{"tokens": [1.5]}', "list of integers"],
    ['{"tokens": [-1]}', "list of integers"],
    ['{"tokens": ["1"]}', "list of integers"],
    ['{"tokens": [01]}', "list of integers"],
    ['{"tokens": [1 2]}', "list of integers"],
    ['{"tokens": [1,]}', "list of integers"],
    ['{"tokens": [,1]}', "list of integers"],
    ['{"tokens": 3}', "not a list"],
    ['{"tokens": [], "tokens": []}', "twice"],
    ['{"model": "a", "model": "b"}', "twice"],
    ['{"hashes": [18446744073709551616]}', "64-bit"],
    ['{"hashes": ["0x"]}', "64-bit"],
    ['{"hashes": [0x1]}', "64-bit"],
    ['{"hashes": [05]}', "64-bit"],
    ['{"hashes": [1e3]}', "64-bit"],
    ['{"hashes": [-9223372036854775809]}', "64-bit"],
    ['{"a" 1}', "colon"],
    ['{"a": 1} 2', "trailing text"],
    ["[1]", "not a JSON object"],
    ["", "not a JSON object"],
    ['{"a": "\u0001"}', "control character"],
    ['{"a": "', "not closed"],
  ])("refuses %s", (text, why) => {
    expect(() => scan(text)).toThrow(why);
  });

  test("a long list of a million tokens is read whole", () => {
    const count = 1_000_000;
    const text = `{"model":"m","tokens":[${Array.from({ length: count }, (_, i) => i).join(",")}]}`;
    const { prompt } = readRouteRequest(bytesOf(text));
    expect(prompt.kind === "tokens" && prompt.tokens.length).toBe(count);
    expect(prompt.kind === "tokens" && prompt.tokens.at(-1)).toBe(count - 1);
  });
});

describe("a request for a worker", () => {
  const read = (value: unknown) => readRouteRequest(bytesOf(JSON.stringify(value)));

  test("a route request has every field by its name", () => {
    const request = read({
      model: "m",
      block_hashes: ["0x10", 5],
      block_tokens: 32,
      prompt_tokens: 70,
      request_id: "r",
      lora_name: "l",
      cache_salt: "s",
      session_id: "u",
      priority: -2.5,
      expected_output_tokens: 9,
      phase: "decode",
      overrides: {
        ...{ overlap_score_weight: 2, temperature: 0.5, mode: "random", worker: "w-1", rank: 3 },
        ...{ allowed: ["w-1", "w-2"], excluded: ["w-3"], seed: 7 },
      },
    });
    expect(request).toEqual({
      model: "m",
      prompt: {
        kind: "hashes",
        hashes: BigUint64Array.from([16n, 5n]),
        blockTokens: 32,
        tokens: 70,
      },
      ...{ requestId: "r", loraName: "l", cacheSalt: "s", sessionId: "u", priority: -2.5 },
      ...{ expectedOutputTokens: 9, phase: "decode" },
      overrides: {
        ...{ overlapScoreWeight: 2, temperature: 0.5, mode: "random", worker: "w-1", rank: 3 },
        ...{ allowed: ["w-1", "w-2"], excluded: ["w-3"], seed: 7 },
      },
    } as unknown as ReturnType<typeof read>);
  });

  test("null counts as absent", () => {
    expect(read({ model: "m", tokens: [], request_id: null, overrides: { seed: null } })).toEqual({
      model: "m",
      prompt: { kind: "tokens", tokens: new Uint32Array(0) },
      overrides: {},
    });
  });

  test.each([
    [{ tokens: [] }, "model is missing"],
    [{ model: "m" }, "tokens or block_hashes are missing"],
    [{ model: "m", tokens: [], block_hashes: [] }, "exclude each other"],
    [{ model: "m", tokens: [], block_tokens: 16 }, "require block_hashes"],
    [{ model: "", tokens: [] }, "model is a string"],
    [{ model: "m", tokens: [], requestid: "x" }, 'unknown field "requestid"'],
    [{ model: "m", tokens: [], request_id: "x".repeat(1_025) }, "request_id is a string"],
    [{ model: "m", tokens: [], priority: "1" }, "priority is a number"],
    [{ model: "m", tokens: [], phase: "x" }, "phase is one of"],
    [{ model: "m", tokens: [], expected_output_tokens: 1.5 }, "an integer"],
    [{ model: "m", tokens: [], overrides: [] }, "overrides must be an object"],
    [{ model: "m", tokens: [], overrides: { worker: "a b" } }, "overrides.worker is a worker id"],
    [{ model: "m", tokens: [], overrides: { allowed: "a" } }, "overrides.allowed is a list"],
    [{ model: "m", tokens: [], overrides: { temprature: 1 } }, 'unknown field "temprature"'],
  ])("refuses %j", (value, why) => {
    expect(() => read(value)).toThrow(why);
  });
});
