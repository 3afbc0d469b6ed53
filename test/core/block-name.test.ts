import { describe, expect, test } from "bun:test";
import { LAYER_ALL, readBlockName } from "../../src/core/index.ts";

const HEX = "0123456789abcdef".repeat(4);

describe("a block's name is", () => {
  test.each([
    [0, 0, 0],
    [-0, 0, 0],
    [1_234_567_890, 1_234_567_890, 0],
    [2 ** 53 - 1, 0xffff_ffff, 0x1f_ffff],
    [-1, 0xffff_ffff, 0xffff_ffff],
    [-(2 ** 53 - 1), 1, 0xffe0_0000],
    [2n ** 64n - 1n, 0xffff_ffff, 0xffff_ffff],
    [-(2n ** 63n), 0, 0x8000_0000],
    ["18446744073709551615", 0xffff_ffff, 0xffff_ffff],
    ["-9223372036854775808", 0, 0x8000_0000],
    ["4294967296", 0, 1],
  ])("the integer %p, as it was given and in two words", (given, lo, hi) => {
    expect(readBlockName(given)).toEqual({ kind: "hash", given, lo, hi });
  });

  test("32 bytes in hex, with or without a layer", () => {
    const bytes = Uint8Array.fromHex(HEX);
    expect(readBlockName(HEX)).toEqual({ kind: "key", given: HEX, bytes, layer: LAYER_ALL });
    const given = `${HEX.toUpperCase()}/7`;
    expect(readBlockName(given)).toEqual({ kind: "key", given, bytes, layer: 7 });
    expect(readBlockName(`${HEX}/${LAYER_ALL}`)).toMatchObject({ layer: LAYER_ALL });
  });

  test.each([
    ...[1.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 53, 2n ** 64n, -(2n ** 63n) - 1n],
    ...["", "x", "-0", "01", "1.0", "1e3", " 1", "0x10", "18446744073709551616", "9".repeat(81)],
    ...["-9223372036854775809", HEX.slice(1), `${HEX}0`, `${HEX}/`, `${HEX}/-1`, `${HEX}/01`],
    ...[
      `${HEX}/4294967296`,
      `${HEX}/9999999999`,
      null,
      undefined,
      true,
      {},
      new Map(),
      new Uint8Array(32),
    ],
  ])("not %p", (raw) => {
    expect(readBlockName(raw)).toBeNull();
  });
});
