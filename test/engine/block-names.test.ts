import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import type { NamespaceIndex } from "../../src/core/index.ts";
import { nameMedia, RememberedPrompts } from "../../src/engine/index.ts";
import { digestsOfPrompt } from "../../src/identity/index.ts";
import { loadNative } from "../../src/native/index.ts";
import { describeNative } from "../support/index.ts";

const ROOT = join(import.meta.dir, "../..");
const OWN = 1 as NamespaceIndex;
const OTHER = 2 as NamespaceIndex;
const NAME = new TextEncoder().encode("cat");

describeNative("names of blocks", () => {
  const native = loadNative();
  const key = new Uint8Array(32).fill(7);
  const tokens = Uint32Array.from({ length: 1_000 }, (_, j) => (j * 7_919 + 13) % 152_064);

  function digests(media: { position: number; name: Uint8Array }[], blockTokens = 16): string[] {
    const packed = digestsOfPrompt(native, key, tokens, blockTokens).slice();
    nameMedia(native, key, media, blockTokens, packed);
    return packed.toHex().match(/.{64}/g)!;
  }

  test("with multimodal items match docs/identity.md", () => {
    const media = [
      { position: 100, name: NAME },
      { position: 640, name: NAME },
    ];
    const plain = digests([]);
    const named = digests(media);
    expect(named.slice(0, 6)).toEqual(plain.slice(0, 6));
    const item = (position: number) => {
      const bytes = new Uint8Array(16);
      new DataView(bytes.buffer).setUint32(0, position, true);
      bytes[4] = 3;
      bytes.set(NAME, 8);
      return bytes;
    };
    const mediaKey = native.blake3DeriveKey("hearth 2026-11 multimodal key v1", key);
    for (const [i, items] of [
      [6, [item(100)]],
      [39, [item(100)]],
      [40, [item(100), item(640)]],
    ] as const) {
      const list = native.blake3(new Uint8Array(Buffer.concat(items)));
      const digest = Uint8Array.fromHex(plain[i]!);
      const both = new Uint8Array([...digest, ...list]);
      expect(named[i]).toBe(native.blake3Keyed(mediaKey, both).toHex());
    }
    const page = readFileSync(join(ROOT, "docs/reference/identity.md"), "utf8");
    expect(page).toContain('"hearth 2026-11 multimodal key v1"');
  });

  test("find the prompt that a request continues, within the memory limit", () => {
    const prompts = new RememberedPrompts(8_192);
    const packed = digestsOfPrompt(native, key, tokens, 64);
    const nameOf = (i: number) => packed.slice(32 * i, 32 * (i + 1));
    prompts.add(OWN, { tokens, media: [{ position: 65, name: NAME }] }, packed);
    expect(prompts.find(OWN, nameOf(0), 64)).toEqual({ tokens: tokens.subarray(0, 64), media: [] });
    const second = prompts.find(OWN, nameOf(1), 64)!;
    expect([second.tokens.length, second.media.length]).toEqual([128, 1]);
    expect(prompts.find(OWN, new Uint8Array(32), 64)).toBeNull();
    expect(prompts.find(OTHER, nameOf(1), 64)).toBeNull();
    // Another prompt of the same size evicts it.
    const other = tokens.map((token) => token + 1);
    prompts.add(OWN, { tokens: other, media: [] }, digestsOfPrompt(native, key, other, 64));
    expect(prompts.find(OWN, nameOf(1), 64)).toBeNull();
    // Names of items use memory as tokens do.
    const items = Array.from({ length: 40 }, (_, position) => ({ position, name: NAME }));
    prompts.add(OWN, { tokens, media: items }, packed);
    expect(prompts.find(OWN, nameOf(1), 64)).toBeNull();
  });
});
