import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import {
  FILTER_BYTES_MAX,
  FILTER_KEYS_MAX,
  KeyFilterBuilder,
  readKeyFilter,
} from "../../../src/peers/wire/index.ts";
import { key } from "./arbitrary.ts";

/** The key of number `i`: as random as a hash. */
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

describe("a filter of keys", () => {
  test("never denies a key that is in it, whatever the keys are and however many came", () => {
    fc.assert(
      fc.property(fc.array(key, { maxLength: 400 }), fc.nat(400), (keys, expected) => {
        const filter = readBack(filterOf(keys, expected).bytes);
        expect(filter.keys).toBe(keys.length);
        for (const one of keys) expect(filter.mayContain(one)).toBe(true);
      }),
      { numRuns: 100, seed: 6 },
    );
  });

  test("denies all keys while it is empty", () => {
    const filter = filterOf([]);
    for (let i = 0; i < 1_000; i++) expect(filter.mayContain(keyOf(i))).toBe(false);
  });

  test("is wrong for less than one key in a hundred, in twelve to fifteen bits a key", () => {
    const keys = Array.from({ length: 100_000 }, (_, i) => keyOf(i));
    const filter = readBack(filterOf(keys).bytes);
    expect((filter.bytes.length * 8) / keys.length).toBeWithin(12, 15.1);
    expect(keys.every((one) => filter.mayContain(one))).toBe(true);
    let wrong = 0;
    for (let i = 0; i < 100_000; i++) if (filter.mayContain(keyOf(1_000_000 + i))) wrong++;
    expect(wrong / 100_000).toBeLessThan(0.01);
  });

  test("is wrong for less than one key in a hundred where it is just full", () => {
    const { room } = new KeyFilterBuilder(20_000);
    const filter = filterOf(Array.from({ length: room }, (_, i) => keyOf(i)));
    let wrong = 0;
    for (let i = 0; i < 50_000; i++) if (filter.mayContain(keyOf(1_000_000 + i))) wrong++;
    expect(wrong / 50_000).toBeLessThan(0.01);
  });

  test("has the same bytes for the same keys, in whatever order", () => {
    const keys = Array.from({ length: 3_000 }, (_, i) => keyOf(i));
    expect(filterOf(keys).bytes).toEqual(filterOf(keys.toReversed()).bytes);
  });

  test("says when a larger one would be better, and has an end", () => {
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

  test("reads a key from the middle of others", () => {
    const filter = filterOf([keyOf(1)]);
    const many = new Uint8Array(96);
    many.set(keyOf(1), 32);
    expect(filter.mayContain(many, 32)).toBe(true);
    expect(filter.mayContain(many, 64)).toBe(false);
  });
});

describe("a filter from elsewhere", () => {
  const good = filterOf(Array.from({ length: 300 }, (_, i) => keyOf(i))).bytes;

  test("is refused with any bit changed, cut, or with something behind it", () => {
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

  test("is read from a Buffer in the middle of others, as sockets give them", () => {
    const { bytes } = filterOf([keyOf(1)]);
    const around = Buffer.concat([Buffer.alloc(13, 1), bytes, Buffer.alloc(5, 1)]);
    const filter = readBack(around.subarray(13, 13 + bytes.length));
    expect([filter.mayContain(keyOf(1)), filter.mayContain(keyOf(2))]).toEqual([true, false]);
    around.fill(0);
    expect(filter.mayContain(keyOf(1))).toBe(true);
  });

  test("is a copy, also where it came unaligned", () => {
    const carried = new Uint8Array(good.length + 1);
    carried.set(good, 1);
    const filter = readBack(carried.subarray(1));
    carried.fill(0);
    expect(filter.mayContain(keyOf(7))).toBe(true);
    expect(filter.bytes).toEqual(good);
  });
});
