import { DIGEST_BYTES, HearthError, yieldToLoop } from "../../../core/index.ts";
import { type BlockNamer, PromptChain } from "../../../router/index.ts";
import type { Trace, TraceRequest } from "../../traces/index.ts";

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
  /** For each request, the next one of its session; -1 if there is none. */
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

/** A trace as flat arrays, each request with its conversation. */
interface SessionTrace {
  /** The blocks of all prompts, one prompt after the other; dense numbers from 0. */
  readonly blocks: Uint32Array;
  /** Where each request ends in `blocks`. */
  readonly ends: Uint32Array;
  /** The conversation of each request; dense numbers from 0. */
  readonly sessionOf: Uint32Array;
  /** Distinct blocks: every number is below it. */
  readonly distinct: number;
  readonly sessions: number;
}

/** 2^29 uses are 2 GiB. */
const USES_MAX = 2 ** 29;

const YIELD_REQUESTS = 1_000;

/**
 * Reads a trace to its end. Throws TRACE_INVALID if it is broken or has no blocks, LIMIT if it is
 * too large.
 */
async function readSessionTrace(trace: Trace, signal?: AbortSignal): Promise<SessionTrace> {
  const reader = new Reader(trace);
  for await (const request of trace.requests()) {
    reader.add(request);
    if (reader.requests % YIELD_REQUESTS !== 0) continue;
    await yieldToLoop();
    if (signal?.aborted) throw new HearthError("ABORTED", "the session bench was aborted");
  }
  return reader.finish();
}

class Reader {
  readonly #trace: Trace;
  readonly #names = new Map<string, number>();
  #blocks = new Uint32Array(2 ** 16);
  #ends = new Uint32Array(2 ** 10);
  #sessionOf = new Uint32Array(2 ** 10);
  #uses = 0;
  #distinct = 0;
  /** Whether every request so far was named its conversation. */
  #named = true;
  requests = 0;

  constructor(trace: Trace) {
    this.#trace = trace;
  }

  add(request: TraceRequest): void {
    const { blocks, session } = request;
    const end = this.#uses + blocks.length;
    if (end > USES_MAX)
      throw new HearthError("LIMIT", `${this.#trace.path}: more than ${USES_MAX} uses of blocks`);
    this.#blocks = grown(this.#blocks, end);
    this.#blocks.set(blocks, this.#uses);
    for (const block of blocks) this.#distinct = Math.max(this.#distinct, block + 1);
    this.#ends = grown(this.#ends, this.requests + 1);
    this.#sessionOf = grown(this.#sessionOf, this.requests + 1);
    this.#ends[this.requests] = end;
    if (session === undefined) this.#named = false;
    else this.#sessionOf[this.requests] = this.#numberOf(session);
    this.#uses = end;
    this.requests++;
  }

  #numberOf(name: string): number {
    const known = this.#names.get(name) ?? this.#names.size;
    this.#names.set(name, known);
    return known;
  }

  finish(): SessionTrace {
    if (this.#uses === 0)
      throw new HearthError("TRACE_INVALID", `${this.#trace.path}: has no blocks, only lengths`);
    const blocks = this.#blocks.slice(0, this.#uses);
    const ends = this.#ends.slice(0, this.requests);
    const distinct = this.#distinct;
    const sessionOf = this.#named
      ? this.#sessionOf.slice(0, this.requests)
      : inferSessions({ blocks, ends, distinct });
    const sessions = sessionOf.reduce((most, session) => Math.max(most, session + 1), 0);
    return { blocks, ends, sessionOf, distinct, sessions };
  }
}

function grown(array: Uint32Array<ArrayBuffer>, atLeast: number): Uint32Array<ArrayBuffer> {
  if (atLeast <= array.length) return array;
  const larger = new Uint32Array(Math.max(atLeast, array.length * 2));
  larger.set(array);
  return larger;
}

/** A block with this many uses is shared and does not identify a conversation. */
const COMMON_USES = 40;

interface PromptBlocks {
  readonly blocks: Uint32Array;
  readonly ends: Uint32Array;
  readonly distinct: number;
}

/**
 * Conversations of a trace that names none: a request is the next turn of the latest request that
 * has its deepest known block, unless that block is used by 40 or more requests; else it begins a
 * conversation. The rule, and the figures of it, are those published with the traces.
 */
function inferSessions({ blocks, ends, distinct }: PromptBlocks): Uint32Array {
  const uses = new Uint32Array(distinct);
  for (const block of blocks) uses[block]!++;
  const sessionOf = new Uint32Array(ends.length);
  /** The conversation of the latest request that has the block, from 1; 0: no request has. */
  const latest = new Uint32Array(distinct);
  let sessions = 0;
  let from = 0;
  for (const [request, to] of ends.entries()) {
    let known = from;
    while (known < to && latest[blocks[known]!] !== 0) known++;
    const deepest = known === from ? undefined : blocks[known - 1]!;
    const goesOn = deepest !== undefined && uses[deepest]! < COMMON_USES;
    const session = goesOn ? latest[deepest]! : ++sessions;
    for (let at = from; at < to; at++) latest[blocks[at]!] = session;
    sessionOf[request] = session - 1;
    from = to;
  }
  return sessionOf;
}

const GROUP = "simulated";

/** Where a block's number stands in its digest: as big endian, so that hex shows it. */
const NUMBER_AT = 8;

/** Made-up digests that tell the block's number; a request's id is its place in the trace. */
export function createSimNamer(trace: SimTrace): BlockNamer {
  return {
    group: () => GROUP,
    chain(_target, { requestId }, output) {
      const request = Number(requestId);
      const from = request === 0 ? 0 : trace.ends[request - 1]!;
      const prompt = trace.blocks.subarray(from, trace.ends[request]!);
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

/** The numbers of an answer's full blocks. */
export function outputBlocks({ outputFrom }: SimTrace, request: number): number[] {
  const from = outputFrom[request]!;
  return Array.from({ length: outputFrom[request + 1]! - from }, (_, at) => from + at);
}

/** The block that a command names. */
export function blockOf(name: unknown): number {
  return Number.parseInt(String(name).slice(2 * NUMBER_AT, 2 * NUMBER_AT + 8), 16);
}

/** The finaliser of MurmurHash3 (Austin Appleby, public domain). */
function mixed(block: number, seed: number): number {
  let hash = (block + 1) ^ seed;
  hash = Math.imul(hash ^ (hash >>> 16), 0x85eb_ca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2_ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}
