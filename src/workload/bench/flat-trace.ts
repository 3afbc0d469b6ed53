import { HearthError } from "../../core/index.ts";
import type { Trace, TraceRequest } from "../traces/index.ts";
import { yieldOrAbort } from "./measure.ts";

/** A whole trace in two arrays. It takes 4 bytes for each use of a block and 4 for each request. */
export interface FlatTrace {
  /** Block numbers of all prompts, one prompt after another. Numbers run from 0 without gaps. */
  readonly blocks: Uint32Array;
  /** For each request, the index in `blocks` at which its prompt ends. */
  readonly ends: Uint32Array;
  /** Number of distinct blocks; every block number is lower. */
  readonly distinct: number;
}

/** Maximum uses of blocks in one trace; 2^29 uses take 2 GiB. */
const USES_MAX = 2 ** 29;
const YIELD_REQUESTS = 1_000;

/**
 * Reads a whole trace. Calls `onRequest` for each request. Throws TRACE_INVALID if the trace is
 * broken, LIMIT if it is too large, and ABORTED when the signal fires.
 */
export async function flattenTrace(
  trace: Trace,
  signal?: AbortSignal,
  onRequest: (request: TraceRequest) => void = () => undefined,
): Promise<FlatTrace> {
  let blocks = new Uint32Array(2 ** 16);
  let uses = 0;
  let distinct = 0;
  const ends: number[] = [];
  for await (const request of trace.requests()) {
    const end = uses + request.blocks.length;
    if (end > USES_MAX)
      throw new HearthError("LIMIT", `${trace.path}: more than ${USES_MAX} uses of blocks`);
    if (end > blocks.length) {
      const larger = new Uint32Array(Math.max(end, blocks.length * 2));
      larger.set(blocks);
      blocks = larger;
    }
    blocks.set(request.blocks, uses);
    for (const block of request.blocks) if (block >= distinct) distinct = block + 1;
    ends.push(end);
    uses = end;
    onRequest(request);
    if (ends.length % YIELD_REQUESTS === 0) await yieldOrAbort(signal);
  }
  return { blocks: blocks.slice(0, uses), ends: Uint32Array.from(ends), distinct };
}
