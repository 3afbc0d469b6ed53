import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { Column, HashTable, NO_ENTRY } from "../../src/core/index.ts";

const LISTS = 2;
const keys = fc.oneof(
  fc.bigInt({ min: 0n, max: 40n }),
  fc.bigInt({ min: 0n, max: 40n }).map((n) => n << 32n),
  fc.bigInt({ min: 2n ** 64n - 3n, max: 2n ** 64n - 1n }),
);
const step = fc.record({
  what: fc.constantFrom("add", "delete", "move", "clear"),
  key: keys,
  list: fc.nat(LISTS - 1),
});

/** The same in plain maps: a key's list, in the order in which the keys joined it. */
class Literal {
  readonly lists = Array.from({ length: LISTS }, () => new Map<bigint, number>());
  join(key: bigint, list: number, value: number): void {
    for (const one of this.lists) one.delete(key);
    this.lists[list]!.set(key, value);
  }
  get(key: bigint): number | undefined {
    return this.lists.map((one) => one.get(key)).find((value) => value !== undefined);
  }
}

describe("a hash table", () => {
  test("equals plain maps after any sequence of changes", () => {
    const run = (steps: readonly { what: string; key: bigint; list: number }[], max: number) => {
      const table = new HashTable(max, LISTS);
      const values = new Column(Uint32Array);
      const literal = new Literal();
      for (const [i, { what, key, list }] of steps.entries()) {
        const entry = table.find(key);
        const known = literal.get(key);
        expect(entry === NO_ENTRY).toBe(known === undefined);
        if (what === "add" && entry === NO_ENTRY) {
          values.set(table.add(key, list), i);
          literal.join(key, list, i);
        } else if (what === "delete" && entry !== NO_ENTRY) {
          table.delete(entry);
          for (const one of literal.lists) one.delete(key);
        } else if (what === "move" && entry !== NO_ENTRY) {
          table.move(entry, list);
          literal.join(key, list, known!);
        } else if (what === "clear" && i % 7 === 0) {
          table.clear();
          for (const one of literal.lists) one.clear();
        }
        for (const [at, one] of literal.lists.entries()) {
          const found = [...table.entries(at)].map((e) => [table.keyOf(e), values.get(e)]);
          expect(found).toEqual([...one]);
          expect(table.sizeOf(at)).toBe(one.size);
          const first = one.keys().next().value;
          const oldest = table.oldest(at);
          expect(oldest === NO_ENTRY ? undefined : table.keyOf(oldest)).toBe(first);
        }
        expect(table.size).toBe(literal.lists[0]!.size + literal.lists[1]!.size);
      }
    };
    fc.assert(fc.property(fc.array(step, { maxLength: 80 }), fc.constantFrom(1, 100_000), run));
  });

  test("finds 200,000 hashes that are multiples of each other, and reuses entries", () => {
    const count = 200_000;
    const table = new HashTable(count);
    for (let i = 0; i < count; i++) table.add(BigInt(i) << 20n);
    let found = 0;
    for (let i = 0; i < count; i++) {
      const entry = table.find(BigInt(i) << 20n);
      if (table.keyOf(entry) === BigInt(i) << 20n) found++;
    }
    expect(found).toBe(count);
    expect(table.find(1n)).toBe(NO_ENTRY);
    const oldest = table.oldest();
    table.delete(oldest);
    expect(table.add(1n)).toBe(oldest);
    expect(table.size).toBe(count);
  });

  test("a visit may delete the entry that it is at", () => {
    const table = new HashTable(10);
    for (const n of [3n, 1n, 2n]) table.add(n);
    const seen: bigint[] = [];
    for (const entry of table.entries()) {
      seen.push(table.keyOf(entry));
      table.delete(entry);
    }
    expect(seen).toEqual([3n, 1n, 2n]);
    expect(table.size).toBe(0);
  });
});
