import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { verifyTable } from "../blocks/verify-table.ts";
import { SmallTier } from "./small-tier.ts";

const SEED = 20_261_122;
const CAPACITY = 8;

/** A tree of prompts: block n hangs below PARENTS[n]; 0 is no parent. */
const PARENTS = [0, 0, 1, 2, 3, 2, 5, 1, 0, 8, 9, 8, 0, 12, 13, 0];
const LAST = PARENTS.length - 1;

function pathTo(n: number): number[] {
  const parent = PARENTS[n]!;
  return parent === 0 ? [n] : [...pathTo(parent), n];
}

type Step =
  | { readonly kind: "put" | "match"; readonly block: number }
  | { readonly kind: "commit"; readonly block: number; readonly session: bigint }
  | { readonly kind: "release"; readonly session: bigint }
  | { readonly kind: "wait"; readonly minutes: number }
  | { readonly kind: "relieve" };

const block = fc.integer({ min: 1, max: LAST });
const session = fc.constantFrom(1n, 2n, 3n);
const step: fc.Arbitrary<Step> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ kind: fc.constant("put" as const), block }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("match" as const), block }) },
  { weight: 5, arbitrary: fc.record({ kind: fc.constant("commit" as const), block, session }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("release" as const), session }) },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant("wait" as const),
      minutes: fc.integer({ min: 1, max: 50 }),
    }),
  },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("relieve" as const) }) },
);
const steps = fc.array(step, { maxLength: 80, size: "max" });

/** The last block of each session, as literally as it can be said. */
class Model {
  readonly last = new Map<bigint, { block: number; minute: number }>();
  minute = 0;

  commit(number: bigint, n: number): void {
    const old = this.last.get(number)?.block;
    const isBehind = old !== undefined && pathTo(old).includes(n);
    this.last.delete(number);
    this.last.set(number, { block: isBehind ? old : n, minute: this.minute });
  }

  wait(minutes: number): void {
    this.minute += minutes;
    for (const [number, { minute }] of [...this.last]) {
      if (this.minute - minute >= 60) this.last.delete(number);
    }
  }
}

function apply(tier: SmallTier, model: Model, one: Step): void {
  switch (one.kind) {
    case "put":
      tier.put(pathTo(one.block));
      return;
    case "match":
      tier.match(pathTo(one.block));
      return;
    case "commit":
      if (tier.commit(one.session, one.block) === "ok") model.commit(one.session, one.block);
      return;
    case "release":
      expect(tier.release(one.session)).toBe(model.last.has(one.session) ? "ok" : "missing");
      model.last.delete(one.session);
      return;
    case "wait":
      tier.clock.advance(one.minutes * 60_000);
      tier.sessions.endIdle();
      model.wait(one.minutes);
      return;
    case "relieve":
      expect(tier.sessions.endOldest()).toBe(model.last.size > 0);
      for (const oldest of [...model.last.keys()].slice(0, 1)) model.last.delete(oldest);
      return;
    default:
      one satisfies never;
  }
}

/** Runs `check` around each step of any conversation whatever. */
function always(check: (tier: SmallTier, model: Model, one: Step, run: () => void) => void): void {
  fc.assert(
    fc.property(steps, (list) => {
      const tier = new SmallTier(CAPACITY);
      const model = new Model();
      for (const one of list) check(tier, model, one, () => apply(tier, model, one));
      verifyTable(tier.table);
    }),
    { seed: SEED, numRuns: 150 },
  );
}

const matches = (tier: SmallTier) => PARENTS.map((_, n) => (n === 0 ? 0 : tier.match(pathTo(n))));
const literal = (tier: SmallTier) =>
  PARENTS.map((_, n) => {
    if (n === 0) return 0;
    const missing = pathTo(n).findIndex((at) => !tier.isResident(at));
    return missing === -1 ? pathTo(n).length : missing;
  });

describe("whatever conversations do", () => {
  test("I1: matching depends on the tree alone, and a release changes nothing in it", () => {
    let released = 0;
    always((tier, _model, one, run) => {
      const before = matches(tier);
      run();
      expect(matches(tier)).toEqual(literal(tier));
      if (one.kind !== "release" && one.kind !== "relieve" && one.kind !== "wait") return;
      released++;
      expect(matches(tier)).toEqual(before);
    });
    expect(released).toBeGreaterThan(100);
  });

  test("I2: a commit never takes from what the session had on its way", () => {
    let extended = 0;
    always((tier, model, one, run) => {
      const old = one.kind === "commit" ? model.last.get(one.session)?.block : undefined;
      const had = one.kind === "commit" ? tier.blocksOf(one.session) : null;
      const there = matches(tier);
      run();
      if (one.kind !== "commit") return;
      expect(matches(tier)).toEqual(there);
      const stays = old !== undefined && model.last.get(one.session)!.block === old;
      const goesOn = old !== undefined && pathTo(one.block).includes(old);
      if (had === null || !(stays || goesOn)) return;
      extended++;
      expect(tier.blocksOf(one.session)).toBeGreaterThanOrEqual(had);
    });
    expect(extended).toBeGreaterThan(100);
  });

  test("I2: what a session holds is there until it ends", () => {
    always((tier, model, _one, run) => {
      run();
      for (const [number, { block: last }] of model.last) {
        expect(tier.match(pathTo(last))).toBe(pathTo(last).length);
        expect(tier.blocksOf(number)).toBe(pathTo(last).length);
      }
    });
  });

  test("I3: matching is idempotent: not even the order in which blocks leave changes", () => {
    always((tier, _model, _one, run) => {
      run();
      const order = tier.order();
      const first = matches(tier);
      expect(matches(tier)).toEqual(first);
      expect(tier.order()).toEqual(order);
    });
  });

  test("I5: there are as many locks as sessions, each on its last block", () => {
    let most = 0;
    always((tier, model, _one, run) => {
      run();
      const ends = [...model.last.values()].map((last) => last.block);
      const expected = PARENTS.map((_, n) => ends.filter((end) => end === n).length);
      const locks = PARENTS.map((_, n) => tier.locksOf(n));
      expect([tier.sessions.size, ...locks]).toEqual([model.last.size, ...expected]);
      most = Math.max(most, model.last.size);
    });
    expect(most).toBe(3);
  });

  test("I5: when all have ended, nothing is held, and every block may go", () => {
    fc.assert(
      fc.property(steps, (list) => {
        const tier = new SmallTier(CAPACITY);
        const model = new Model();
        for (const one of list) apply(tier, model, one);
        for (const number of [1n, 2n, 3n]) tier.release(number);
        expect([tier.locks(), tier.sessions.size]).toEqual([0, 0]);
        const others = Array.from({ length: CAPACITY }, (_, i) => 100 + i);
        for (const other of others) tier.put([other]);
        expect(matches(tier).every((count) => count === 0)).toBe(true);
      }),
      { seed: SEED, numRuns: 200 },
    );
  });
});

test("I4: traffic without a session is as in a tier without what sessions hold", () => {
  const prompts = fc.array(fc.integer({ min: 1, max: LAST }), { maxLength: 60 });
  const HELD = [60, 61, 62];
  fc.assert(
    fc.property(prompts, (list) => {
      const alone = new SmallTier(CAPACITY);
      const beside = new SmallTier(CAPACITY + HELD.length);
      beside.put(HELD);
      expect(beside.commit(9n, HELD.at(-1)!)).toBe("ok");
      for (const n of list) {
        expect(beside.match(pathTo(n))).toBe(alone.match(pathTo(n)));
        expect(beside.put(pathTo(n))).toEqual(alone.put(pathTo(n)));
        expect(beside.order()).toEqual(alone.order());
      }
      expect(beside.match(HELD)).toBe(HELD.length);
    }),
    { seed: SEED, numRuns: 300 },
  );
});
