import { beforeAll, expect, test } from "bun:test";
import {
  blockChainOf,
  digestsOfChainKeys,
  digestsOfPrompt,
  manifestOf,
  type NamespaceManifest,
  PromptDigests,
  sglangPageHashes,
  sglangStorageSeed,
} from "../../src/identity/index.ts";
import { loadNative, type Native } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";
import golden from "./golden/vllm-tagged.json";
import { type GoldenTokens, tokensOf } from "./golden.ts";

const NAMESPACE = new Uint8Array(32).fill(9);
const SALT = "tenant-a";

function manifest(layout: string, extra: Record<string, string>): NamespaceManifest {
  const least = manifestOf({ model: "m", dtype: "bfloat16", layout, blockTokens: 16 });
  return { ...least, extra };
}

/** As hearth_vllm writes it. */
function ofVllm(release: string, hash: string): string | null {
  return blockChainOf(manifest(`vllm:${release}:1:NHD`, { keys: "vllm-chain", hash }));
}

describeNative("chain keys of a namespace", () => {
  let native: Native;
  beforeAll(() => {
    native = loadNative();
  });

  test("follow from the manifest of a connector", () => {
    expect(ofVllm("0.32", "sha256:vllm-none-hash")).toBe("vllm sha256 tagged vllm-none-hash");
    expect(ofVllm("0.31", "xxhash_cbor:a:b")).toBe("vllm xxhash_cbor untagged a:b");
    expect(blockChainOf(manifest("sglang:layer_first", { keys: "sglang-pages" }))).toBe("sglang");
  });

  test("are unknown if the manifest does not say them, or says others", () => {
    expect(blockChainOf(manifest("vllm:NHD", {}))).toBeNull();
    expect(blockChainOf(manifest("x", { keys: "others", hash: "sha256:0" }))).toBeNull();
    expect(ofVllm("0.32", "md5:0")).toBeNull();
    expect(ofVllm("0.32", "sha256")).toBeNull();
    expect(ofVllm("0.32", `sha256:${"0".repeat(300)}`)).toBeNull();
  });

  for (const one of golden.chains.filter(({ name }) => /^(plain|salt)/.test(name))) {
    test(`digests are those of vLLM's own hashes: ${one.algorithm}, ${one.name}`, () => {
      const chain = ofVllm("0.32", `${one.algorithm}:${one.seed}`);
      const tokens = tokensOf(one.tokens as GoldenTokens);
      const cacheSalt = one.name === "plain" ? undefined : SALT;
      const prompt = new PromptDigests(native, { tokens, blockTokens: one.blockTokens, cacheSalt });
      const keys = Buffer.from(one.hashes.join(""), "hex");
      const keyBytes = one.algorithm.startsWith("sha256") ? 32 : 16;
      const expected = digestsOfChainKeys(native, NAMESPACE, keys, keyBytes);
      expect(prompt.in(NAMESPACE, chain)).toEqual(expected);
    });
  }

  test("digests are those of SGLang's page keys, with and without a salt", () => {
    const tokens = tokensOf({ count: 70, times: 7919, plus: 13, modulo: 152_064 });
    for (const cacheSalt of [undefined, SALT]) {
      const prior = sglangStorageSeed(null, cacheSalt ?? null);
      const pages = sglangPageHashes({ tokens, pageTokens: 32, prior });
      const keys = new Uint8Array(Buffer.concat(pages.map(({ digest }) => digest)));
      const prompt = new PromptDigests(native, { tokens, blockTokens: 32, cacheSalt });
      expect(pages).toHaveLength(2);
      expect(prompt.in(NAMESPACE, "sglang")).toEqual(
        digestsOfChainKeys(native, NAMESPACE, keys, 32),
      );
    }
  });

  test("without a chain digests are those of the tokens, and a salt has none", () => {
    const tokens = tokensOf({ count: 70, times: 7919, plus: 13, modulo: 152_064 });
    const plain = new PromptDigests(native, { tokens, blockTokens: 16 });
    expect(plain.in(NAMESPACE)).toEqual(digestsOfPrompt(native, NAMESPACE, tokens, 16));
    expect(plain.in(NAMESPACE, "poems")).toBeNull();
    const salted = new PromptDigests(native, { tokens, blockTokens: 16, cacheSalt: SALT });
    expect(salted.in(NAMESPACE)).toBeNull();
    const cacheSalt = "€".repeat(100_000);
    const long = new PromptDigests(native, { tokens, blockTokens: 16, cacheSalt });
    expect(long.in(NAMESPACE, "vllm sha256 tagged 0")).toBeNull();
  });
});
