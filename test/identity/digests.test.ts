import { beforeAll, expect, test } from "bun:test";
import { DIGEST_BYTES, LAYER_ALL } from "../../src/core/index.ts";
import {
  blockKeys,
  type ChainKeyBytes,
  digestsOfChainKeys,
  digestsOfPrompt,
} from "../../src/identity/index.ts";
import { loadNative, type Native } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";
import golden from "./golden/digests.json";
import manifests from "./golden/manifest.json";
import tagged from "./golden/vllm-tagged.json";
import { bytesOf, tokensOf } from "./golden.ts";

function digestAt(packed: Uint8Array, index: number): Uint8Array {
  return packed.subarray(index * DIGEST_BYTES, (index + 1) * DIGEST_BYTES);
}

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
        expect(digestAt(whole, index).toHex()).toBe(keyAllLayers);
        expect(digestAt(layer5, index).toHex()).toBe(keyLayer5);
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
