import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { benchSessions, type SessionFigures } from "../../../../src/workload/bench/index.ts";
import type { Trace, TraceRequest } from "../../../../src/workload/traces/index.ts";
import { openTrace } from "../../../../src/workload/traces/index.ts";
import { describeTraces } from "../../traces/shared-traces.ts";
import { type LiteralFigures, literalAgeing, literalWhole, type Turn } from "./literal-sessions.ts";

const BLOCK = 10;

/** A trace of these turns, all blocks full. */
function traceOf(turns: readonly Turn[], options: { readonly named?: boolean } = {}): Trace {
  const ids = new Map<number, number>();
  const idOf = (name: number) => {
    const id = ids.get(name) ?? ids.size;
    ids.set(name, id);
    return id;
  };
  async function* requests(): AsyncGenerator<TraceRequest> {
    for (const [at, { session, blocks }] of turns.entries()) {
      yield {
        arrivalMs: at,
        inputTokens: BLOCK * blocks.length,
        outputTokens: 1,
        blocks: Uint32Array.from(blocks, idOf),
        lastBlockTokens: BLOCK,
        session: options.named === false ? undefined : session,
        turn: undefined,
      };
    }
  }
  return { name: "tiny", path: "tiny", format: "mooncake", blockTokens: BLOCK, requests };
}

async function figures(turns: readonly Turn[], capacity: number) {
  const trace = traceOf(turns);
  return benchSessions({ trace, capacityBlocks: capacity, ramTokens: null });
}

/** What the literal model found, as the bench prints it. */
function printed(found: LiteralFigures, turns: readonly Turn[]): SessionFigures {
  const { freed } = found;
  const sum = (list: typeof freed) => list.reduce((total, { blocks }) => total + blocks, 0);
  const mean = (tokens: number, count: number) => (count === 0 ? 0 : Math.round(tokens / count));
  const whole = freed.filter(({ what }) => what === "session");
  const asked = turns.reduce((total, { blocks }) => total + blocks.length, 0);
  return {
    evictions: freed.length,
    mean_eviction_tokens: mean(BLOCK * sum(freed), freed.length),
    largest_eviction_tokens: BLOCK * Math.max(0, ...freed.map(({ blocks }) => blocks)),
    session_evictions: whole.length,
    mean_session_eviction_tokens: mean(BLOCK * sum(whole), whole.length),
    evicted_tokens: BLOCK * sum(freed),
    recomputed_tokens: BLOCK * found.recomputed,
    hit_ratio: Math.round((found.hits / asked) * 10_000) / 10_000,
    turns_prefilled_again: found.turnsAgain,
    prefilled_again_tokens: BLOCK * found.again,
    mean_prefilled_again_tokens: mean(BLOCK * found.again, found.turnsAgain),
  };
}

const SHARED = [1, 2, 3];
const FORK = 7;

/**
 * A turn of a conversation so deep: what all share, what is its own, and from some depth on one of
 * two ways in which it went on.
 */
function turnOf(session: number, depth: number, way: number): Turn {
  const own = (i: number) => 1_000 * (session + 1) + (i < FORK ? 0 : 100 * way) + i;
  const blocks = Array.from({ length: depth }, (_, i) => SHARED[i] ?? own(i));
  return { session: String(session), blocks };
}

describe("against a literal model", () => {
  const turn = fc
    .tuple(fc.nat({ max: 3 }), fc.integer({ min: 1, max: 12 }), fc.nat({ max: 1 }))
    .map(([session, depth, way]) => turnOf(session, depth, way));
  const turns = fc.array(turn, { minLength: 1, maxLength: 60, size: "max" });
  const capacity = fc.integer({ min: 1, max: 40 });

  test("both ways of making room come to the same, whatever the trace", async () => {
    let sessionsFreed = 0;
    await fc.assert(
      fc.asyncProperty(turns, capacity, async (list, blocks) => {
        const found = await figures(list, blocks);
        expect(found.block_ageing).toEqual(printed(literalAgeing(list, blocks), list));
        const whole = literalWhole(list, blocks);
        expect(found.whole_sessions).toEqual(printed(whole, list));
        sessionsFreed += found.whole_sessions.session_evictions;
      }),
      { seed: 20_261_122, numRuns: 1_000 },
    );
    expect(sessionsFreed).toBeGreaterThan(1_000);
  });
});

describe("by hand", () => {
  /** Two conversations in turn; room for seven blocks. */
  const TURNS: Turn[] = [
    { session: "a", blocks: [1, 2] },
    { session: "a", blocks: [1, 2, 3, 4, 5] },
    { session: "b", blocks: [1, 8] },
    { session: "b", blocks: [1, 8, 9, 10] },
    { session: "a", blocks: [1, 2, 3, 4, 5, 6] },
  ];

  test("a session's tail goes at once where one block would have been enough", async () => {
    const found = await figures(TURNS, 7);
    // b's second turn wants two blocks where one is free: the whole tail of a goes (3 4 5), and a
    // comes back to find 1 and 2 alone, computes 3 4 5 again, and drops nothing: eight are wanted
    // in seven, so b goes, which held 9 and 10.
    expect(found.whole_sessions).toMatchObject({
      evictions: 2,
      session_evictions: 2,
      largest_eviction_tokens: 3 * BLOCK,
      recomputed_tokens: 3 * BLOCK,
      turns_prefilled_again: 1,
      prefilled_again_tokens: 3 * BLOCK,
    });
    // Block by block: 5 goes for 10; a finds 1 2 3 4, and 5 is computed again.
    expect(found.block_ageing).toMatchObject({
      largest_eviction_tokens: BLOCK,
      mean_eviction_tokens: BLOCK,
      recomputed_tokens: BLOCK,
      turns_prefilled_again: 1,
      prefilled_again_tokens: BLOCK,
    });
    expect(found.ratio).toEqual({
      eviction_tokens: 2.5,
      recomputed_tokens: 3,
      prefilled_again_tokens: 3,
    });
    expect(found).toMatchObject({ requests: 5, sessions: 2, sessions_from: "source" });
  });

  test("with room for all, nothing goes; a tail is still nobody else's", async () => {
    const other: Turn = { session: "c", blocks: [1, 2, 3, 4] };
    const found = await figures([...TURNS, other], 100);
    expect(found.whole_sessions).toMatchObject({ evictions: 0, recomputed_tokens: 2 * BLOCK });
    expect(found.block_ageing).toMatchObject({ evictions: 0, recomputed_tokens: 0 });
    expect(found.ratio.recomputed_tokens).toBeNull();
  });

  test("the last block of a prompt counts the tokens it has", async () => {
    const trace = traceOf([{ session: "a", blocks: [1, 2] }]);
    const requests = async function* () {
      for await (const request of trace.requests())
        yield { ...request, inputTokens: 13, lastBlockTokens: 3 };
    };
    const part = { ...trace, requests };
    const found = await benchSessions({ trace: part, capacityBlocks: 1, ramTokens: null });
    expect(found.prompt_tokens).toBe(13);
    expect(found.block_ageing.evicted_tokens).toBe(3);
  });
});

describe("what it is asked", () => {
  const trace = traceOf([{ session: "a", blocks: [1, 2, 3] }]);

  test("RAM is said in blocks or in tokens, or a twentieth of the trace is taken", async () => {
    const capacityOf = async (capacityBlocks: number | null, ramTokens: number | null) =>
      (await benchSessions({ trace, capacityBlocks, ramTokens })).capacity_blocks;
    expect(await capacityOf(5, null)).toBe(5);
    expect(await capacityOf(null, 59)).toBe(5);
    expect(await capacityOf(null, null)).toBe(6);
    expect(capacityOf(5, 50)).rejects.toMatchObject({ code: "USAGE" });
    expect(capacityOf(null, 9)).rejects.toMatchObject({ code: "USAGE" });
  });

  test("a trace of lengths alone is refused", () => {
    const empty = traceOf([{ session: "a", blocks: [] }]);
    const run = benchSessions({ trace: empty, capacityBlocks: 5, ramTokens: null });
    expect(run).rejects.toMatchObject({ code: "TRACE_INVALID" });
  });

  test("is given up when it is told to", () => {
    const signal = AbortSignal.abort();
    const long = traceOf(Array.from({ length: 1_000 }, () => ({ session: "a", blocks: [1] })));
    const run = benchSessions({ trace: long, capacityBlocks: 5, ramTokens: null, signal });
    expect(run).rejects.toMatchObject({ code: "ABORTED" });
  });
});

test("where nobody names conversations, the deepest known block does", async () => {
  const list = [[1, 2], [1, 2, 3], [1, 2, 4], [1, 9], [7], [1, 2, 3, 5]];
  const turns = list.map((blocks) => ({ session: "", blocks }));
  const trace = traceOf(turns, { named: false });
  const found = await benchSessions({ trace, capacityBlocks: 100, ramTokens: null });
  expect(found).toMatchObject({ sessions: 2, sessions_from: "inferred" });
  // A block that 40 requests begin with is no conversation of theirs.
  const many = Array.from({ length: 40 }, (_, i) => ({ session: "", blocks: [1, 100 + i] }));
  const common = traceOf(many, { named: false });
  const apart = await benchSessions({ trace: common, capacityBlocks: 100, ramTokens: null });
  expect(apart.sessions).toBe(40);
});

describeTraces("the traces", (folder) => {
  test("infers the published number of conversations of the chat trace", async () => {
    const trace = await openTrace(`${folder}/mooncake_conversation_0-40min.jsonl.gz`);
    const found = await benchSessions({ trace, capacityBlocks: 5_859, ramTokens: null });
    expect(found).toMatchObject({ sessions: 4_931, sessions_from: "inferred", requests: 7_851 });
    expect(found.block_ageing.largest_eviction_tokens).toBe(512);
  });

  test("gives the figures of docs/sessions.md", async () => {
    const trace = await openTrace(`${folder}/claude_code_composed_512.jsonl.zst`);
    const found = await benchSessions({ trace, capacityBlocks: null, ramTokens: null });
    const page = await Bun.file(new URL("../../../../docs/sessions.md", import.meta.url)).text();
    const number = (value: number) => value.toLocaleString("en-US");
    const { whole_sessions: whole, block_ageing: ageing } = found;
    for (const [words, name] of [
      ["evictions", "evictions"],
      ["mean eviction, tokens", "mean_eviction_tokens"],
      ["largest eviction, tokens", "largest_eviction_tokens"],
      ["sessions freed as a whole", "session_evictions"],
      ["their mean, tokens", "mean_session_eviction_tokens"],
      ["tokens recomputed", "recomputed_tokens"],
      ["turns that found a part gone", "turns_prefilled_again"],
      ["mean of that part, tokens", "mean_prefilled_again_tokens"],
    ] as const) {
      expect(page).toContain(`| ${words} | ${number(whole[name])} | ${number(ageing[name])} |`);
    }
    expect(page).toContain(`| hit ratio | ${whole.hit_ratio} | ${ageing.hit_ratio} |`);
  });
});
