import {
  POLICY_DEFAULTS,
  type PolicyCounts,
  type PolicyName,
  type PolicySettings,
} from "../../../router/index.ts";
import type { Trace } from "../../traces/index.ts";
import { type Found, SIM_REASONING, type SimResult, simulate } from "./sim-run.ts";
import { readSimTrace, type SimTrace } from "./sim-trace.ts";

export interface PoliciesBenchOptions {
  readonly trace: Trace;
  readonly workers: number;
  /**
   * Blocks of RAM per worker. Null: all workers together hold a twentieth of the trace's distinct
   * blocks.
   */
  readonly ramBlocks: number | null;
  /** Blocks of SSD per worker. Null: four times the blocks of RAM. */
  readonly ssdBlocks: number | null;
  /**
   * Milliseconds before a user's request at which the return of the user is announced, in the run
   * with announcements.
   */
  readonly leadMs: number;
  /** Called with the name of each run when it starts. */
  readonly onProgress?: (run: string) => void;
  readonly signal?: AbortSignal;
}

/** Result of one run, under the names in the printed JSON. */
export type PoliciesRow = ReturnType<typeof rowOf>;

type Switches = Partial<Record<PolicyName, true>>;

const SSD_TO_RAM = 4;

const DEFAULT_SHARE = 1 / 20;

const RUNS: readonly { readonly name: string; readonly on: Switches; readonly isTold?: true }[] = [
  { name: "none", on: {} },
  { name: "cold_worker", on: { cold_worker: true } },
  { name: "idle_session", on: { idle_session: true } },
  { name: "idle_session_signalled", on: { idle_session: true }, isTold: true },
  { name: "cache_control", on: { cache_control: true } },
  { name: "reasoning", on: { reasoning: true } },
  { name: "context_rewrite", on: { context_rewrite: true } },
  {
    name: "all",
    on: {
      ...{ cold_worker: true, idle_session: true, cache_control: true },
      ...{ reasoning: true, context_rewrite: true },
    },
    isTold: true,
  },
];

/**
 * Replays one trace of conversations against the same simulated agents, without policies and with
 * each of them. Throws TRACE_INVALID for a broken trace or one without blocks, ABORTED when the
 * signal fires.
 */
export async function benchPolicies(options: PoliciesBenchOptions) {
  const { workers, signal } = options;
  const trace = await readSimTrace(options.trace, signal);
  const share = Math.ceil((trace.distinct * DEFAULT_SHARE) / workers);
  const ramBlocks = options.ramBlocks ?? Math.max(share, longestOf(trace));
  const ssdBlocks = options.ssdBlocks ?? ramBlocks * SSD_TO_RAM;
  const runs: PoliciesRow[] = [];
  let promptTokens = 0;
  // All runs send each request to the same worker, so that they differ only in the policies.
  let routes: Uint8Array | null = null;
  for (const { name, on, isTold = false } of RUNS) {
    options.onProgress?.(name);
    const result: SimResult = await simulate({
      ...{ trace, workers, ramBlocks, ssdBlocks, routes, signal },
      settings: settingsOf(on, ramBlocks * trace.blockTokens),
      leadMs: isTold ? options.leadMs : 0,
    });
    promptTokens = result.found.prompt;
    routes = result.routes;
    runs.push(rowOf(name, result));
  }
  return {
    trace: trace.name,
    requests: trace.ends.length,
    sessions: trace.sessions,
    block_tokens: trace.blockTokens,
    prompt_tokens: promptTokens,
    workers,
    ram_blocks: ramBlocks,
    ssd_blocks: ssdBlocks,
    runs,
  };
}

/** Returns the default settings of the policies, with limits scaled to the RAM of an agent. */
function settingsOf(on: Switches, ramTokens: number): PolicySettings {
  const defaults = POLICY_DEFAULTS;
  const mode = (policy: PolicyName) => ({ mode: on[policy] ? ("on" as const) : ("off" as const) });
  return {
    ...defaults,
    coldWorker: { ...defaults.coldWorker, ...mode("cold_worker"), bytesMax: 2 ** 40 },
    idleSession: { ...defaults.idleSession, ...mode("idle_session") },
    cacheControl: {
      ...{ ...defaults.cacheControl, ...mode("cache_control") },
      workerTokensMax: ramTokens,
    },
    reasoning: { ...defaults.reasoning, ...mode("reasoning"), models: SIM_REASONING },
    contextRewrite: { ...defaults.contextRewrite, ...mode("context_rewrite") },
  };
}

function longestOf({ ends }: SimTrace): number {
  let longest = 0;
  for (const [at, end] of ends.entries()) {
    longest = Math.max(longest, end - (at === 0 ? 0 : ends[at - 1]));
  }
  return longest;
}

function rowOf(policies: string, result: SimResult) {
  const { found, joined, restarted } = result;
  return {
    /** Name of the run: `none`, a policy, `idle_session_signalled`, or `all`. */
    policies,
    ram_hit_ratio: ratio(found.ram, found) ?? 0,
    /**
     * Share of prompt tokens that were cached on any tier of the worker that served the request.
     */
    hit_ratio: ratio(found.all, found) ?? 0,
    computed_tokens: found.prompt - found.all,
    ssd_writes: result.ssdWrites,
    /**
     * RAM hit ratio, for 15 minutes, of the worker that was replaced by an empty one; null if it
     * served no request in this time.
     */
    joined_ram_hit_ratio: ratio(joined.ram, joined),
    joined_hit_ratio: ratio(joined.all, joined),
    /** RAM hit ratio, for some time, of the worker that lost the content of its RAM. */
    restarted_ram_hit_ratio: ratio(restarted.ram, restarted),
    restarted_hit_ratio: ratio(restarted.all, restarted),
    warmed_blocks: result.warmedBlocks,
    warmed_used: result.warmedUsed,
    commands: sumOf(result.policies, ({ commands }) => commands),
    receipts: sumOf(result.policies, ({ receipts }) => receipts),
    blocks: merged(result.policies.map(({ blocks }) => blocks)),
    declined: merged(result.policies.map(({ declined }) => declined)),
  };
}

function sumOf(counts: readonly PolicyCounts[], of: (counts: PolicyCounts) => number): number {
  return counts.reduce((sum, each) => sum + of(each), 0);
}

function merged(all: readonly Readonly<Record<string, number>>[]): Record<string, number> {
  const sum: Record<string, number> = {};
  for (const each of all) {
    for (const [name, count] of Object.entries(each)) sum[name] = (sum[name] ?? 0) + count;
  }
  return sum;
}

function ratio(part: number, { prompt }: Found): number | null {
  return prompt === 0 ? null : Math.round((part / prompt) * 10_000) / 10_000;
}
