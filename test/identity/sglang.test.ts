import { describe, expect, test } from "bun:test";
import { createHash } from "node:crypto";
import { sglangPageHashes, sglangStorageSeed } from "../../src/identity/index.ts";
import golden from "./golden/sglang.json";
import { type GoldenTokens, tokensOf } from "./golden.ts";

type GoldenPrior = { eventSalt?: string; storage?: (string | null)[] };

/** Start of the chain of KV events for a request with a salt (SGLang 0.5.18 and later). */
function eventSeed(cacheSalt: string): Uint8Array {
  return createHash("sha256").update(`sglang-cache-salt-v1\0${cacheSalt}`).digest();
}

/** The number in SGLang's KV events: the first eight bytes of the digest, signed. */
function externalHash(digest: Uint8Array): bigint {
  return new DataView(digest.buffer, digest.byteOffset).getBigInt64(0);
}

function seedOf(prior: GoldenPrior): Uint8Array | null {
  if (prior.eventSalt !== undefined) return eventSeed(prior.eventSalt);
  const [extraKey, cacheSalt] = prior.storage!;
  return sglangStorageSeed(extraKey!, cacheSalt!);
}

describe("SGLang's page hashes", () => {
  for (const one of golden.seeds) {
    test(`seed of ${JSON.stringify(one)}`, () => {
      expect(seedOf(one)!.toHex()).toBe(one.hash);
    });
  }

  for (const one of golden.chains) {
    const { hashes, external, tokens, prior, ...rest } = one;
    test(JSON.stringify({ tokens, prior, ...rest }), () => {
      const pages = sglangPageHashes({
        tokens: tokensOf(tokens as GoldenTokens),
        prior: prior === undefined ? null : seedOf(prior),
        ...rest,
      });
      expect(pages).toHaveLength(hashes.length);
      for (const [index, page] of pages.entries()) {
        expect(page.digest.toHex()).toStartWith(hashes[index]!);
        if (external !== undefined) {
          expect(String(externalHash(page.digest))).toBe(external[index]!);
        }
      }
    });
  }

  test("storage keys are of full pages only, events have the partial one too", () => {
    const tokens = tokensOf({ from: 1, to: 6 });
    const full = sglangPageHashes({ tokens, pageTokens: 4, prior: null });
    expect(full.map((page) => page.positions)).toEqual([4]);
    const all = sglangPageHashes({ tokens, pageTokens: 4, prior: null, partialLast: true });
    expect(all.map((page) => page.positions)).toEqual([4, 2]);
    expect(all[0]!.digest).toEqual(full[0]!.digest);
  });

  test("a chain may be continued from any page", () => {
    const tokens = tokensOf({ from: 1, to: 48 });
    const whole = sglangPageHashes({ tokens, pageTokens: 16, prior: null });
    const prior = whole[0]!.digest;
    const rest = sglangPageHashes({ tokens: tokens.subarray(16), pageTokens: 16, prior });
    expect(rest).toEqual(whole.slice(1));
  });

  test("with EAGLE the last token has no position of its own", () => {
    const eight = sglangPageHashes({
      tokens: tokensOf({ from: 1, to: 8 }),
      pageTokens: 4,
      prior: null,
      eagle: true,
      partialLast: true,
    });
    expect(eight.map((page) => page.positions)).toEqual([4, 3]);
    const none = { tokens: Uint32Array.of(7), pageTokens: 4, prior: null, eagle: true };
    expect(sglangPageHashes({ ...none, partialLast: true })).toEqual([]);
  });

  test("empty text seeds nothing, and no two pairs of texts seed the same", () => {
    expect(sglangStorageSeed(null, null)).toBeNull();
    expect(sglangStorageSeed("", "")).toBeNull();
    const pairs = [
      ["a", null],
      [null, "a"],
      ["a", "b"],
      ["ab", null],
      ["b", "a"],
    ] as const;
    const seeds = pairs.map(([extraKey, salt]) => sglangStorageSeed(extraKey, salt)!.toHex());
    expect(new Set([...seeds, eventSeed("a").toHex()]).size).toBe(pairs.length + 1);
  });
});
