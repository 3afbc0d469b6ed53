import { describe, expect, test } from "bun:test";
import { HearthError } from "../../src/core/index.ts";
import { encodeCbor, encodePickle, type HashInput } from "../../src/identity/index.ts";
import cbor from "./golden/cbor.json";
import pickle from "./golden/pickle.json";
import { bytesOf, type GoldenValue, tokensOf } from "./golden.ts";

function inputOf(value: GoldenValue): HashInput {
  if (value === null || typeof value === "number" || typeof value === "string") return value;
  if ("bytes" in value) return bytesOf(value.bytes);
  if ("int" in value) return BigInt(value.int);
  return (value as readonly GoldenValue[]).map(inputOf);
}

/** The same with token lists in the form in which prompts have them. */
function packed(value: HashInput): HashInput {
  if (!Array.isArray(value)) return value;
  const allTokens =
    value.length > 0 && value.every((item) => typeof item === "number" && item >= 0);
  return allTokens ? Uint32Array.from(value as number[]) : value.map(packed);
}

const NAME_MAX = 60;

function nameOf(value: unknown): string {
  const text = JSON.stringify(value);
  return text.length > NAME_MAX ? `${text.slice(0, NAME_MAX)}…` : text;
}

describe("CPython's pickle, protocol 5", () => {
  for (const one of pickle.cases) {
    test(`of ${nameOf(one.value)}`, () => {
      const value = inputOf(one.value as GoldenValue);
      expect(encodePickle(value).toHex()).toBe(one.bytes);
      expect(encodePickle(packed(value)).toHex()).toBe(one.bytes);
    });
  }

  test("of a long prompt", () => {
    for (const one of pickle.counted) {
      const hash = Bun.CryptoHasher.hash("sha256", encodePickle(tokensOf(one)), "hex");
      expect(hash).toBe(one.sha256);
    }
  });

  test("is refused, not guessed, where CPython would split frames", () => {
    expect(encodePickle("x".repeat(65_000)).length).toBeGreaterThan(65_000);
    try {
      encodePickle("x".repeat(66_000));
      expect.unreachable();
    } catch (error) {
      expect((error as HearthError).code).toBe("UNSUPPORTED");
    }
  });
});

describe("canonical CBOR", () => {
  for (const one of cbor.cases) {
    test(`of ${nameOf(one.value)}`, () => {
      const value = inputOf(one.value as GoldenValue);
      expect(encodeCbor(value).toHex()).toBe(one.bytes);
      expect(encodeCbor(packed(value)).toHex()).toBe(one.bytes);
    });
  }
});

describe("numbers no encoding has", () => {
  for (const wrong of [0.5, Number.NaN, 2 ** 53, 2n ** 64n, -(2n ** 63n) - 1n]) {
    test(`${wrong} is refused`, () => {
      expect(() => encodePickle(wrong)).toThrow(HearthError);
      expect(() => encodeCbor(wrong)).toThrow(HearthError);
    });
  }
});
