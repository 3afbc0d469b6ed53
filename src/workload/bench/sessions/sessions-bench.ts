import { HearthError, yieldToLoop } from "../../../core/index.ts";
import type { Trace } from "../../traces/index.ts";
import { simulateBlockAgeing } from "./block-ageing.ts";
import { readSessionTrace, type SessionTrace } from "./session-trace.ts";
import type { Simulation } from "./simulation.ts";
import { type SessionFigures, Tally } from "./tally.ts";
import { simulateWholeSessions } from "./whole-session.ts";

export interface SessionsBenchOptions {
  readonly trace: Trace;
  /** What RAM holds; both or one unset: see `defaultCapacity`. */
  readonly capacityBlocks: number | null;
  readonly ramTokens: number | null;
  /** Called now and then with the share that is done; the trace is read by then. */
  readonly onProgress?: (share: number) => void;
  readonly signal?: AbortSignal;
}

/** The names are those of the JSON that the command prints. */
export interface SessionsBench {
  readonly trace: string;
  readonly requests: number;
  readonly sessions: number;
  readonly sessions_from: "source" | "inferred";
  readonly block_tokens: number;
  readonly capacity_blocks: number;
  readonly capacity_tokens: number;
  readonly prompt_tokens: number;
  readonly whole_sessions: SessionFigures;
  readonly block_ageing: SessionFigures;
  /** Whole sessions by block ageing; null where the latter is 0. */
  readonly ratio: {
    /** A session's tail by a block. */
    readonly eviction_tokens: number | null;
    readonly recomputed_tokens: number | null;
    readonly prefilled_again_tokens: number | null;
  };
}

/** Uses of blocks between two looks at the signal: some milliseconds. */
const SLICE_USES = 2 ** 18;
const DEFAULT_SHARE = 1 / 20;

/**
 * A twentieth of the trace's distinct blocks, and room for two of its longest prompts: there is
 * never room for all then, so that whole sessions have to go.
 */
export function defaultCapacity({ ends, distinct }: SessionTrace): number {
  let longest = 0;
  let from = 0;
  for (const to of ends) {
    longest = Math.max(longest, to - from);
    from = to;
  }
  return Math.max(Math.ceil(distinct * DEFAULT_SHARE), 2 * longest, 1);
}

/**
 * One trace through the same RAM twice: sessions freed as a whole, and blocks that age one by one.
 * Throws USAGE for an impossible capacity, TRACE_INVALID for a broken trace or one without blocks,
 * ABORTED when the signal fires.
 */
export async function benchSessions(options: SessionsBenchOptions): Promise<SessionsBench> {
  const { trace, signal } = options;
  const flat = await readSessionTrace(trace, signal);
  const capacity = capacityOf(options, flat);
  const run = async (simulate: typeof simulateBlockAgeing, before: number) => {
    const tally = new Tally(flat);
    const report = (share: number) => options.onProgress?.((before + share) / 2);
    await play(flat, simulate(flat, capacity, tally), report, signal);
    return tally;
  };
  const whole = await run(simulateWholeSessions, 0);
  const ageing = await run(simulateBlockAgeing, 1);
  const [a, b] = [whole.figures(), ageing.figures()];
  return {
    trace: trace.name,
    requests: flat.ends.length,
    sessions: flat.sessions,
    sessions_from: flat.sessionsFrom,
    block_tokens: trace.blockTokens,
    capacity_blocks: capacity,
    capacity_tokens: capacity * trace.blockTokens,
    prompt_tokens: whole.promptTokens,
    whole_sessions: a,
    block_ageing: b,
    ratio: {
      eviction_tokens: ratio(a.mean_session_eviction_tokens, b.mean_eviction_tokens),
      recomputed_tokens: ratio(a.recomputed_tokens, b.recomputed_tokens),
      prefilled_again_tokens: ratio(a.prefilled_again_tokens, b.prefilled_again_tokens),
    },
  };
}

function capacityOf(
  { trace, capacityBlocks, ramTokens }: SessionsBenchOptions,
  flat: SessionTrace,
): number {
  if (capacityBlocks !== null && ramTokens !== null)
    throw new HearthError("USAGE", "the capacity is given twice", {
      fix: "give --capacity or --ram-tokens",
    });
  const given = ramTokens === null ? capacityBlocks : Math.floor(ramTokens / trace.blockTokens);
  if (given !== null && given < 1)
    throw new HearthError("USAGE", `${ramTokens} tokens of RAM hold no block`, {
      fix: `give at least ${trace.blockTokens}`,
    });
  return given ?? defaultCapacity(flat);
}

async function play(
  trace: SessionTrace,
  simulation: Simulation,
  report: (share: number) => void,
  signal: AbortSignal | undefined,
): Promise<void> {
  let from = 0;
  let pause = SLICE_USES;
  for (const [request, to] of trace.ends.entries()) {
    simulation.serve(request, from, to);
    from = to;
    if (to < pause) continue;
    pause = to + SLICE_USES;
    report(to / trace.blocks.length);
    await yieldToLoop();
    if (signal?.aborted) throw new HearthError("ABORTED", "the session bench was given up");
  }
}

function ratio(a: number, b: number): number | null {
  return b === 0 ? null : Math.round((a / b) * 100) / 100;
}
