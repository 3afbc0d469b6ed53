import { describe, expect, test } from "bun:test";
import type { WorkerId } from "../../../src/core/index.ts";
import {
  type BusyThresholds,
  type RouteConstraints,
  type Target,
  TargetFilter,
  type TargetLoad,
  WorkerTable,
} from "../../../src/router/index.ts";
import { specOf } from "../specs.ts";

const OFF: BusyThresholds = {
  activeDecodeBlocksThreshold: null,
  activePrefillTokensThreshold: null,
};
const IDLE: TargetLoad = { activeBlocks: 0, activePrefillTokens: 0, activeRequests: 0 };
const WISH: RouteConstraints = {
  model: "m",
  pool: "decode",
  isDirect: false,
};

function targetsOf(...specs: Parameters<typeof specOf>[]): readonly Target[] {
  const table = new WorkerTable();
  for (const spec of specs) table.put(specOf(...spec));
  return table.targets;
}

/** Numbers of the candidates, and the reasons of all. */
function select(
  targets: readonly Target[],
  constraints: RouteConstraints,
  thresholds: BusyThresholds,
  loadOf: (target: Target) => TargetLoad,
) {
  const selection = new TargetFilter().select(targets, constraints, thresholds, loadOf);
  return { ...selection, candidates: selection.candidates.map(({ id }) => Number(id)) };
}

describe("eligible targets", () => {
  test("each excluded target has its reason", () => {
    const table = new WorkerTable();
    for (const name of ["a", "b", "c", "d"]) table.put(specOf(name));
    table.put(specOf("other", { model: "x" }));
    table.put(specOf("pre", { role: "prefill" }));
    table.setState(table.find("b" as WorkerId, 0)!.id, "stale");
    table.setState(table.find("c" as WorkerId, 0)!.id, "draining");
    const constraints = { ...WISH, excluded: ["d" as WorkerId] };
    const { reasons, candidates } = select(table.targets, constraints, OFF, () => IDLE);
    expect(candidates).toEqual([0]);
    const expected = [null, "stale", "draining", "excluded", "other_model", "other_role"] as const;
    expect(reasons).toEqual([...expected]);
  });

  test("stale targets are eligible only if no live one is left", () => {
    const table = new WorkerTable();
    const { id } = table.put(specOf("a"));
    table.setState(id, "stale");
    expect(select(table.targets, WISH, OFF, () => IDLE).candidates).toEqual([0]);
  });

  test("allowed and excluded lists and a named worker restrict the candidates", () => {
    const targets = targetsOf(["a"], ["b"], ["b", { rank: 1 }]);
    const allowed = { ...WISH, allowed: ["b" as WorkerId] };
    expect(select(targets, allowed, OFF, () => IDLE).candidates).toEqual([1, 2]);
    const named = { ...WISH, worker: "b" as WorkerId, rank: 1 };
    expect(select(targets, named, OFF, () => IDLE).candidates).toEqual([2]);
  });
});

describe("who is busy", () => {
  const blocks = { ...OFF, activeDecodeBlocksThreshold: 0.5 };
  const loads = (...active: number[]) => {
    return ({ id }: Target): TargetLoad => ({ ...IDLE, activeBlocks: active[id]! });
  };

  test("a worker is busy above its share of blocks, not at it", () => {
    const targets = targetsOf(["a", { totalBlocks: 100 }], ["b", { totalBlocks: 100 }], ["c"]);
    const found = select(targets, WISH, blocks, loads(50, 51, 1_000));
    expect(found.candidates).toEqual([0, 2]);
    expect(found.reasons[1]).toBe("busy_blocks");
    expect(found.isBusy).toBe(false);
  });

  test("a worker is busy above either token threshold", () => {
    const both = { activeDecodeBlocksThreshold: 0.5, activePrefillTokensThreshold: 10 };
    const targets = targetsOf(["a", { totalBlocks: 100 }]);
    const found = select(targets, WISH, both, () => ({ ...IDLE, activePrefillTokens: 11 }));
    expect(found.reasons).toEqual(["busy_prefill"]);
    expect(found.isBusy).toBe(true);
  });

  test("a worker is busy when all its ranks are", () => {
    const many = { totalBlocks: 100 };
    const targets = targetsOf(["a", many], ["a", { ...many, rank: 1 }], ["b", many]);
    expect(select(targets, WISH, blocks, loads(90, 10, 90)).candidates).toEqual([0, 1]);
    expect(select(targets, WISH, blocks, loads(90, 60, 10)).candidates).toEqual([2]);
  });

  test("a named worker is chosen even if busy", () => {
    const targets = targetsOf(["a", { totalBlocks: 100 }]);
    const constraints = { ...WISH, worker: "a" as WorkerId, isDirect: true };
    expect(select(targets, constraints, blocks, loads(100)).candidates).toEqual([0]);
  });
});

test("the static selection is cached until a worker changes", () => {
  const table = new WorkerTable();
  const { id } = table.put(specOf("a"));
  const filter = new TargetFilter();
  const choose = (model = "m") => {
    return filter.select(table.targets, { ...WISH, model }, OFF, () => IDLE);
  };
  const first = choose();
  expect(choose()).toBe(first);
  expect(choose("x").candidates).toEqual([]);
  table.setState(id, "draining");
  expect(choose().candidates).toEqual([]);
  table.put(specOf("b", { model: "x" }));
  expect(choose("x").candidates.map(({ worker }) => worker)).toEqual(["b" as WorkerId]);
});
