import { describe, expect, test } from "bun:test";
import { join } from "node:path";
import { type Random, randomBelow, seededRandom } from "../../../src/core/index.ts";
import { benchPolicy, type PolicyName, type PolicyRow } from "../../../src/workload/bench/index.ts";
import { bundledTrace, openTrace, type Trace } from "../../../src/workload/traces/index.ts";
import { describeTraces } from "../traces/shared-traces.ts";

const SCORED = ["lru", "hearth", "best"] as const satisfies readonly PolicyName[];
const TIMEOUT_MS = 120_000;

function traceOf(prompts: readonly (readonly number[])[]): Trace {
  return {
    name: "made",
    path: "made",
    format: "mooncake",
    blockTokens: 16,
    async *requests() {
      for (const [at, prompt] of prompts.entries()) {
        yield {
          arrivalMs: at,
          inputTokens: prompt.length * 16,
          outputTokens: 1,
          blocks: Uint32Array.from(prompt),
          lastBlockTokens: 16,
          session: undefined,
          turn: undefined,
        };
      }
    },
  };
}

/** Some conversations come back after 40 to 240 requests, most never; each ends in half a block. */
function conversations(random: Random, requests: number, returning: number): number[][] {
  const due = new Map<number, number[]>();
  const prompts: number[][] = [];
  let next = 0;
  const grow = (path: readonly number[], blocks: number) => [
    ...path,
    ...Array.from({ length: blocks }, () => next++),
  ];
  for (let at = 0; at < requests; at++) {
    const before = due.get(at);
    due.delete(at);
    const prompt = grow(before ?? [], before === undefined ? 2 + randomBelow(random, 30) : 3);
    prompts.push(prompt);
    const comesBack = before === undefined ? returning : 0.8;
    if (random.u32() / 2 ** 32 >= comesBack) continue;
    due.set(at + 40 + randomBelow(random, 200), prompt.slice(0, -1));
  }
  return prompts;
}

async function score(trace: Trace, capacity: number): Promise<Map<PolicyName, PolicyRow>> {
  const rows = await benchPolicy({ trace, capacities: [capacity], policies: SCORED });
  return new Map(rows.map((row) => [row.policy, row]));
}

describe("hearth", () => {
  test.each([1, 2, 3])("keeps conversations that come back, drawing %p", async (seed) => {
    const trace = traceOf(conversations(seededRandom(seed), 6_000, 0.25));
    for (const capacity of [600, 1_500]) {
      const rows = await score(trace, capacity);
      expect(rows.get("hearth")!.score!).toBeGreaterThan(0.25);
    }
  });

  test("is LRU to the last block where LRU misses nothing", async () => {
    const prompts = conversations(seededRandom(4), 3_000, 0.25);
    const rows = await score(traceOf(prompts), 12_000);
    expect(rows.get("hearth")!.blocks_hit).toBe(rows.get("best")!.blocks_hit);
  });

  test("does not fall behind LRU where the newest is always the next", async () => {
    const prompts = Array.from({ length: 4_000 }, (_, at) =>
      Array.from({ length: 10 }, (_, depth) => Math.floor(at / 4) * 10 + depth),
    );
    const rows = await score(traceOf(prompts), 100);
    expect(rows.get("hearth")!.blocks_hit).toBe(rows.get("lru")!.blocks_hit);
  });

  test("does not fall behind LRU on the bundled trace", async () => {
    const trace = await bundledTrace();
    for (const capacity of [300, 1_000, 3_000, 5_859, 10_000]) {
      const rows = await score(trace, capacity);
      expect(rows.get("hearth")!.score!).toBeGreaterThanOrEqual(0);
    }
  });
});

/** Capacities nearest 25, 50 and 75 % of the best that LRU reaches, as far as the tables go. */
const FILES: readonly (readonly [string, readonly number[], number])[] = [
  ["mooncake_conversation_0-40min.jsonl.gz", [1_000, 10_000, 20_000], 0.17],
  ["mooncake_toolmix_0-40min.jsonl.gz", [1_000, 3_000, 5_859], 0.2],
  ["claude_code_composed_512.jsonl.zst", [1_953, 5_859, 11_718], 0.14],
  ["agent_logs_block16.jsonl.gz", [300, 1_000, 3_000], 0],
];

describeTraces("on public traces hearth", (folder) => {
  test.each(FILES)(
    "wins its share of %s",
    async (file, capacities, floor) => {
      const trace = await openTrace(join(folder, file));
      const rows = await benchPolicy({ trace, capacities, policies: SCORED });
      const scores = rows.filter((row) => row.policy === "hearth").map((row) => row.score!);
      expect(Math.min(...scores)).toBeGreaterThan(-0.02);
      expect(scores.reduce((sum, one) => sum + one, 0) / scores.length).toBeGreaterThanOrEqual(
        floor,
      );
    },
    TIMEOUT_MS,
  );
});
