import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { LAYER_ALL } from "../../../src/core/index.ts";
import {
  blockPath,
  fileBytesOf,
  parseBlockName,
  VARIANT_MAX,
} from "../../../src/store/kvb/index.ts";

const key = Uint8Array.from({ length: 32 }, (_, i) => i + 0xa0);

describe("a file's name", () => {
  test("is made of key, layer and variant", () => {
    expect(blockPath(key, LAYER_ALL, 0)).toBe("a0/a0a1a2a3a4a5a6a7-all.kvb");
    expect(blockPath(key, 0, 0)).toBe("a0/a0a1a2a3a4a5a6a7-0.kvb");
    expect(blockPath(key, 31, 2)).toBe("a0/a0a1a2a3a4a5a6a7-31.2.kvb");
    expect(blockPath(key, LAYER_ALL - 1, 255).length).toBeLessThanOrEqual(38);
    expect(() => blockPath(key, 0, 256)).toThrow("variant");
  });

  test("is read back", () => {
    const any = fc.record({
      key: fc.uint8Array({ minLength: 32, maxLength: 32 }),
      layer: fc.oneof(fc.constant(LAYER_ALL), fc.integer({ min: 0, max: LAYER_ALL })),
      variant: fc.integer({ min: 0, max: VARIANT_MAX }),
    });
    fc.assert(
      fc.property(any, ({ key, layer, variant }) => {
        const [folder, name] = blockPath(key, layer, variant).split("/");
        const keyPrefix = key.subarray(0, 8).toHex();
        expect(parseBlockName(name!)).toEqual({ keyPrefix, layer, variant });
        expect(folder).toBe(keyPrefix.slice(0, 2));
      }),
    );
  });

  for (const name of [
    "",
    "lock",
    "owner.json",
    "a0a1a2a3a4a5a6a7.kvb",
    "a0a1a2a3a4a5a6a7-all.kvb.tmp",
    "a0a1a2a3a4a5a6a7-all.0.kvb",
    "a0a1a2a3a4a5a6a7-all.01.kvb",
    "a0a1a2a3a4a5a6a7-all.256.kvb",
    "a0a1a2a3a4a5a6a7-01.kvb",
    "a0a1a2a3a4a5a6a7--1.kvb",
    "a0a1a2a3a4a5a6a7-4294967295.kvb",
    "a0a1a2a3a4a5a6a7-4294967296.kvb",
    "A0A1A2A3A4A5A6A7-all.kvb",
    "a0a1a2a3a4a5a6-all.kvb",
    "xa0a1a2a3a4a5a6a7-all.kvb",
    "a0a1a2a3a4a5a6a7-all.kvb\n",
  ]) {
    test(`${JSON.stringify(name)} is not a block's name`, () => {
      expect(parseBlockName(name)).toBeNull();
    });
  }
});

test("a file is as long as its header and whole pages of payload", () => {
  expect([1, 4095, 4096, 4097, 262_144].map(fileBytesOf)).toEqual([
    8192, 8192, 8192, 12_288, 266_240,
  ]);
});
