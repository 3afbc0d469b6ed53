import { HearthError, yieldToLoop } from "../../../core/index.ts";
import type { Trace } from "../../traces/index.ts";

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
 * Reads a trace to its end. Throws TRACE_INVALID where it is broken, LIMIT where it is too large.
 */
export async function flatten(trace: Trace, signal?: AbortSignal): Promise<FlatTrace> {
  let blocks = new Uint32Array(2 ** 16);
  let ends = new Uint32Array(2 ** 10);
  let uses = 0;
  let requests = 0;
  let distinct = 0;
  for await (const request of trace.requests()) {
    const end = uses + request.blocks.length;
    if (end > USES_MAX)
      throw new HearthError("LIMIT", `${trace.path}: more than ${USES_MAX} uses of blocks`);
    if (end > blocks.length) blocks = grown(blocks, end);
    blocks.set(request.blocks, uses);
    for (const block of request.blocks) if (block >= distinct) distinct = block + 1;
    if (requests === ends.length) ends = grown(ends, requests + 1);
    ends[requests++] = end;
    uses = end;
    if (requests % YIELD_REQUESTS === 0) {
      await yieldToLoop();
      if (signal?.aborted) throw new HearthError("ABORTED", "the policy bench was given up");
    }
  }
  return { blocks: blocks.slice(0, uses), ends: ends.slice(0, requests), distinct };
}

function grown(array: Uint32Array<ArrayBuffer>, atLeast: number): Uint32Array<ArrayBuffer> {
  const larger = new Uint32Array(Math.max(atLeast, array.length * 2));
  larger.set(array);
  return larger;
}
