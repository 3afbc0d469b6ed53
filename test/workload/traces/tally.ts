import type { Trace, TraceRequest } from "../../../src/workload/traces/index.ts";

/** Totals of a trace, counted from its requests alone. */
export interface Tally {
  readonly requests: number;
  readonly uses: number;
  readonly distinct: number;
  /** Blocks that an unlimited cache would have hit. */
  readonly hits: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly lastBlockTokens: number;
  readonly sessions: number;
  readonly turns: number;
  /** `checksum * 31 + id + 1` modulo 2^32, over all block ids in their order. */
  readonly checksum: number;
}

/** Also proves what every trace promises: dense ids in order of first sight, arrivals in order. */
export async function tally(trace: Trace): Promise<Tally> {
  let [requests, uses, distinct, hits, checksum] = [0, 0, 0, 0, 0];
  let [inputTokens, outputTokens, lastBlockTokens, turns, lastMs] = [0, 0, 0, 0, 0];
  const sessions = new Set<string | undefined>();
  for await (const request of trace.requests()) {
    if (request.arrivalMs < lastMs) throw new Error(`request ${requests} goes back in time`);
    lastMs = request.arrivalMs;
    let leading = true;
    for (let i = 0; i < request.blocks.length; i++) {
      const block = request.blocks[i]!;
      if (block > distinct) throw new Error(`request ${requests}: ${block} is not the next id`);
      if (block === distinct) {
        distinct++;
        leading = false;
      } else if (leading) hits++;
      checksum = (Math.imul(checksum, 31) + block + 1) >>> 0;
    }
    requests++;
    uses += request.blocks.length;
    inputTokens += request.inputTokens;
    outputTokens += request.outputTokens;
    lastBlockTokens += request.lastBlockTokens;
    sessions.add(request.session);
    turns += request.turn ?? 0;
  }
  return {
    requests,
    uses,
    distinct,
    hits,
    inputTokens,
    outputTokens,
    lastBlockTokens,
    sessions: sessions.size,
    turns,
    checksum,
  };
}

export async function allRequests(trace: Trace): Promise<TraceRequest[]> {
  return Array.fromAsync(trace.requests());
}
