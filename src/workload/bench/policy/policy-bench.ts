import { HearthError, yieldToLoop } from "../../../core/index.ts";
import type { Trace } from "../../traces/index.ts";
import { best } from "./best.ts";
import { type FlatTrace, flatten } from "./flat-trace.ts";
import { hearth } from "./hearth.ts";
import { lru } from "./lru.ts";
import type { LabPolicy } from "./policy.ts";

const POLICIES = { lru, hearth, best } as const satisfies Record<string, LabPolicy>;

export type PolicyName = keyof typeof POLICIES;

export const POLICY_NAMES = Object.keys(POLICIES) as readonly PolicyName[];

export interface PolicyBenchOptions {
  readonly trace: Trace;
  /** Cache sizes in blocks of the trace, each a whole number of at least 1. */
  readonly capacities: readonly number[];
  readonly policies: readonly PolicyName[];
  /**
   * Called now and then with uses of blocks simulated so far and in all; the trace is read by then.
   */
  readonly onProgress?: (done: number, total: number) => void;
  readonly signal?: AbortSignal;
}

/** One policy at one capacity. The names are those of the JSON the command prints. */
export interface PolicyRow {
  readonly trace: string;
  readonly capacity: number;
  readonly policy: PolicyName;
  /** `blocks_hit / blocks_asked`, rounded to four digits. */
  readonly hit_ratio: number;
  readonly blocks_asked: number;
  readonly blocks_hit: number;
  /**
   * Which part of what LRU misses and `best` hits it hits, rounded to four digits: 0 is LRU, 1 the
   * best possible, below 0 worse than LRU. Null where `lru` or `best` was not among the policies,
   * or where nothing is to be won.
   */
  readonly score: number | null;
  /** Uses of blocks simulated a second of wall time, pauses for other work included. */
  readonly decisions_per_s: number;
}

/** Uses of blocks between two looks at the signal: some milliseconds. */
const SLICE_USES = 2 ** 18;

/**
 * Runs a trace through simulated caches, each from empty: the hit ratio of every policy at every
 * capacity, capacities outermost, both in the order given. The rules are those of `policy.ts`.
 * Needs 4 bytes a use (`best`: 8 more) and about 16 a distinct block. Throws USAGE for a capacity
 * that is no whole number from 1, TRACE_INVALID for a broken trace, ABORTED when the signal fires.
 */
export async function benchPolicy(options: PolicyBenchOptions): Promise<PolicyRow[]> {
  const { trace, capacities, policies, signal } = options;
  for (const capacity of capacities)
    if (!Number.isSafeInteger(capacity) || capacity < 1)
      throw new HearthError("USAGE", `a capacity of ${capacity} blocks`, {
        fix: "give whole numbers from 1",
      });
  const flat = await flatten(trace, signal);
  const asked = flat.blocks.length;
  const total = asked * capacities.length * policies.length;
  const rows: PolicyRow[] = [];
  for (const capacity of capacities) {
    const ofCapacity: Omit<PolicyRow, "score">[] = [];
    for (const policy of policies) {
      const before = (rows.length + ofCapacity.length) * asked;
      const report = (done: number) => options.onProgress?.(before + done, total);
      const start = Bun.nanoseconds();
      const hit = await simulate(flat, POLICIES[policy], capacity, report, signal);
      const seconds = (Bun.nanoseconds() - start) / 1e9;
      ofCapacity.push({
        trace: trace.name,
        capacity,
        policy,
        hit_ratio: asked === 0 ? 0 : toFourDigits(hit / asked),
        blocks_asked: asked,
        blocks_hit: hit,
        decisions_per_s: Math.round(asked / Math.max(seconds, 1e-9)),
      });
    }
    rows.push(...withScores(ofCapacity));
  }
  return rows;
}

/** The rows of one trace and capacity. */
function withScores(rows: readonly Omit<PolicyRow, "score">[]): PolicyRow[] {
  const hitsOf = (policy: PolicyName) => rows.find((row) => row.policy === policy)?.blocks_hit;
  const low = hitsOf("lru");
  const high = hitsOf("best");
  const isScored = low !== undefined && high !== undefined && low < high;
  return rows.map((row) => ({
    ...row,
    score: isScored ? toFourDigits((row.blocks_hit - low) / (high - low)) : null,
  }));
}

function toFourDigits(value: number): number {
  return Math.round(value * 10_000) / 10_000;
}

async function simulate(
  trace: FlatTrace,
  policy: LabPolicy,
  capacity: number,
  report: (done: number) => void,
  signal: AbortSignal | undefined,
): Promise<number> {
  // More than every block there is makes no difference, and arrays need not be larger.
  const cache = policy.open(trace, Math.min(capacity, Math.max(trace.distinct, 1)));
  let hits = 0;
  let from = 0;
  let pause = SLICE_USES;
  for (const to of trace.ends) {
    hits += cache.serve(from, to);
    from = to;
    if (to < pause && to < trace.blocks.length) continue;
    pause = to + SLICE_USES;
    report(to);
    await yieldToLoop();
    if (signal?.aborted) throw new HearthError("ABORTED", "the policy bench was given up");
  }
  return hits;
}
