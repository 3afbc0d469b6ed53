import { beforeAll, expect, test } from "bun:test";
import fc from "fast-check";
import { blockKeys, digestsOfChainKeys, digestsOfPrompt } from "../../src/identity/index.ts";
import { loadNative, type Native } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";
import vectors from "./golden/blake3-vectors.json";
import xxh3 from "./golden/xxh3.json";
import { tokensOf } from "./golden.ts";

const utf8 = new TextEncoder();

describeNative("BLAKE3 through the native library", () => {
  let native: Native;
  beforeAll(() => {
    native = loadNative();
  });
  const key = utf8.encode(vectors.key);

  for (const one of vectors.cases) {
    test(`gives the published digests of ${one.input_len} bytes`, () => {
      const input = Uint8Array.from({ length: one.input_len }, (_, i) => i % 251);
      const derived = native.blake3DeriveKey(vectors.context_string, input);
      expect(native.blake3(input).toHex()).toBe(one.hash);
      expect(native.blake3Keyed(key, input).toHex()).toBe(one.keyed_hash);
      expect(derived.toHex()).toBe(one.derive_key);
    });
  }

  /** The definition of a prompt's digest: one keyed hash for each prefix. */
  function byDefinition(tokens: Uint32Array, blockTokens: number): string {
    const bytes = new Uint8Array(tokens.buffer, tokens.byteOffset, tokens.byteLength);
    const digests: string[] = [];
    for (let end = blockTokens; end <= tokens.length; end += blockTokens) {
      digests.push(native.blake3Keyed(key, bytes.subarray(0, 4 * end)).toHex());
    }
    return digests.join("");
  }

  for (const blockTokens of [1, 3, 16, 32, 48, 64, 128, 256, 512, 1024, 2500]) {
    test(`each prefix in blocks of ${blockTokens} has the keyed hash of its own`, () => {
      const formula = { count: 9000, times: 7919, plus: 13, modulo: 152064 };
      const whole = tokensOf(blockTokens < 16 ? { ...formula, count: 2100 } : formula);
      expect(digestsOfPrompt(native, key, whole, blockTokens).toHex()).toBe(
        byDefinition(whole, blockTokens),
      );
    });
  }

  test("each prefix has the keyed hash of its own, whatever the sizes", () => {
    const tokens = fc.uint32Array({ maxLength: 3000 });
    fc.assert(
      fc.property(tokens, fc.integer({ min: 1, max: 700 }), (prompt, blockTokens) => {
        const digests = digestsOfPrompt(native, key, prompt, blockTokens);
        return digests.toHex() === byDefinition(prompt, blockTokens);
      }),
      { seed: 20260801, numRuns: 60 },
    );
  });

  test("block keys and digests of chain keys are single hashes, any number of them", () => {
    for (const count of [0, 1, 7, 8, 9, 200]) {
      const digests = Uint8Array.from({ length: 32 * count }, (_, i) => (i * 31) % 251);
      const keys = blockKeys(native, digests, 0xffff_ffff);
      const chained = digestsOfChainKeys(native, key, digests, 32);
      const numbers = digestsOfChainKeys(native, key, digests, 8);
      for (let i = 0; i < count; i++) {
        const item = digests.subarray(32 * i, 32 * (i + 1));
        const address = Uint8Array.of(...item, 0xff, 0xff, 0xff, 0xff);
        expect(keys.subarray(32 * i, 32 * (i + 1)).toHex()).toBe(native.blake3(address).toHex());
        const chain = native.blake3Keyed(key, item).toHex();
        expect(chained.subarray(32 * i, 32 * (i + 1)).toHex()).toBe(chain);
        const number = native.blake3Keyed(key, item.subarray(0, 8)).toHex();
        expect(numbers.subarray(128 * i, 128 * i + 32).toHex()).toBe(number);
      }
    }
  });
});

describeNative("XXH3 through the native library", () => {
  let native: Native;
  beforeAll(() => {
    native = loadNative();
  });

  /** The input of xxHash's own sanity check. */
  function sanityInput(length: number): Uint8Array {
    let generator = 2654435761n;
    return Uint8Array.from({ length }, () => {
      const byte = Number(generator >> 56n);
      generator = BigInt.asUintN(64, generator * 11400714785074694797n);
      return byte;
    });
  }

  test("gives xxHash's own values, 64 bits, at every kind of length", () => {
    for (const { length, hash } of xxh3.xxh3_64) {
      expect(native.xxh3_64(sanityInput(length))).toBe(BigInt(`0x${hash}`));
    }
  });

  test("gives xxHash's own values, 128 bits, at every kind of length", () => {
    for (const { length, hash } of xxh3.xxh3_128) {
      expect(native.xxh3_128(sanityInput(length)).toHex()).toBe(hash);
    }
    for (const { text, xxh3_128 } of xxh3.texts) {
      expect(native.xxh3_128(utf8.encode(text)).toHex()).toBe(xxh3_128);
    }
  });

  test("gives the runtime's own values, 64 bits, at every length up to 5,000", () => {
    const input = sanityInput(5000);
    for (let length = 0; length <= input.length; length++) {
      const part = input.subarray(0, length);
      expect(native.xxh3_64(part)).toBe(BigInt(Bun.hash.xxHash3(part)));
    }
  });
});
