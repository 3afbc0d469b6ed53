import { describe, expect, test } from "bun:test";
import { HearthError } from "../../../src/core/index.ts";
import { loadNative, nativeBuffer } from "../../../src/native/index.ts";
import { benchPolicy } from "../../../src/workload/bench/index.ts";
import { type ReplayOptions, replay } from "../../../src/workload/replay/index.ts";
import { bundledTrace, type Trace, type TraceRequest } from "../../../src/workload/traces/index.ts";
import { type AgentKit, openAgent } from "../../engine/agent-kit.ts";
import { verifyStore } from "../../store/verify-store.ts";
import { describeNative } from "../../support/index.ts";

/** As long as a slot of the tests' agent. */
const BLOCK_BYTES = 8192;
const REQUESTS = 200;

function firstOf(trace: Trace, requestsMax: number): Trace {
  return {
    ...trace,
    async *requests() {
      let given = 0;
      for await (const request of trace.requests()) {
        if (given++ === requestsMax) return;
        yield request;
      }
    },
  };
}

/** A trace written by hand: prompts as lists of blocks. `between` runs before each of them. */
function traceOf(
  prompts: readonly number[][],
  between: (request: number) => void = () => {},
): Trace {
  return {
    name: "by-hand",
    path: "by-hand",
    format: "mooncake",
    blockTokens: 512,
    async *requests(): AsyncGenerator<TraceRequest> {
      for (const [at, blocks] of prompts.entries()) {
        between(at);
        yield {
          arrivalMs: at,
          inputTokens: Math.max(0, blocks.length * 512 - 12),
          outputTokens: 1,
          blocks: Uint32Array.from(blocks),
          lastBlockTokens: 500,
          session: undefined,
          turn: undefined,
        };
      }
    },
  };
}

function run(agent: AgentKit, trace: Trace, more: Partial<ReplayOptions> = {}) {
  const { socketPath } = agent;
  const whole = {
    blockBytes: BLOCK_BYTES,
    clients: 1,
    speed: 0,
    storeTimeoutMs: 0,
    requestsMax: Number.POSITIVE_INFINITY,
  };
  return replay(loadNative(), { trace, socketPath, ...whole, ...more });
}

describeNative("a replay", () => {
  // An agent hears of a request in pieces, as frames; the laboratory is told the same pieces.
  test.each([300, 1_000, 3_000])(
    "with %i blocks `hearth` hits what it hits when simulated",
    async (capacity) => {
      const trace = await bundledTrace();
      const [simulated] = await benchPolicy({
        trace,
        capacities: [capacity],
        policies: ["hearth"],
      });
      await using agent = await openAgent({ slots: capacity, policy: "hearth", blocksMax: 65_536 });
      const summary = await run(agent, trace);
      expect(Math.abs(summary.hit_ratio - simulated!.hit_ratio)).toBeLessThanOrEqual(0.015);
      expect(summary.wrong_bytes).toBe(0);
    },
    30_000,
  );

  describe("hits exactly what a simulated LRU of the same size hits", () => {
    test.each([1, 37, 300, 1_000, 2_500])("%i blocks", async (capacity) => {
      const trace = firstOf(await bundledTrace(), REQUESTS);
      const [simulated] = await benchPolicy({ trace, capacities: [capacity], policies: ["lru"] });
      await using agent = await openAgent({ slots: capacity, limits: { heldShare: 1 } });
      const summary = await run(agent, trace);
      expect(summary).toMatchObject({
        requests: REQUESTS,
        blocks_asked: simulated!.blocks_asked,
        blocks_hit: simulated!.blocks_hit,
        hit_ratio: simulated!.hit_ratio,
        wrong_bytes: 0,
      });
      await agent.untilNothingHeld();
      verifyStore(agent.store);
    });
  });

  test("counts requests, blocks, tokens and bytes", async () => {
    await using agent = await openAgent({ slots: 8 });
    const summary = await run(agent, traceOf([[0, 1, 2], [0, 1, 3], [], [0, 1, 3]]));
    expect(summary).toMatchObject({
      trace: "by-hand",
      requests: 4,
      blocks_asked: 9,
      blocks_hit: 5,
      hit_ratio: 0.5556,
      tokens_asked: 3 * 1524,
      // The last block of a prompt may be part full: no more is hit than was asked for.
      tokens_hit: 2 * 512 + 1524,
      blocks_written: 4,
      blocks_full: 0,
      blocks_shared: 0,
      blocks_rejected: 0,
      wrong_bytes: 0,
      block_bytes: BLOCK_BYTES,
      bytes_read: 5 * BLOCK_BYTES,
      bytes_written: 4 * BLOCK_BYTES,
      clients: 1,
    });
    expect(summary.acquire_p99_us).toBeGreaterThanOrEqual(summary.acquire_p50_us);
    expect(agent.store.snapshot().ramBlocks).toBe(4);
  });

  test("one flipped byte in the arena is found, and what it is worth said", async () => {
    await using agent = await openAgent({ slots: 8 });
    const flip = (request: number) => {
      if (request !== 1) return;
      const { slots, table } = agent.store;
      const offset = slots.offsetOf(table.slotOf(table.oldest(2)));
      const bytes = nativeBuffer(BLOCK_BYTES);
      agent.region.copyOut(offset, bytes, BLOCK_BYTES, false);
      bytes.bytes[4_000]! ^= 1;
      agent.region.copyIn(offset, bytes, BLOCK_BYTES, false);
    };
    const prompts = [
      [0, 1],
      [0, 1],
    ];
    const wrong = await run(agent, traceOf(prompts, flip));
    expect(wrong).toMatchObject({ blocks_hit: 2, wrong_bytes: BLOCK_BYTES - 4_000 });
    const right = await run(agent, traceOf(prompts), { blockBytes: 5_000 });
    expect(right).toMatchObject({ blocks_hit: 2, wrong_bytes: 0 });
  });

  test("with many engines at once no byte is wrong and every block is accounted for", async () => {
    await using agent = await openAgent({ slots: 300 });
    const trace = firstOf(await bundledTrace(), REQUESTS);
    const summary = await run(agent, trace, { clients: 8 });
    expect(summary).toMatchObject({ requests: REQUESTS, wrong_bytes: 0, clients: 8 });
    const { blocks_asked, blocks_hit, blocks_written, blocks_full, blocks_shared } = summary;
    expect(blocks_hit + blocks_written + blocks_full + blocks_shared).toBe(blocks_asked);
    expect(summary.blocks_rejected).toBe(0);
    await agent.untilNothingHeld();
  });

  test("ends after as many requests as it may send, and at once when it is told to", async () => {
    await using agent = await openAgent({ slots: 64 });
    const trace = await bundledTrace();
    expect((await run(agent, trace, { requestsMax: 5 })).requests).toBe(5);
    const stop = new AbortController();
    let served = 0;
    const onProgress = () => {
      if (++served === 3) stop.abort();
    };
    const ended = await run(agent, trace, { signal: stop.signal, onProgress }).catch((e) => e);
    expect(ended).toBeInstanceOf(HearthError);
    expect([ended.code, served]).toEqual(["ABORTED", 3]);
    // What it had held is given back, though nobody waited for the end.
    await agent.untilNothingHeld();
  });

  test("fails where the agent goes away", async () => {
    const agent = await openAgent({ slots: 64 });
    const ended = run(agent, await bundledTrace(), {
      onProgress: (tally) => {
        if (tally.requests === 3) void agent[Symbol.asyncDispose]();
      },
    }).catch((error) => error);
    expect(["ENGINE_CLOSED", "ENGINE_REFUSED"]).toContain((await ended).code);
  });
});
