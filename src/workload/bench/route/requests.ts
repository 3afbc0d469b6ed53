import { HearthError, yieldToLoop } from "../../../core/index.ts";
import { mixHash } from "../../../observability/activity/index.ts";
import type { Trace } from "../../traces/index.ts";

export interface SimulatedRequest {
  readonly arrivalMs: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  /** Dense numbers from 0; one names a block together with all before it. */
  readonly blocks: Uint32Array;
}

export interface SimulatedTrace {
  readonly name: string;
  readonly blockTokens: number;
  readonly requests: readonly SimulatedRequest[];
  readonly distinct: number;
  /** Of each block: what stands for its sequence hash. */
  readonly hashes: BigUint64Array;
}

const USES_MAX = 2 ** 27;
const YIELD_REQUESTS = 1_000;

/**
 * Reads a trace to its end. Throws TRACE_INVALID where it is broken, LIMIT where it is too large.
 */
export async function readRequests(trace: Trace, signal?: AbortSignal): Promise<SimulatedTrace> {
  const requests: SimulatedRequest[] = [];
  let [distinct, uses] = [0, 0];
  for await (const request of trace.requests()) {
    const { arrivalMs, inputTokens, outputTokens } = request;
    uses += request.blocks.length;
    if (uses > USES_MAX) {
      throw new HearthError("LIMIT", `${trace.path}: more than ${USES_MAX} uses of blocks`);
    }
    for (const block of request.blocks) if (block >= distinct) distinct = block + 1;
    requests.push({ arrivalMs, inputTokens, outputTokens, blocks: request.blocks.slice() });
    if (requests.length % YIELD_REQUESTS !== 0) continue;
    await yieldToLoop();
    if (signal?.aborted) throw new HearthError("ABORTED", "the route bench was given up");
  }
  const hashes = new BigUint64Array(distinct);
  for (let block = 0; block < distinct; block++) hashes[block] = mixHash(BigInt(block + 1));
  const { name, blockTokens } = trace;
  return { name, blockTokens, requests: spread(requests), distinct, hashes };
}

/** Clocks of traces are coarse: what has one time is laid evenly until the next time there is. */
function spread(requests: readonly SimulatedRequest[]): readonly SimulatedRequest[] {
  const even: SimulatedRequest[] = [];
  for (let from = 0; from < requests.length; ) {
    const { arrivalMs } = requests[from]!;
    let to = from + 1;
    while (to < requests.length && requests[to]!.arrivalMs === arrivalMs) to++;
    const stepMs = ((requests[to]?.arrivalMs ?? arrivalMs) - arrivalMs) / (to - from);
    for (let at = from; at < to; at++) {
      even.push({ ...requests[at]!, arrivalMs: arrivalMs + stepMs * (at - from) });
    }
    from = to;
  }
  return even;
}
