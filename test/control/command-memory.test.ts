import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import {
  CommandMemory,
  type Receipt,
  RunningCommands,
  receiptText,
} from "../../src/control/index.ts";

const BYTES_MAX = 96 * 2 ** 20;
const COUNTS = { already: 0, missing: 0, held: 0, deferred: 0, rejected: 0 };

function receiptOf(id: string, issuer: string, blocks: number): Receipt {
  return {
    ...{ id, issuer, type: "Cache", worker_id: "w", incarnation: "1", status: "ok" },
    counts: { done: blocks, ...COUNTS },
    blocks: Array.from({ length: blocks }, (_, at) => ({ block: at, outcome: "done" })),
    elapsed_ms: 1,
  };
}

describe("the memory of commands", () => {
  test("agrees with a literal model, restored or not", () => {
    const put = fc.record({
      issuer: fc.constantFrom("a", "b", "c"),
      id: fc.constantFrom("1", "2", "3"),
      blocks: fc.nat(20),
    });
    fc.assert(
      fc.property(fc.array(put), fc.array(put), (before, after) => {
        const model: { issuer: string; id: string; receipt: Receipt }[] = [];
        const note = (issuer: string, id: string, receipt: Receipt) => {
          const at = model.findIndex((one) => one.issuer === issuer && one.id === id);
          if (at >= 0) model.splice(at, 1);
          model.push({ issuer, id, receipt });
        };
        const rows = before.map(({ issuer, id, blocks }) => {
          const text = receiptText(receiptOf(id, issuer, blocks));
          note(issuer, id, JSON.parse(text));
          return { issuer, id, receipt: text };
        });
        const memory = new CommandMemory(rows);
        for (const { issuer, id, blocks } of after) {
          const receipt = receiptOf(id, issuer, blocks);
          memory.put(issuer, id, receipt);
          note(issuer, id, receipt);
        }
        for (const id of ["1", "2", "3", "4"]) {
          const latest = model.findLast((one) => one.id === id)?.receipt ?? null;
          expect(memory.find(id)).toEqual(latest);
          for (const issuer of ["a", "b", "c"]) {
            const known = model.find((one) => one.issuer === issuer && one.id === id);
            expect(memory.get(issuer, id)).toEqual(known?.receipt ?? null);
          }
        }
      }),
      { seed: 84, numRuns: 300 },
    );
  });

  test("remembers 65,536 commands of common sizes within its memory limit", () => {
    const memory = new CommandMemory([]);
    const receipt = receiptOf("c", "nats", 64);
    for (let nth = 0; nth < 140_000; nth++) memory.put("nats", `c${nth}`, receipt);
    expect(memory.bytes).toBeLessThanOrEqual(BYTES_MAX);
    expect(memory.get("nats", "c139999")?.blocks).toHaveLength(64);
    expect(memory.get("nats", `c${140_000 - 65_536}`)).toMatchObject({
      counts: { done: 64 },
      blocks_left_out: 56,
    });
    expect(memory.get("nats", `c${140_000 - 65_537}`)).toBeNull();
    // Searching an absent id must not scan the present ones.
    let found = 0;
    for (let nth = 0; nth < 10_000; nth++) if (memory.find(`x${nth}`) !== null) found++;
    expect(found).toBe(0);
  });

  test("is bounded in bytes with long names and restored receipts", () => {
    const name = (nth: number) => `${nth}`.padStart(128, "x");
    const text = receiptText(receiptOf("c", "nats", 1)).padEnd(2_048);
    const rows = Array.from({ length: 65_536 }, (_, nth) => {
      return { issuer: name(nth), id: name(nth), receipt: text };
    });
    const memory = new CommandMemory(rows);
    expect(memory.bytes).toBeLessThanOrEqual(BYTES_MAX);
    expect(memory.bytes).toBeGreaterThan(BYTES_MAX / 2);
    expect(memory.get(name(0), name(0))).toBeNull();
    expect(memory.find(name(0))).toBeNull();
    expect(memory.find(name(65_535))).not.toBeNull();
    // The maximum holders per block: one such receipt exceeds the memory.
    const by = Array.from({ length: 64 }, () => ({ kind: "pin", owner: "o" }) as const);
    const huge = receiptOf("h", "nats", 65_536);
    const blocks = huge.blocks.map((block) => ({ ...block, outcome: "held", by }));
    memory.put("nats", "h", { ...huge, blocks });
    expect(memory.bytes).toBeLessThanOrEqual(BYTES_MAX);
    expect(memory.find("h")).toMatchObject({ blocks_left_out: 65_528 });
  });
});

test("finds the latest executing command of an id, then earlier ones", () => {
  const commands = new RunningCommands();
  const [a, b, c] = ["a", "b", "c"].map((issuer) => {
    const receipt = Promise.resolve(receiptOf("1", issuer, 1));
    return {
      issuer,
      id: "1",
      digest: null,
      blocks: 1,
      receipt,
      now: () => receiptOf("1", issuer, 1),
    };
  });
  for (const running of [a!, b!, c!]) commands.add(running);
  expect(commands.find("1")).toBe(c!);
  commands.remove(c!);
  expect(commands.find("1")).toBe(b!);
  commands.remove(a!);
  expect(commands.find("1")).toBe(b!);
  commands.remove(b!);
  expect(commands.find("1")).toBeNull();
});
