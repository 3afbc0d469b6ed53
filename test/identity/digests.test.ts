import { beforeAll, expect, test } from "bun:test";
import { LAYER_ALL } from "../../src/core/index.ts";
import {
  blockKeyAt,
  blockKeys,
  type ChainKeyBytes,
  digestAt,
  digestsOfChainKeys,
  digestsOfPrompt,
  namesOfPrompt,
  sglangEventSeed,
  sglangPageHashes,
  type VllmExtraKey,
  vllmBlockHashes,
  vllmNoneHash,
} from "../../src/identity/index.ts";
import { loadNative, type Native } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";
import golden from "./golden/digests.json";
import manifests from "./golden/manifest.json";
import tagged from "./golden/vllm-tagged.json";
import { bytesOf, tokensOf } from "./golden.ts";

describeNative("digests", () => {
  let native: Native;
  beforeAll(() => {
    native = loadNative();
  });
  const namespace = bytesOf(golden.namespaceKey);

  for (const one of golden.prompts) {
    test(`of ${one.tokens.count} tokens, blocks of ${one.blockTokens}: as written down`, () => {
      const digests = digestsOfPrompt(native, namespace, tokensOf(one.tokens), one.blockTokens);
      expect(digests.length).toBe(32 * one.digests);
      const whole = blockKeys(native, digests, LAYER_ALL);
      const layer5 = blockKeys(native, digests, 5);
      for (const { index, digest, keyAllLayers, keyLayer5 } of one.at) {
        expect(digestAt(digests, index).toHex()).toBe(digest);
        expect(blockKeyAt(whole, index).toHex()).toBe(keyAllLayers);
        expect(blockKeyAt(layer5, index).toHex()).toBe(keyLayer5);
      }
    });
  }

  test("of chain keys are those written down", () => {
    for (const { key, digest } of golden.chainKeys) {
      const bytes = bytesOf(key);
      const width = bytes.length as ChainKeyBytes;
      expect(digestsOfChainKeys(native, namespace, bytes, width).toHex()).toBe(digest);
    }
  });

  test("a longer prompt has the same digests as far as the shorter one goes", () => {
    const tokens = tokensOf({ count: 3000, times: 31, plus: 7, modulo: 50_000 });
    const long = digestsOfPrompt(native, namespace, tokens, 64);
    for (const count of [63, 64, 65, 1000, 2047, 2048, 2049]) {
      const short = digestsOfPrompt(native, namespace, tokens.subarray(0, count), 64);
      expect(short.toHex()).toBe(long.subarray(0, short.length).toHex());
      expect(short.length).toBe(32 * Math.floor(count / 64));
    }
  });

  test("another token, another namespace, another start: another digest from there on", () => {
    const tokens = tokensOf({ count: 640, times: 31, plus: 7, modulo: 50_000 });
    const plain = digestsOfPrompt(native, namespace, tokens, 64);
    const changed = tokens.slice();
    changed[200]! ^= 1;
    const other = digestsOfPrompt(native, namespace, changed, 64);
    const same = Array.from({ length: 10 }, (_, i) => {
      return digestAt(plain, i).toHex() === digestAt(other, i).toHex();
    });
    expect(same).toEqual([true, true, true, ...Array<boolean>(7).fill(false)]);
    const elsewhere = digestsOfPrompt(native, native.blake3(namespace), tokens, 64);
    expect(digestAt(elsewhere, 0).toHex()).not.toBe(digestAt(plain, 0).toHex());
  });
});

function saltOf(block: number): VllmExtraKey[] | null {
  return block === 0 ? [{ kind: "cache_salt", salt: "salt" }] : null;
}

describeNative("names of a prompt's blocks", () => {
  let native: Native;
  beforeAll(() => {
    native = loadNative();
  });
  const namespace = bytesOf(golden.namespaceKey);
  const tokens = tokensOf({ count: 100, times: 7919, plus: 13, modulo: 152_064 });

  test("one row has the digest and what each engine calls the block", () => {
    const parent = vllmNoneHash(native, "sha256");
    const rows = namesOfPrompt(native, {
      namespaceKey: namespace,
      tokens,
      blockTokens: 16,
      vllm: { algorithm: "sha256", parent, extraKeys: (block) => saltOf(block) },
      sglang: { prior: sglangEventSeed("salt") },
    });
    const digests = digestsOfPrompt(native, namespace, tokens, 16);
    const vllm = vllmBlockHashes(native, {
      algorithm: "sha256",
      parent,
      tokens,
      blockTokens: 16,
      extraKeys: (block) => saltOf(block),
    });
    const prior = sglangEventSeed("salt");
    const sglang = sglangPageHashes({ tokens, pageTokens: 16, prior });
    expect(rows).toHaveLength(6);
    for (const [index, row] of rows.entries()) {
      expect(row.endToken).toBe(16 * (index + 1));
      expect(row.digest).toEqual(digestAt(digests, index));
      expect(row.vllm!.digest).toEqual(vllm[index]!);
      expect(row.sglang!.digest).toEqual(sglang[index]!.digest);
    }
  });

  test("engine hashes lead back to digests through the rows", () => {
    const rows = namesOfPrompt(native, {
      namespaceKey: namespace,
      tokens,
      blockTokens: 16,
      vllm: { algorithm: "sha256_cbor", parent: vllmNoneHash(native, "sha256_cbor") },
      sglang: { prior: null },
    });
    const back = new Map(
      rows.flatMap((row) => [
        [row.vllm!.external, row] as const,
        [row.sglang!.external, row] as const,
      ]),
    );
    expect(back.size).toBe(2 * rows.length);
    for (const row of rows) expect(back.get(row.sglang!.external)).toBe(row);
  });

  test("an engine that was not asked for, or does not reach a block, has no name for it", () => {
    const request = { namespaceKey: namespace, tokens: tokens.subarray(0, 32), blockTokens: 16 };
    const rows = namesOfPrompt(native, { ...request, sglang: { prior: null, eagle: true } });
    expect(rows.map((row) => row.vllm)).toEqual([null, null]);
    expect(rows.map((row) => row.sglang === null)).toEqual([false, true]);
  });
});

test("the page on identity prints the vectors that are tested", async () => {
  const page = await Bun.file(new URL("../../docs/reference/identity.md", import.meta.url)).text();
  const joined = page.replaceAll("\n", "");
  const [least] = manifests.cases;
  const [small, large] = golden.prompts;
  const salted = tagged.chains.find(({ name }) => name === "salt");
  const printed = [
    least!.encoding,
    least!.namespaceKey,
    golden.namespaceKey,
    small!.at[0]!.digest,
    small!.at[0]!.keyAllLayers,
    small!.at[0]!.keyLayer5,
    small!.at.at(-1)!.digest,
    large!.at.at(-1)!.digest,
    golden.chainKeys[0]!.digest,
    golden.chainKeys[2]!.digest,
    salted!.hashes[0]!,
    salted!.external[0]!,
  ];
  for (const vector of printed) expect(joined).toContain(vector);
});
