import { HearthError, yieldToLoop } from "../../../core/index.ts";
import type { Trace, TraceRequest } from "../../traces/index.ts";
import { inferSessions } from "./infer-sessions.ts";

/** A trace as flat arrays, each request with its conversation. */
export interface SessionTrace {
  /** The blocks of all prompts, one prompt after the other; dense numbers from 0. */
  readonly blocks: Uint32Array;
  /** Where each request ends in `blocks`. */
  readonly ends: Uint32Array;
  /** The conversation of each request; dense numbers from 0. */
  readonly sessionOf: Uint32Array;
  /** How many leading blocks of each request are those of the turn before it; 0 for first turns. */
  readonly kept: Uint32Array;
  /** Tokens in each block: fewer in one that a prompt ends in the middle of. */
  readonly tokens: Uint32Array;
  /** Distinct blocks: every number is below it. */
  readonly distinct: number;
  readonly sessions: number;
  /** Who says which request belongs to which conversation. */
  readonly sessionsFrom: "source" | "inferred";
}

/** 2^29 uses are 2 GiB. */
const USES_MAX = 2 ** 29;
const YIELD_REQUESTS = 1_000;

/**
 * Reads a trace to its end. Throws TRACE_INVALID where it is broken or has no blocks, LIMIT where
 * it is too large.
 */
export async function readSessionTrace(trace: Trace, signal?: AbortSignal): Promise<SessionTrace> {
  const reader = new Reader(trace);
  for await (const request of trace.requests()) {
    reader.add(request);
    if (reader.requests % YIELD_REQUESTS !== 0) continue;
    await yieldToLoop();
    if (signal?.aborted) throw new HearthError("ABORTED", "the session bench was given up");
  }
  return reader.finish();
}

class Reader {
  readonly #trace: Trace;
  readonly #names = new Map<string, number>();
  #blocks = new Uint32Array(2 ** 16);
  #ends = new Uint32Array(2 ** 10);
  #sessionOf = new Uint32Array(2 ** 10);
  #tokens = new Uint32Array(2 ** 12);
  #uses = 0;
  #distinct = 0;
  /** Whether every request so far was named its conversation. */
  #named = true;
  requests = 0;

  constructor(trace: Trace) {
    this.#trace = trace;
  }

  add(request: TraceRequest): void {
    const { blocks, lastBlockTokens, session } = request;
    const { path, blockTokens } = this.#trace;
    const end = this.#uses + blocks.length;
    if (end > USES_MAX)
      throw new HearthError("LIMIT", `${path}: more than ${USES_MAX} uses of blocks`);
    this.#blocks = grown(this.#blocks, end);
    this.#blocks.set(blocks, this.#uses);
    for (const [at, block] of blocks.entries()) {
      if (block < this.#distinct) continue;
      this.#distinct = block + 1;
      this.#tokens = grown(this.#tokens, this.#distinct);
      this.#tokens[block] = at === blocks.length - 1 ? lastBlockTokens : blockTokens;
    }
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
    return {
      blocks,
      ends,
      sessionOf,
      kept: keptBlocks(blocks, ends, sessionOf, sessions),
      tokens: this.#tokens.slice(0, distinct),
      distinct,
      sessions,
      sessionsFrom: this.#named ? "source" : "inferred",
    };
  }
}

/** The common beginning of each request and the one before it in its conversation. */
function keptBlocks(
  blocks: Uint32Array,
  ends: Uint32Array,
  sessionOf: Uint32Array,
  sessions: number,
): Uint32Array {
  const kept = new Uint32Array(ends.length);
  const begin = new Uint32Array(sessions);
  const end = new Uint32Array(sessions);
  let from = 0;
  for (const [request, to] of ends.entries()) {
    const session = sessionOf[request]!;
    const before = begin[session]!;
    const most = Math.min(end[session]! - before, to - from);
    let same = 0;
    while (same < most && blocks[before + same] === blocks[from + same]) same++;
    kept[request] = same;
    begin[session] = from;
    end[session] = to;
    from = to;
  }
  return kept;
}

function grown(array: Uint32Array<ArrayBuffer>, atLeast: number): Uint32Array<ArrayBuffer> {
  if (atLeast <= array.length) return array;
  const larger = new Uint32Array(Math.max(atLeast, array.length * 2));
  larger.set(array);
  return larger;
}
