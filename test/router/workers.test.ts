import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import type { WorkerId } from "../../src/core/index.ts";
import { type TargetId, type WorkerEvent, WorkerTable } from "../../src/router/index.ts";
import { specOf } from "./specs.ts";

function open(targetsMax?: number) {
  const table = new WorkerTable(targetsMax === undefined ? {} : { targetsMax });
  const news: string[] = [];
  table.listen((each: WorkerEvent) => {
    const { worker, rank, state } = each.target;
    news.push(`${each.kind} ${worker}/${rank} ${state}`);
  });
  return { table, news };
}

describe("the table of workers", () => {
  test("each change is reported once", () => {
    const { table, news } = open();
    const { id } = table.put(specOf("a"));
    table.put(specOf("a", { role: "decode" }));
    table.put(specOf("a", { role: "decode" }));
    table.setKnown(id, true);
    table.setKnown(id, true);
    table.setState(id, "stale");
    table.setState(id, "stale");
    table.remove(id);
    table.remove(id);
    expect(news).toEqual([
      "joined a/0 live",
      "changed a/0 live",
      "changed a/0 live",
      "state a/0 stale",
      "left a/0 gone",
    ]);
    expect(table.targets).toEqual([]);
  });

  test("a change keeps id, state and known flag", () => {
    const { table } = open();
    const { id } = table.put(specOf("a"));
    table.setState(id, "draining");
    table.setKnown(id, true);
    const changed = table.put(specOf("a", { totalBlocks: 7 }));
    expect(changed).toMatchObject({ id, state: "draining", isKnown: true, totalBlocks: 7 });
    expect(table.find("a" as WorkerId, 0)).toBe(changed);
  });

  test("an unchanged announcement is not reported; a new namespace is", () => {
    const { table, news } = open();
    const spaceOf = (byte: number) => {
      const namespaceKey = new Uint8Array(32).fill(byte);
      return { kind: "blocks", model: "m", blockTokens: 16, namespaceKey } as const;
    };
    const before = table.put(specOf("a", { spaces: [spaceOf(1)] }));
    expect(table.put(specOf("a", { spaces: [spaceOf(1)] }))).toBe(before);
    expect(news.length).toBe(1);
    expect(table.put(specOf("a", { spaces: [spaceOf(2)] }))).not.toBe(before);
    expect(news.length).toBe(2);
  });

  test("an id is reused only after its removal was reported", () => {
    const { table } = open();
    const first = table.put(specOf("a"));
    let during: number | null = null;
    table.listen(({ kind }) => {
      if (kind === "left") during = table.put(specOf("b")).id;
    });
    table.remove(first.id);
    expect(during as number | null).toBe(1);
    expect(table.put(specOf("c")).id).toBe(first.id);
  });

  test("a free wanted id is assigned", () => {
    const { table } = open();
    expect(table.put(specOf("a"), 5 as TargetId).id).toBe(5 as TargetId);
    expect(table.put(specOf("b"), 5 as TargetId).id).not.toBe(5 as TargetId);
    expect(table.targets.map(({ worker }) => worker)).toEqual(["b", "a"] as WorkerId[]);
  });

  test("workers beyond the limit are refused", () => {
    const { table } = open(2);
    table.put(specOf("a"));
    table.put(specOf("b"));
    table.put(specOf("b", { role: "decode" }));
    expect(() => table.put(specOf("c"))).toThrow("the worker table is full: 2 workers");
  });
});

const names = fc.constantFrom("a", "b", "c");
const step = fc.oneof(
  fc.record({ put: names, rank: fc.nat(1), wanted: fc.option(fc.nat(6), { nil: undefined }) }),
  fc.record({ remove: names, rank: fc.nat(1) }),
);

test("ids are unique and lists are ordered by id", () => {
  fc.assert(
    fc.property(fc.array(step, { maxLength: 40 }), (steps) => {
      const { table } = open();
      const ids = new Map<string, TargetId>();
      for (const each of steps) {
        if ("put" in each) {
          const name = `${each.put} ${each.rank}`;
          const spec = specOf(each.put, { rank: each.rank });
          const { id } = table.put(spec, each.wanted as TargetId | undefined);
          expect(ids.get(name) ?? id).toBe(id);
          ids.set(name, id);
        } else {
          const found = table.find(each.remove as WorkerId, each.rank);
          if (found !== null) table.remove(found.id);
          ids.delete(`${each.remove} ${each.rank}`);
        }
        const listed = table.targets.map(({ id }) => id);
        expect(listed).toEqual([...ids.values()].sort((a, b) => a - b));
        for (const target of table.targets) expect(table.get(target.id)).toBe(target);
      }
    }),
  );
});
