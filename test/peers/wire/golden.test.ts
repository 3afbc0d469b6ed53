import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { decodePart, encodeFrame } from "../../../src/peers/wire/index.ts";
import { READERS } from "./arbitrary.ts";
import { CASES, FRAME, goldenBytes, goldenNames, goldenText } from "./golden-cases.ts";

const DOCUMENT = join(import.meta.dir, "../../../docs/internals/wire-protocol.md");

describe("golden messages", () => {
  test("each golden file has a case, and each case a file", () => {
    expect(CASES.map(({ name }) => name).sort()).toEqual(goldenNames());
  });

  for (const { name, reader, value, bytes } of CASES) {
    test(`${name} is encoded byte for byte`, () => {
      expect(bytes.toHex()).toBe(goldenBytes(name).toHex());
    });

    test(`${name} is decoded`, () => {
      const read = READERS[reader](goldenBytes(name));
      expect(read.ok ? read.value : read.why).toEqual(value);
    });

    test(`${name} is decoded by no other reader, and changed bits in one way`, () => {
      const golden = goldenBytes(name);
      for (let bit = 0; bit < 8 * golden.length; bit++) {
        const changed = golden.slice();
        changed[bit >> 3]! ^= 1 << (bit & 7);
        const read = Object.values(READERS).filter((decode) => decode(changed).ok);
        expect(read.length).toBeLessThanOrEqual(1);
      }
      const read = Object.keys(READERS).filter(
        (other) => READERS[other as keyof typeof READERS](golden).ok,
      );
      expect(read).toEqual([reader]);
    });
  }

  test("are printed in the documentation as they are", () => {
    const text = readFileSync(DOCUMENT, "utf8");
    const missing = goldenNames().filter((name) => !text.includes(goldenText(name)));
    expect(missing).toEqual([]);
  });
});

test("a frame's fixed part equals the encoding of bincode 1 with fixed-width integers", () => {
  // struct Frame { address: (digest: [u8; 32], layer: u32), model: String, layer: u32, bytes: u64 }
  // An array has no length in front, a String its length as u64, all is little-endian, no padding.
  const byHand = [
    "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f",
    "02000000",
    "0a00000000000000",
    "6c6c616d612d332d3862",
    "02000000",
    "0000400000000000",
  ].join("");
  const partHead = 12;
  expect(encodeFrame(1, FRAME).subarray(partHead).toHex()).toStartWith(byHand);
  const read = decodePart(encodeFrame(1, { ...FRAME, model: "é" }));
  expect(read).toEqual({
    ok: true,
    part: { kind: "frame", index: 1, header: { ...FRAME, model: "é" } },
  });
});
