import { beforeAll, expect, test } from "bun:test";
import {
  type Hashing,
  type VllmExtraKey,
  type VllmHashAlgorithm,
  vllmBlockHashes,
  vllmDigestBytes,
  vllmExternalHash,
  vllmKeyFormatOf,
  vllmNoneHash,
} from "../../src/identity/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";
import golden from "./golden/vllm.json";
import tagged from "./golden/vllm-tagged.json";
import { bytesOf, type GoldenTokens, tokensOf } from "./golden.ts";

type UntaggedKey = string | [string, number] | { bytes: string };
type TaggedKey = readonly (string | number | { bytes: string })[];

/** A bare text is a LoRA name or a salt: both give the same bytes without tags. */
function untaggedKey(key: UntaggedKey): VllmExtraKey {
  if (typeof key === "string") return { kind: "cache_salt", salt: key };
  if (Array.isArray(key)) return { kind: "mm", identifier: key[0], offset: key[1] };
  return { kind: "prompt_embeds", digest: bytesOf(key.bytes) };
}

function taggedKey([tag, first, second]: TaggedKey): VllmExtraKey {
  switch (tag) {
    case "lora":
      return { kind: tag, name: first as string, path: second as string };
    case "mm":
      return { kind: tag, identifier: first as string, offset: second as number };
    case "cache_salt":
      return { kind: tag, salt: first as string };
    case "prompt_embeds":
      return { kind: tag, digest: bytesOf((first as { bytes: string }).bytes) };
    default:
      throw new Error(`vLLM has a tag that this test does not know: ${tag}`);
  }
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
    const extra = (one.extra ?? []) as (UntaggedKey[] | null)[];

    const name = `chain ${index} before 0.32: ${algorithm}, seed ${one.seed}`;
    test(`${name}, ${JSON.stringify(extra)}`, () => {
      const hashes = vllmBlockHashes(hashing, {
        algorithm,
        parent: vllmNoneHash(hashing, algorithm, one.seed),
        tokens: tokensOf(one.tokens as GoldenTokens),
        blockTokens: one.blockTokens,
        extraKeys: (block) => extra[block]?.map(untaggedKey) ?? null,
        keyFormat: "untagged",
      });
      expect(hashes.map((hash) => hash.toHex())).toEqual(one.hashes);
      expect(hashes.map(vllmExternalHash).map(String)).toEqual(one.external);
    });
  }

  for (const one of tagged.chains) {
    const algorithm = one.algorithm as VllmHashAlgorithm;
    const extra = one.extra as (TaggedKey[] | null)[];

    test(`${algorithm} of vLLM 0.32: ${one.name}`, () => {
      const hashes = vllmBlockHashes(hashing, {
        algorithm,
        parent: vllmNoneHash(hashing, algorithm, one.seed),
        tokens: tokensOf(one.tokens),
        blockTokens: one.blockTokens,
        extraKeys: (block) => extra[block]?.map(taggedKey) ?? null,
      });
      expect(hashes.map((hash) => hash.toHex())).toEqual(one.hashes);
      expect(hashes.map(vllmExternalHash).map(String)).toEqual(one.external);
    });
  }

  test("extra keys are tagged from vLLM 0.32 on", () => {
    const untagged = ["0.31.1", "0.9.2", "0.29.0+cpu", "v0.31.0rc2"];
    expect(untagged.map(vllmKeyFormatOf)).toEqual(untagged.map(() => "untagged"));
    const versions = ["0.32.0", "0.32.0+cpu", "v0.33.0rc1", "1.0.0", "dev"];
    expect(versions.map(vllmKeyFormatOf)).toEqual(versions.map(() => "tagged"));
  });

  for (const algorithm of ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"] as const) {
    test(`${algorithm}: a chain continues from any block; empty extra keys change nothing`, () => {
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
