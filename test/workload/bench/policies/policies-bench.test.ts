import { expect, test } from "bun:test";
import { join } from "node:path";
import {
  benchPolicies,
  type PoliciesRow,
  readSimTrace,
} from "../../../../src/workload/bench/index.ts";
import { openTrace, type Trace } from "../../../../src/workload/traces/index.ts";
import { describeTraces } from "../../traces/shared-traces.ts";

const PIECE = join(import.meta.dir, "claude-code-24-sessions.jsonl.gz");

async function bench(more: { ssdBlocks?: number; leadMs?: number; signal?: AbortSignal } = {}) {
  const { ssdBlocks = null, leadMs = 5_000, ...rest } = more;
  const trace = await openTrace(PIECE);
  return await benchPolicies({ trace, workers: 2, ramBlocks: null, ssdBlocks, leadMs, ...rest });
}

function rowOf(runs: readonly PoliciesRow[], policies: string): PoliciesRow {
  const row = runs.find((run) => run.policies === policies);
  if (row === undefined) throw new Error(`no run of ${policies}`);
  return row;
}

test("each policy alone and all together, on sessions of coding agents", async () => {
  const { runs, ...what } = await bench();
  expect(what).toMatchObject({ requests: 571, sessions: 24, block_tokens: 512, workers: 2 });
  const none = rowOf(runs, "none");
  expect([none.commands, none.warmed_blocks]).toEqual([0, 0]);
  for (const run of runs) {
    // Agents that are there answer all.
    expect([run.policies, run.receipts]).toEqual([run.policies, run.commands]);
    expect(run.hit_ratio).toBeGreaterThanOrEqual(run.ram_hit_ratio);
    if (run !== none) expect([run.policies, run.blocks.done]).not.toEqual([run.policies, 0]);
  }
  const cold = rowOf(runs, "cold_worker");
  expect(cold.joined_ram_hit_ratio).toBeGreaterThan(none.joined_ram_hit_ratio!);
  expect(cold.restarted_ram_hit_ratio).toBeGreaterThan(none.restarted_ram_hit_ratio!);
  const signalled = rowOf(runs, "idle_session_signalled");
  expect(signalled.ram_hit_ratio).toBeGreaterThan(rowOf(runs, "idle_session").ram_hit_ratio);
  expect(signalled.ram_hit_ratio).toBeGreaterThan(none.ram_hit_ratio);
  expect(signalled.warmed_used / signalled.warmed_blocks).toBeGreaterThan(0.8);
  // A pruned block is never requested again.
  const pruned = rowOf(runs, "context_rewrite");
  expect(pruned.computed_tokens).toBeLessThanOrEqual(none.computed_tokens);
  expect(rowOf(runs, "reasoning").computed_tokens).toBeLessThanOrEqual(none.computed_tokens);
  expect(rowOf(runs, "cache_control").declined.worker_budget).toBeGreaterThan(0);
});

test("the same every time; without an SSD tier nothing can be paused", async () => {
  const [first, second] = [await bench({ ssdBlocks: 0 }), await bench({ ssdBlocks: 0 })];
  expect(second).toEqual(first);
  const idle = rowOf(first.runs, "idle_session");
  expect(idle.blocks).toMatchObject({ done: 0 });
  expect(idle.ram_hit_ratio).toBe(rowOf(first.runs, "none").ram_hit_ratio);
});

test("ends when it is given up", async () => {
  const signal = AbortSignal.abort();
  await expect(bench({ signal })).rejects.toMatchObject({ code: "ABORTED" });
});

/** A trace of prompts without conversation names. */
function traceOf(prompts: readonly (readonly number[])[]): Trace {
  const ids = new Map<number, number>();
  const idOf = (name: number) => ids.getOrInsertComputed(name, () => ids.size);
  async function* requests() {
    for (const [at, blocks] of prompts.entries()) {
      yield {
        arrivalMs: at,
        inputTokens: 10 * blocks.length,
        outputTokens: 1,
        blocks: Uint32Array.from(blocks, idOf),
        lastBlockTokens: 10,
        session: undefined,
        turn: undefined,
      };
    }
  }
  return { name: "tiny", path: "tiny", format: "mooncake", blockTokens: 10, requests };
}

test("a request without a name continues the conversation of its deepest known block", async () => {
  const prompts = [[1, 2], [1, 2, 3], [1, 2, 4], [1, 9], [7], [1, 2, 3, 5]];
  expect((await readSimTrace(traceOf(prompts))).sessions).toBe(2);
});

test("a block that 40 requests begin with does not join their conversations", async () => {
  const prompts = Array.from({ length: 40 }, (_, i) => [1, 100 + i]);
  expect((await readSimTrace(traceOf(prompts))).sessions).toBe(40);
});

test("a trace of lengths alone is refused", async () => {
  await expect(readSimTrace(traceOf([[]]))).rejects.toMatchObject({ code: "TRACE_INVALID" });
});

describeTraces("the conversation trace", (folder) => {
  test("has the published number of conversations", async () => {
    const trace = await openTrace(join(folder, "mooncake_conversation_0-40min.jsonl.gz"));
    const { sessions, ends } = await readSimTrace(trace);
    expect([sessions, ends.length]).toEqual([4_931, 7_851]);
  });
});
