import { DIGEST_BYTES, HearthError } from "../../../core/index.ts";
import { type BlockNamer, PromptChain } from "../../../router/index.ts";
import type { Trace } from "../../traces/index.ts";
import { type FlatTrace, flattenTrace } from "../flat-trace.ts";

/** A trace of conversations, with times and the blocks of answers. */
export interface SimTrace extends FlatTrace {
  readonly name: string;
  /** The conversation of each request. Numbers run from 0 without gaps. */
  readonly sessionOf: Uint32Array;
  readonly sessions: number;
  readonly blockTokens: number;
  readonly arrivalMs: Float64Array;
  readonly outputTokens: Uint32Array;
  /**
   * For each request, the number of the first block of its answer; the last element is the end of
   * all.
   */
  readonly outputFrom: Uint32Array;
  /** Number of distinct blocks of prompts and answers together. */
  readonly items: number;
  /** For each block, the block that precedes it; -1 if none. */
  readonly parents: Int32Array;
  readonly firstChild: Int32Array;
  readonly nextSibling: Int32Array;
  /** For each request, the next request of its conversation; -1 if none. */
  readonly nextOf: Int32Array;
}

/**
 * Reads a whole trace. Throws TRACE_INVALID if it is broken or has no blocks, LIMIT if it is too
 * large.
 */
export async function readSimTrace(trace: Trace, signal?: AbortSignal): Promise<SimTrace> {
  const arrivals: number[] = [];
  const outputs: number[] = [];
  const numbers = new Map<string, number>();
  const named: number[] = [];
  const flat = await flattenTrace(trace, signal, ({ arrivalMs, outputTokens, session }) => {
    arrivals.push(arrivalMs);
    outputs.push(outputTokens);
    if (session === undefined) return;
    const number = numbers.get(session) ?? numbers.size;
    numbers.set(session, number);
    named.push(number);
  });
  if (flat.blocks.length === 0)
    throw new HearthError("TRACE_INVALID", `${trace.path}: has no blocks, only lengths`);
  const isNamed = named.length === flat.ends.length;
  const sessionOf = isNamed ? Uint32Array.from(named) : inferSessions(flat);
  const sessions = sessionOf.reduce((most, session) => Math.max(most, session + 1), 0);
  const { blockTokens } = trace;
  const outputFrom = new Uint32Array(outputs.length + 1);
  outputFrom[0] = flat.distinct;
  for (const [request, tokens] of outputs.entries()) {
    outputFrom[request + 1] = outputFrom[request] + Math.floor(tokens / blockTokens);
  }
  return {
    ...flat,
    sessionOf,
    sessions,
    ...{ name: trace.name, blockTokens, outputFrom },
    arrivalMs: Float64Array.from(arrivals),
    outputTokens: Uint32Array.from(outputs),
    items: outputFrom[outputs.length],
    ...treeOf(flat, outputFrom),
    nextOf: nextOf(sessionOf, sessions),
  };
}

function treeOf({ blocks, ends }: FlatTrace, outputFrom: Uint32Array) {
  const items = outputFrom.at(-1)!;
  const parents = new Int32Array(items).fill(-2);
  const firstChild = new Int32Array(items).fill(-1);
  const nextSibling = new Int32Array(items).fill(-1);
  const enter = (block: number, parent: number) => {
    if (parents[block] !== -2) return;
    parents[block] = parent;
    if (parent < 0) return;
    nextSibling[block] = firstChild[parent];
    firstChild[parent] = block;
  };
  let from = 0;
  for (const [request, to] of ends.entries()) {
    for (let at = from; at < to; at++) enter(blocks[at], at === from ? -1 : blocks[at - 1]);
    let parent = to > from ? blocks[to - 1] : -1;
    for (let block = outputFrom[request]; block < outputFrom[request + 1]; block++) {
      enter(block, parent);
      parent = block;
    }
    from = to;
  }
  return { parents, firstChild, nextSibling };
}

function nextOf(sessionOf: Uint32Array, sessions: number): Int32Array {
  const next = new Int32Array(sessionOf.length).fill(-1);
  const last = new Int32Array(sessions).fill(-1);
  for (const [request, session] of sessionOf.entries()) {
    if (last[session] >= 0) next[last[session]] = request;
    last[session] = request;
  }
  return next;
}

/**
 * A block with at least this many uses is shared between conversations and does not identify one.
 */
const COMMON_USES = 40;

/**
 * Assigns conversations to a trace that does not name them. A request continues the conversation of
 * the latest request that has its deepest known block, unless that block has 40 or more uses; else
 * it begins a conversation. The publishers of the traces use the same rule.
 */
function inferSessions({ blocks, ends, distinct }: FlatTrace): Uint32Array {
  const uses = new Uint32Array(distinct);
  for (const block of blocks) uses[block]++;
  const sessionOf = new Uint32Array(ends.length);
  /** For each block, the conversation (+ 1) of the latest request that has it; 0 if none has. */
  const latest = new Uint32Array(distinct);
  let sessions = 0;
  let from = 0;
  for (const [request, to] of ends.entries()) {
    let known = from;
    while (known < to && latest[blocks[known]] !== 0) known++;
    const deepest = known === from ? undefined : blocks[known - 1];
    const goesOn = deepest !== undefined && uses[deepest] < COMMON_USES;
    const session = goesOn ? latest[deepest] : ++sessions;
    for (let at = from; at < to; at++) latest[blocks[at]] = session;
    sessionOf[request] = session - 1;
    from = to;
  }
  return sessionOf;
}

const GROUP = "simulated";

/** Offset of a block's number in its digest. The number is big-endian, so that hex shows it. */
const NUMBER_AT = 8;

/**
 * Creates digests that contain the block's number. The id of a request is its index in the trace.
 */
export function createSimNamer(trace: SimTrace): BlockNamer {
  return {
    group: () => GROUP,
    chain(_target, { requestId }, output) {
      const request = Number(requestId);
      const from = request === 0 ? 0 : trace.ends[request - 1];
      const prompt = trace.blocks.subarray(from, trace.ends[request]);
      const answer = output === undefined ? [] : outputBlocks(trace, request);
      const digests = new Uint8Array((prompt.length + answer.length) * DIGEST_BYTES);
      const view = new DataView(digests.buffer);
      const write = (block: number, at: number) => {
        view.setUint32(at, mixed(block, 0x85eb_ca6b), true);
        view.setUint32(at + 4, mixed(block, 0xc2b2_ae35), true);
        view.setUint32(at + NUMBER_AT, block);
      };
      for (const [at, block] of prompt.entries()) write(block, at * DIGEST_BYTES);
      for (const [at, block] of answer.entries()) write(block, (prompt.length + at) * DIGEST_BYTES);
      return new PromptChain(GROUP, [{ blockTokens: trace.blockTokens, digests }]);
    },
  };
}

/** Returns the numbers of the full blocks of a request's answer. */
export function outputBlocks({ outputFrom }: SimTrace, request: number): number[] {
  const from = outputFrom[request];
  return Array.from({ length: outputFrom[request + 1] - from }, (_, at) => from + at);
}

/** Returns the number of the block that a command names. */
export function blockOf(name: unknown): number {
  return Number.parseInt(String(name).slice(2 * NUMBER_AT, 2 * NUMBER_AT + 8), 16);
}

/** Mixes the bits of a number: the last step of MurmurHash3 (Austin Appleby, public domain). */
function mixed(block: number, seed: number): number {
  let hash = (block + 1) ^ seed;
  hash = Math.imul(hash ^ (hash >>> 16), 0x85eb_ca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2_ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}
