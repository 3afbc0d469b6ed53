import { beforeAll, expect, test } from "bun:test";
import {
  type Hashing,
  type VllmExtraKey,
  type VllmHashAlgorithm,
  vllmBlockHashes,
  vllmDigestBytes,
  vllmExternalHash,
  vllmNoneHash,
} from "../../src/identity/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";
import golden from "./golden/vllm.json";
import { bytesOf, type GoldenTokens, tokensOf } from "./golden.ts";

type GoldenExtra = (string | [string, number] | { bytes: string })[] | null;

function extraOf(keys: GoldenExtra): VllmExtraKey[] | null {
  if (keys === null) return null;
  return keys.map((key) => (typeof key === "object" && "bytes" in key ? bytesOf(key.bytes) : key));
}

describeNative("vLLM's block hashes", () => {
  let hashing: Hashing;
  beforeAll(() => {
    hashing = loadNative();
  });

  for (const { algorithm, seed, hash } of golden.none) {
    test(`NONE_HASH of ${algorithm}, seed ${seed}`, () => {
      expect(vllmNoneHash(hashing, algorithm as VllmHashAlgorithm, seed).toHex()).toBe(hash);
    });
  }

  for (const [index, one] of golden.chains.entries()) {
    const algorithm = one.algorithm as VllmHashAlgorithm;
    const extra = (one.extra ?? []) as GoldenExtra[];

    test(`chain ${index}: ${algorithm}, seed ${one.seed}, ${JSON.stringify(extra)}`, () => {
      const hashes = vllmBlockHashes(hashing, {
        algorithm,
        parent: vllmNoneHash(hashing, algorithm, one.seed),
        tokens: tokensOf(one.tokens as GoldenTokens),
        blockTokens: one.blockTokens,
        extraKeys: (block) => extraOf(extra[block] ?? null),
      });
      expect(hashes.map((hash) => hash.toHex())).toEqual(one.hashes);
      expect(hashes.map(vllmExternalHash).map(String)).toEqual(one.external);
    });
  }

  for (const algorithm of ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"] as const) {
    test(`${algorithm}: a chain goes on from any block, and an empty key list is none`, () => {
      const tokens = tokensOf({ count: 100, times: 7919, plus: 13, modulo: 152064 });
      const parent = vllmNoneHash(hashing, algorithm);
      const whole = vllmBlockHashes(hashing, { algorithm, parent, tokens, blockTokens: 16 });
      expect(whole).toHaveLength(6);
      expect(whole.every((hash) => hash.length === vllmDigestBytes(algorithm))).toBe(true);
      const rest = vllmBlockHashes(hashing, {
        algorithm,
        parent: whole[2]!,
        tokens: tokens.subarray(48),
        blockTokens: 16,
        extraKeys: () => [],
      });
      expect(rest).toEqual(whole.slice(3));
    });
  }
});
