import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { ActiveLoad, type ActiveRequest, type TargetId } from "../../../src/router/index.ts";
import { ManualClock } from "../../support/index.ts";
import { chainOf, promptNames } from "../chain.ts";
import { LiteralLoad } from "./literal-load.ts";

const B = 4;
const EXPIRY_MS = 300_000;
const TARGETS = 3;

function open(options: { requestsMax?: number; blocksMax?: number } = {}) {
  const clock = new ManualClock();
  const load = new ActiveLoad({ clock, blockTokens: B, requestExpiryMs: EXPIRY_MS, ...options });
  return { clock, load };
}

function request(id: string, target: number, names: readonly number[], tail = 0): ActiveRequest {
  const promptTokens = names.length * B + tail;
  return {
    id,
    target: target as TargetId,
    hashes: chainOf(names),
    promptTokens,
    prefillTokens: promptTokens,
    expectedOutputTokens: null,
  };
}

const on = (load: ActiveLoad, target: number) => load.of(target as TargetId);

function additional(load: ActiveLoad, names: readonly number[], tail = 0): number[] {
  const into = new Uint32Array(TARGETS);
  load.additionalBlocks(chainOf(names), names.length * B + tail, into);
  return [...into];
}

const id = fc.constantFrom("a", "b", "c", "d", "e");
const step = fc.oneof(
  fc.record({
    kind: fc.constant("add" as const),
    id,
    target: fc.nat(TARGETS - 1),
    names: promptNames,
    tail: fc.nat(B - 1),
  }),
  fc.record({ kind: fc.constant("free" as const), id }),
  fc.record({ kind: fc.constant("prefill" as const), id }),
  fc.record({ kind: fc.constant("output" as const), id, tokens: fc.nat(20) }),
  fc.record({ kind: fc.constant("wait" as const), ms: fc.nat(EXPIRY_MS) }),
  fc.record({ kind: fc.constant("drop" as const), target: fc.nat(TARGETS - 1) }),
);

test("the load equals a literal list of active requests after any steps", () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), promptNames, (steps, asked) => {
      const { clock, load } = open();
      const model = new LiteralLoad(B, EXPIRY_MS);
      for (const each of steps) {
        const nowMs = clock.monotonicMs();
        if (each.kind === "add") {
          const added = request(each.id, each.target, each.names, each.tail);
          load.add(added);
          model.add(added, nowMs);
        } else if (each.kind === "free") {
          expect(load.free(each.id) === "done").toBe(model.free(each.id));
        } else if (each.kind === "prefill") {
          const isDone = load.markPrefillComplete(each.id) === "done";
          expect(isDone).toBe(model.prefillComplete(each.id, nowMs));
        } else if (each.kind === "output") {
          const isDone = load.output(each.id, each.tokens) === "done";
          expect(isDone).toBe(model.output(each.id, each.tokens, nowMs));
        } else if (each.kind === "wait") {
          clock.advance(each.ms);
          expect([...load.expire()].sort()).toEqual(model.expire(clock.monotonicMs()).sort());
        } else {
          load.dropTarget(each.target as TargetId);
          model.live = model.live.filter(({ request }) => request.target !== each.target);
        }
        expect(load.requests).toBe(model.live.length);
        for (let target = 0; target < TARGETS; target++) {
          expect(on(load, target)).toEqual(model.of(target));
        }
        const hashes = chainOf(asked);
        const expected = [0, 1, 2].map((at) => model.additional(at, hashes, asked.length * B + 1));
        expect(additional(load, asked, 1)).toEqual(expected);
      }
    }),
    { numRuns: 300 },
  );
});

describe("by hand", () => {
  test("shared leading blocks of two requests count once", () => {
    const { load } = open();
    load.add(request("one", 0, [1, 2, 3], 2));
    load.add(request("two", 0, [1, 2, 9]));
    expect(on(load, 0)).toEqual({ activeBlocks: 4, activePrefillTokens: 26, activeRequests: 2 });
    // A prompt has five full blocks and a part of one; target 0 has three: 1, 2, 3.
    expect(additional(load, [1, 2, 3, 4, 5], 1)).toEqual([3, 6, 6]);
    load.markPrefillComplete("one");
    expect(on(load, 0).activePrefillTokens).toBe(12);
    load.free("one");
    expect(on(load, 0)).toEqual({ activeBlocks: 3, activePrefillTokens: 12, activeRequests: 1 });
  });

  test("output counts in whole blocks and completes the prefill", () => {
    const { load } = open();
    load.add(request("one", 1, [1]));
    expect(load.isPrefilling("one")).toBe(true);
    load.output("one", 1);
    expect(load.isPrefilling("one")).toBe(false);
    expect(on(load, 1)).toEqual({ activeBlocks: 2, activePrefillTokens: 0, activeRequests: 1 });
    load.output("one", B);
    expect(on(load, 1).activeBlocks).toBe(2);
    load.output("one", B + 1);
    load.output("one", 1);
    expect(on(load, 1).activeBlocks).toBe(3);
    load.free("one");
    expect(on(load, 1)).toEqual({ activeBlocks: 0, activePrefillTokens: 0, activeRequests: 0 });
  });

  test("a request expires 300 s after its last update", () => {
    const { clock, load } = open();
    load.add(request("one", 0, [1]));
    load.add(request("two", 0, [2]));
    clock.advance(EXPIRY_MS - 1);
    load.output("one", 3);
    expect(load.expire()).toEqual([]);
    clock.advance(1);
    expect(load.expire()).toEqual(["two"]);
    clock.advance(EXPIRY_MS - 1);
    expect(load.expire()).toEqual(["one"]);
    expect(load.isPrefilling("one")).toBeNull();
  });
});

describe("within bounds", () => {
  test("at the limit the least recently updated request is freed", () => {
    const { load } = open({ requestsMax: 2 });
    load.add(request("one", 0, [1]));
    load.add(request("two", 0, [2]));
    load.output("one", 1);
    load.add(request("three", 0, [3]));
    expect(load.requests).toBe(2);
    expect(load.find("two")).toBeNull();
    expect(load.expire()).toEqual(["two"]);
  });

  test("blocks beyond the limit count as unshared", () => {
    const { load } = open({ blocksMax: 4 });
    load.add(request("one", 0, [1, 2, 3]));
    load.add(request("two", 0, [1, 2, 3]));
    expect(on(load, 0).activeBlocks).toBe(6);
    load.free("two");
    expect(on(load, 0).activeBlocks).toBe(3);
    load.free("one");
    expect(on(load, 0).activeBlocks).toBe(0);
  });
});

test("inconsistent hashes do not affect other requests", () => {
  const hashes = fc.array(fc.bigInt(0n, 3n), { maxLength: 6 });
  const prompts = fc.array(fc.record({ id, target: fc.nat(1), hashes }), { maxLength: 30 });
  fc.assert(
    fc.property(prompts, (adds) => {
      const { load } = open();
      for (const { id: name, target, hashes: list } of adds) {
        load.add({ ...request(name, target, []), hashes: BigUint64Array.from(list) });
        load.additionalBlocks(BigUint64Array.from(list), 99, new Uint32Array(2));
      }
      for (const name of ["a", "b", "c", "d", "e"]) load.free(name);
      for (const target of [0, 1]) {
        const nothing = { activeBlocks: 0, activePrefillTokens: 0, activeRequests: 0 };
        expect(on(load, target)).toEqual(nothing);
      }
    }),
  );
});
