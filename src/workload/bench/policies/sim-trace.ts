import type { Trace } from "../../traces/index.ts";
import { readSessionTrace, type SessionTrace } from "../sessions/index.ts";

/** A trace of conversations, with times and answers. */
export interface SimTrace extends SessionTrace {
  readonly name: string;
  readonly blockTokens: number;
  readonly arrivalMs: Float64Array;
  readonly outputTokens: Uint32Array;
  /** Where each request's blocks of output begin; the last one is the end of all. */
  readonly outputFrom: Uint32Array;
  /** Blocks of prompts and outputs together. */
  readonly items: number;
  /** The block before each; -1: none. */
  readonly parents: Int32Array;
  readonly firstChild: Int32Array;
  readonly nextSibling: Int32Array;
  /** Of each request the next one of its session; -1: none. */
  readonly nextOf: Int32Array;
}

/** Throws as `readSessionTrace`. */
export async function readSimTrace(trace: Trace, signal?: AbortSignal): Promise<SimTrace> {
  const arrivals: number[] = [];
  const outputs: number[] = [];
  async function* noted() {
    for await (const request of trace.requests()) {
      arrivals.push(request.arrivalMs);
      outputs.push(request.outputTokens);
      yield request;
    }
  }
  const flat = await readSessionTrace({ ...trace, requests: noted }, signal);
  const { blockTokens } = trace;
  const outputFrom = new Uint32Array(outputs.length + 1);
  outputFrom[0] = flat.distinct;
  for (const [request, tokens] of outputs.entries()) {
    outputFrom[request + 1] = outputFrom[request]! + Math.floor(tokens / blockTokens);
  }
  return {
    ...flat,
    ...{ name: trace.name, blockTokens, outputFrom },
    arrivalMs: Float64Array.from(arrivals),
    outputTokens: Uint32Array.from(outputs),
    items: outputFrom[outputs.length]!,
    ...treeOf(flat, outputFrom),
    nextOf: nextOf(flat),
  };
}

function treeOf({ blocks, ends }: SessionTrace, outputFrom: Uint32Array) {
  const items = outputFrom.at(-1)!;
  const parents = new Int32Array(items).fill(-2);
  const firstChild = new Int32Array(items).fill(-1);
  const nextSibling = new Int32Array(items).fill(-1);
  const enter = (block: number, parent: number) => {
    if (parents[block] !== -2) return;
    parents[block] = parent;
    if (parent < 0) return;
    nextSibling[block] = firstChild[parent]!;
    firstChild[parent] = block;
  };
  let from = 0;
  for (const [request, to] of ends.entries()) {
    for (let at = from; at < to; at++) enter(blocks[at]!, at === from ? -1 : blocks[at - 1]!);
    let parent = to > from ? blocks[to - 1]! : -1;
    for (let block = outputFrom[request]!; block < outputFrom[request + 1]!; block++) {
      enter(block, parent);
      parent = block;
    }
    from = to;
  }
  return { parents, firstChild, nextSibling };
}

function nextOf({ sessionOf, sessions }: SessionTrace): Int32Array {
  const next = new Int32Array(sessionOf.length).fill(-1);
  const last = new Int32Array(sessions).fill(-1);
  for (const [request, session] of sessionOf.entries()) {
    if (last[session]! >= 0) next[last[session]!] = request;
    last[session] = request;
  }
  return next;
}
