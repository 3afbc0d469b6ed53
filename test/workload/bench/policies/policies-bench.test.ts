import { expect, test } from "bun:test";
import { join } from "node:path";
import { benchPolicies, type PoliciesRow } from "../../../../src/workload/bench/index.ts";
import { openTrace } from "../../../../src/workload/traces/index.ts";

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
  // What was pruned is never asked for again.
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
