import { expect, test } from "bun:test";
import fc from "fast-check";
import { mixHash, RunningDigest } from "../../../src/observability/activity/index.ts";

const hash = fc.bigInt({ min: 0n, max: (1n << 64n) - 1n });

test("the running digest equals the digest of the remaining set, after any history", () => {
  fc.assert(
    fc.property(
      fc.array(hash, { maxLength: 20 }),
      fc.array(fc.nat(), { maxLength: 20 }),
      (all, out) => {
        const digest = new RunningDigest();
        const set = new Set<bigint>();
        const change = (value: bigint, by: 1 | -1) => {
          digest.count(Number(value & 0xffff_ffffn), Number(value >> 32n), by);
        };
        for (const value of all) {
          if (set.has(value)) continue;
          set.add(value);
          change(value, 1);
        }
        for (const pick of out) {
          const value = all[pick % Math.max(1, all.length)];
          if (value !== undefined && set.delete(value)) change(value, -1);
        }
        const mix = [...set].reduce((sum, value) => sum ^ mixHash(value), 0n);
        expect(digest.value).toEqual({ blocks: set.size, mix });
      },
    ),
    { seed: 20_261_123 },
  );
});
