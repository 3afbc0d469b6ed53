import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { ShardedMap } from "../../src/core/index.ts";

const keys = fc.oneof(
  fc.bigInt({ min: 0n, max: 40n }).map((n) => n << 20n),
  fc.constantFrom("", "a", "b", "digest-1", "digest-2"),
);
const step = fc.oneof(
  fc.record({ do: fc.constant("set"), key: keys, value: fc.nat() }),
  fc.record({ do: fc.constant("delete"), key: keys, value: fc.constant(0) }),
);

describe("a sharded map", () => {
  test("equals a built-in map after any sequence of changes", () => {
    fc.assert(
      fc.property(fc.array(step), fc.constantFrom(1, 100_000), (steps, max) => {
        const map = new ShardedMap<bigint | string, number>(max);
        const literal = new Map<bigint | string, number>();
        for (const { do: what, key, value } of steps) {
          if (what === "delete") expect(map.delete(key)).toBe(literal.delete(key));
          else {
            map.set(key, value);
            literal.set(key, value);
          }
          expect(map.get(key)).toBe(literal.get(key));
          expect(map.has(key)).toBe(literal.has(key));
          expect(map.size).toBe(literal.size);
        }
        expect(new Map(map)).toEqual(literal);
        expect(new Set(map.keys())).toEqual(new Set(literal.keys()));
        map.clear();
        expect([map.size, [...map]]).toEqual([0, []]);
      }),
    );
  });

  test("iterates and evicts in order of insertion if it is small", () => {
    const map = new ShardedMap<bigint, number>(8_192);
    for (const n of [5, 3, 9, 1]) map.set(BigInt(n), n);
    expect([...map.keys()]).toEqual([5n, 3n, 9n, 1n]);
    expect(map.takeOldest(2)).toEqual([
      [5n, 5],
      [3n, 3],
    ]);
    expect(map.takeOldest(9).map(([key]) => key)).toEqual([9n, 1n]);
    expect(map.size).toBe(0);
  });

  test("evicts about the oldest entries if it is large", () => {
    const count = 100_000;
    const map = new ShardedMap<bigint, number>(count);
    // Multiples, as some engines number their blocks.
    for (let i = 0; i < count; i++) map.set(BigInt(i) << 20n, i);
    const taken = map.takeOldest(count / 10).map(([, i]) => i);
    expect(new Set(taken).size).toBe(count / 10);
    expect(Math.max(...taken)).toBeLessThan(count / 5);
    expect(map.size).toBe(count - count / 10);
  });
});
