import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import {
  FILTER_BYTES_MAX,
  FILTER_KEYS_MAX,
  KeyFilterBuilder,
  readKeyFilter,
} from "../../../src/peers/wire/index.ts";
import { key } from "./arbitrary.ts";

/** A key from a number, as random as a hash. */
function keyOf(i: number): Uint8Array {
  return new Uint8Array(new Bun.CryptoHasher("blake2b256").update(`${i}`).digest());
}

function filterOf(keys: readonly Uint8Array[], expected = keys.length) {
  const builder = new KeyFilterBuilder(expected);
  for (const one of keys) builder.add(one);
  return builder.done();
}

function readBack(bytes: Uint8Array) {
  const read = readKeyFilter(bytes);
  if (!read.ok) throw new Error(read.why);
  return read.filter;
}

describe("a key filter", () => {
  test("contains every key that was added, however many", () => {
    fc.assert(
      fc.property(fc.array(key, { maxLength: 400 }), fc.nat(400), (keys, expected) => {
        const filter = readBack(filterOf(keys, expected).bytes);
        expect(filter.keys).toBe(keys.length);
        for (const one of keys) expect(filter.mayContain(one)).toBe(true);
      }),
      { numRuns: 100, seed: 6 },
    );
  });

  test("contains no key while it is empty", () => {
    const filter = filterOf([]);
    for (let i = 0; i < 1_000; i++) expect(filter.mayContain(keyOf(i))).toBe(false);
  });

  test("has less than 1 % false positives at twelve to fifteen bits per key", () => {
    const keys = Array.from({ length: 100_000 }, (_, i) => keyOf(i));
    const filter = readBack(filterOf(keys).bytes);
    expect((filter.bytes.length * 8) / keys.length).toBeWithin(12, 15.1);
    expect(keys.every((one) => filter.mayContain(one))).toBe(true);
    let wrong = 0;
    for (let i = 0; i < 100_000; i++) if (filter.mayContain(keyOf(1_000_000 + i))) wrong++;
    expect(wrong / 100_000).toBeLessThan(0.01);
  });

  test("has less than 1 % false positives at its capacity", () => {
    const { room } = new KeyFilterBuilder(20_000);
    const filter = filterOf(Array.from({ length: room }, (_, i) => keyOf(i)));
    let wrong = 0;
    for (let i = 0; i < 50_000; i++) if (filter.mayContain(keyOf(1_000_000 + i))) wrong++;
    expect(wrong / 50_000).toBeLessThan(0.01);
  });

  test("has the same bytes for the same keys in any order", () => {
    const keys = Array.from({ length: 3_000 }, (_, i) => keyOf(i));
    expect(filterOf(keys).bytes).toEqual(filterOf(keys.toReversed()).bytes);
  });

  test("reports when a larger filter is needed, and has a maximum size", () => {
    const builder = new KeyFilterBuilder(0);
    for (let i = 0; i <= builder.room; i++) {
      expect(builder.overfull).toBe(false);
      builder.add(keyOf(i));
    }
    expect(builder.overfull).toBe(true);
    const largest = new KeyFilterBuilder(10 ** 12);
    expect(largest.room).toBe(FILTER_KEYS_MAX);
    const { bytes } = largest.done();
    expect(bytes.length).toBeWithin(FILTER_BYTES_MAX - 64, FILTER_BYTES_MAX + 1);
    expect(readKeyFilter(bytes).ok).toBe(true);
  });

  test("reads a key at an offset", () => {
    const filter = filterOf([keyOf(1)]);
    const many = new Uint8Array(96);
    many.set(keyOf(1), 32);
    expect(filter.mayContain(many, 32)).toBe(true);
    expect(filter.mayContain(many, 64)).toBe(false);
  });
});

describe("a received key filter", () => {
  const good = filterOf(Array.from({ length: 300 }, (_, i) => keyOf(i))).bytes;

  test("is refused with a changed bit, cut off, or with trailing bytes", () => {
    for (let bit = 0; bit < 8 * good.length; bit += bit < 8 * 32 ? 1 : 37) {
      const bad = good.slice();
      bad[bit >> 3]! ^= 1 << (bit & 7);
      expect(readKeyFilter(bad).ok).toBe(false);
    }
    for (const length of [0, 1, 31, 32, 33, good.length - 1]) {
      expect(readKeyFilter(good.subarray(0, length)).ok).toBe(false);
    }
    expect(readKeyFilter(new Uint8Array([...good, 0])).ok).toBe(false);
  });

  test("is read from a Buffer with an offset", () => {
    const { bytes } = filterOf([keyOf(1)]);
    const around = Buffer.concat([Buffer.alloc(13, 1), bytes, Buffer.alloc(5, 1)]);
    const filter = readBack(around.subarray(13, 13 + bytes.length));
    expect([filter.mayContain(keyOf(1)), filter.mayContain(keyOf(2))]).toEqual([true, false]);
    around.fill(0);
    expect(filter.mayContain(keyOf(1))).toBe(true);
  });

  test("is copied, also if it is unaligned", () => {
    const carried = new Uint8Array(good.length + 1);
    carried.set(good, 1);
    const filter = readBack(carried.subarray(1));
    carried.fill(0);
    expect(filter.mayContain(keyOf(7))).toBe(true);
    expect(filter.bytes).toEqual(good);
  });
});
