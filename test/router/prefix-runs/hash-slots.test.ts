import { expect, test } from "bun:test";
import fc from "fast-check";
import { HashSlots } from "../../../src/router/index.ts";

// Few different hashes, so that most steps meet one that is there; high and low both matter.
const half = fc.constantFrom(0, 1, 2, 0x7fffffff, 0xffffffff);
const step = fc.record({ low: half, high: half, isAdd: fc.boolean() });

test("slots are a map from 64-bit hashes", () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 200 }), fc.nat(), (steps, seed) => {
      const slots = new HashSlots<string>(seed);
      const model = new Map<string, string>();
      for (const [number, { low, high, isAdd }] of steps.entries()) {
        const key = `${low} ${high}`;
        if (!isAdd) {
          slots.delete(low, high);
          model.delete(key);
        } else if (!model.has(key)) {
          slots.set(low, high, `value ${number}`);
          model.set(key, `value ${number}`);
        }
        expect(slots.size).toBe(model.size);
        expect(slots.get(low, high)).toBe(model.get(key));
      }
      for (const low of [0, 1, 2, 0x7fffffff, 0xffffffff]) {
        for (const high of [0, 1, 2, 0x7fffffff, 0xffffffff]) {
          expect(slots.get(low, high)).toBe(model.get(`${low} ${high}`));
        }
      }
    }),
  );
});

test("slots grow, and nothing is lost when many go", () => {
  const slots = new HashSlots<number>(7);
  for (let i = 0; i < 20_000; i++) slots.set(i, i * 3, i);
  for (let i = 0; i < 20_000; i += 2) slots.delete(i, i * 3);
  expect(slots.size).toBe(10_000);
  const wrong = Array.from({ length: 20_000 }, (_, i) => i).filter(
    (i) => slots.get(i, i * 3) !== (i % 2 === 0 ? undefined : i),
  );
  expect(wrong).toEqual([]);
});
