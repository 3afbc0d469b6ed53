import { HearthError } from "../../core/index.ts";
import type { Trace, TraceRequest } from "../traces/index.ts";
import { yieldOrAbort } from "./measure.ts";

/** A whole trace in two arrays: 4 bytes for each use of a block, 4 for each request. */
export interface FlatTrace {
  /** The blocks of all prompts, one prompt after the other; dense numbers from 0. */
  readonly blocks: Uint32Array;
  /** Where each request ends in `blocks`. */
  readonly ends: Uint32Array;
  /** Distinct blocks: every number is below it. */
  readonly distinct: number;
}

/** 2^29 uses are 2 GiB. */
const USES_MAX = 2 ** 29;
const YIELD_REQUESTS = 1_000;

/**
 * Reads a trace to its end. `onRequest` is called for each request. Throws TRACE_INVALID if it is
 * broken, LIMIT if it is too large, ABORTED when the signal fires.
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
