import {
  atLine,
  blockTokensOf,
  type Fields,
  listOf,
  namesOf,
  objectOf,
  parseObject,
  readLines,
  refuse,
  refuseCount,
  textOf,
  timeOf,
  tokensOf,
} from "../lines.ts";
import { createPrefixIds } from "../prefix-ids.ts";
import { LIMITS, type ParsedRequest, type TraceRequest } from "../trace.ts";
import { checkBlockTokens, parseMooncakeLine, requestOf, type Source } from "./row-formats.ts";

/**
 * How a document writes `hash_ids`: as full lists, or run-length coded relative to the previous
 * call.
 */
export type SessionCoding = "claude-sessions" | "claude-sessions-runs";

/** One session of Claude Code: one line of the file, which is one JSON document. */
export interface ParsedSession {
  readonly id: string;
  readonly blockTokens: number;
  /**
   * Number of tokens of the tool descriptions and the system prompt with which the session's
   * prompts begin.
   */
  readonly openingTokens: number;
  /**
   * All model calls of the session, including those of sub-agents, in order of time. `atMs` counts
   * from the start of the session; `turn` is the index in this order. Block names are unique only
   * inside the document.
   */
  readonly calls: readonly ParsedRequest[];
  /** Milliseconds from the start of the session to the end of its last call. */
  readonly spanMs: number;
}

/** A call whose `hash_ids` are not yet decoded. */
interface RawCall {
  readonly atMs: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly serviceMs: number;
  readonly ids: readonly number[];
}

const SUBAGENT_DEPTH_MAX = 16;

/**
 * Parses one session document of the kv-cache-tester data set: `requests` with `t` and `api_time`
 * in seconds, `in` and `out` in tokens, and `hash_ids` for the floor(in / block_size) full blocks.
 * An entry of type `subagent` contains requests of its own, with `t` relative to its start and ids
 * of the same document.
 */
export function parseSessionLine(text: string, coding: SessionCoding): ParsedSession {
  return sessionOf(parseObject(text), coding);
}

function sessionOf(document: Fields, coding: SessionCoding): ParsedSession {
  const id = textOf(document.id, "id");
  const blockTokens = blockTokensOf(document.block_size, "block_size");
  const raw = rawCallsOf(document);
  const names =
    coding === "claude-sessions" ? fullNames(raw, blockTokens) : runNames(raw, blockTokens);
  const order = raw.map((_, index) => index).sort((a, b) => raw[a].atMs - raw[b].atMs);
  const calls = order.map((index, turn): ParsedRequest => {
    const { atMs, inputTokens, outputTokens } = raw[index];
    return {
      atMs,
      inputTokens,
      outputTokens,
      blockTokens,
      names: names[index],
      session: id,
      turn,
    };
  });
  return {
    id,
    blockTokens,
    openingTokens:
      tokensOf(document.tool_tokens, "tool_tokens") +
      tokensOf(document.system_tokens, "system_tokens"),
    calls,
    spanMs: raw.reduce((end, call) => Math.max(end, call.atMs + call.serviceMs), 0),
  };
}

/** Returns all calls in the order of the document, to which the run-length coding refers. */
function rawCallsOf(document: Fields): readonly RawCall[] {
  const calls: RawCall[] = [];
  const visit = (requests: unknown, startMs: number, depth: number): void => {
    if (depth > SUBAGENT_DEPTH_MAX)
      throw refuse(`sub-agents nested over ${SUBAGENT_DEPTH_MAX} deep`);
    for (const entry of listOf(requests, "requests", LIMITS.line.containers)) {
      const fields = objectOf(entry, "a request");
      const atMs = startMs + timeOf(fields.t, "t") * 1_000;
      if (fields.type === "subagent") visit(fields.requests, atMs, depth + 1);
      else calls.push(rawCallOf(fields, atMs, calls.length));
    }
  };
  visit(document.requests, 0, 0);
  return calls;
}

function rawCallOf(fields: Fields, atMs: number, index: number): RawCall {
  return {
    atMs,
    inputTokens: tokensOf(fields.in, `in of call ${index}`),
    outputTokens: tokensOf(fields.out, `out of call ${index}`),
    serviceMs:
      fields.api_time === undefined || fields.api_time === null
        ? 0
        : timeOf(fields.api_time, `api_time of call ${index}`) * 1_000,
    ids: namesOf(fields.hash_ids, `hash_ids of call ${index}`),
  };
}

function fullNames(calls: readonly RawCall[], blockTokens: number): ArrayLike<number>[] {
  return calls.map((call, index) => {
    const blocks = Math.floor(call.inputTokens / blockTokens);
    if (call.ids.length !== blocks)
      throw refuseCount(
        `hash_ids of call ${index}`,
        call.ids.length,
        call.inputTokens,
        blocks,
        blockTokens,
      );
    return call.ids;
  });
}

function runNames(calls: readonly RawCall[], blockTokens: number): ArrayLike<number>[] {
  const names: Uint32Array[] = [];
  let previous: Uint32Array = new Uint32Array(0);
  let total = 0;
  for (const [index, call] of calls.entries()) {
    const blocks = Math.floor(call.inputTokens / blockTokens);
    total += blocks;
    if (total > LIMITS.sessionBlocksMax)
      throw refuse(`more than ${LIMITS.sessionBlocksMax} blocks in one session`);
    previous = decodeRuns(call.ids, previous, blocks, `hash_ids of call ${index}`);
    names.push(previous);
  }
  return names;
}

/**
 * Detects the coding of a document: full lists if each list has as many elements as its prompt has
 * blocks.
 */
export function codingOf(document: Fields): SessionCoding {
  const blockTokens = blockTokensOf(document.block_size, "block_size");
  const full = rawCallsOf(document).every(
    (call) => call.ids.length === Math.floor(call.inputTokens / blockTokens),
  );
  return full ? "claude-sessions" : "claude-sessions-runs";
}

/**
 * Yields the requests of all sessions, one session after another in the order of the file. The
 * sessions have no common clock, so each begins when the previous one has ended. Requests contain
 * only full blocks.
 */
export async function* sessionRequests(
  source: Source,
  coding: SessionCoding,
): AsyncGenerator<TraceRequest, void, void> {
  let startMs = 0;
  let distinct = 0;
  for await (const { number, text } of readLines(source.path)) {
    const session = atLine(source.path, number, () => {
      const parsed = parseSessionLine(text, coding);
      checkBlockTokens(parsed.blockTokens, source.blockTokens);
      return parsed;
    });
    const ids = createPrefixIds(distinct);
    for (const call of session.calls) {
      const blocks = atLine(source.path, number, () => ids.intern(call.names));
      yield requestOf(call, startMs + call.atMs, blocks);
    }
    distinct += ids.size;
    startMs += session.spanMs;
  }
}

/** The files of a composed trace, and of the sessions from which it was composed. */
interface NativeSource {
  readonly path: string;
  /** Tokens per block of the composed trace. The next member is the same for the sessions. */
  readonly composedBlockTokens: number;
  readonly blockTokens: number;
  readonly sessionsPath: string;
  readonly sessionsCoding: SessionCoding;
}

/**
 * A call as the number of leading blocks that it shares with the previous call, and its other
 * blocks.
 */
interface Call {
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly keep: number;
  readonly tail: Uint32Array;
}

interface Session {
  readonly calls: readonly Call[];
  /**
   * Number of leading blocks of the first call that represent the prefix shared by all sessions.
   */
  readonly openingBlocks: number;
  /** For each block of the session, its number in the trace + 1; 0 before its first use. */
  readonly numbers: Uint32Array;
  /** Blocks of the call replayed last, as numbers in the trace. */
  current: Uint32Array;
  /** Index of the next call. */
  turn: number;
}

/**
 * `next`: number of distinct blocks so far. `opening`: for each depth, the number + 1 of the block
 * in the shared prefix.
 */
interface Numbering {
  next: number;
  readonly opening: number[];
}

/**
 * Yields the requests of the composed trace with the smaller blocks of the sessions. Order and
 * arrival times are those of the composed file, whose rows name a call by `session_id` and `turn`.
 * As in the composition, the first floor((tool_tokens + system_tokens) / 2 / block) blocks of a
 * session's first call are one prefix that all sessions share; all other blocks belong to the
 * session.
 */
export async function* composedNativeRequests(
  source: NativeSource,
): AsyncGenerator<TraceRequest, void, void> {
  const sessions = new Map<string, Session>();
  const numbering: Numbering = { next: 0, opening: [] };
  for await (const { number, text } of readLines(source.sessionsPath)) {
    atLine(source.sessionsPath, number, () => {
      const parsed = parseSessionLine(text, source.sessionsCoding);
      checkBlockTokens(parsed.blockTokens, source.blockTokens);
      sessions.set(parsed.id, packed(parsed));
    });
  }
  for await (const { number, text } of readLines(source.path)) {
    yield atLine(source.path, number, () => {
      const row = parseMooncakeLine(text, source.composedBlockTokens);
      const session = row.session === undefined ? undefined : sessions.get(row.session);
      if (session === undefined)
        throw refuse(`no session ${row.session} in ${source.sessionsPath}`);
      const blocks = replayCall(session, row, numbering);
      return requestOf({ ...row, blockTokens: source.blockTokens }, row.atMs, blocks);
    });
  }
}

/**
 * Converts a session to a form that takes memory for its distinct blocks and not for all its
 * prompts.
 */
function packed(session: ParsedSession): Session {
  const ids = createPrefixIds();
  let previous: Uint32Array = new Uint32Array(0);
  const calls = session.calls.map((call): Call => {
    const blocks = ids.intern(call.names);
    const shorter = Math.min(previous.length, blocks.length);
    let keep = 0;
    while (keep < shorter && previous[keep] === blocks[keep]) keep++;
    previous = blocks;
    const { inputTokens, outputTokens } = call;
    return { inputTokens, outputTokens, keep, tail: blocks.slice(keep) };
  });
  const openingBlocks = Math.floor(session.openingTokens / 2 / session.blockTokens);
  return {
    calls,
    openingBlocks,
    numbers: new Uint32Array(ids.size),
    current: new Uint32Array(0),
    turn: 0,
  };
}

function replayCall(session: Session, row: ParsedRequest, numbering: Numbering): Uint32Array {
  const call = row.turn === session.turn ? session.calls[session.turn] : undefined;
  if (call === undefined)
    throw refuse(`turn ${row.turn} of ${row.session}, of which turn ${session.turn} is next`);
  if (call.inputTokens !== row.inputTokens || call.outputTokens !== row.outputTokens)
    throw refuse(`turn ${row.turn} of ${row.session} has other lengths in the sessions file`);
  if (session.turn === 0)
    shareOpening(session, call.tail.subarray(0, session.openingBlocks), numbering);
  const blocks = new Uint32Array(call.keep + call.tail.length);
  blocks.set(session.current.subarray(0, call.keep));
  for (let i = 0; i < call.tail.length; i++) {
    const block = call.tail[i];
    if (session.numbers[block] === 0) session.numbers[block] = ++numbering.next;
    blocks[call.keep + i] = session.numbers[block] - 1;
  }
  session.current = blocks;
  session.turn++;
  return blocks;
}

function shareOpening(session: Session, blocks: Uint32Array, numbering: Numbering): void {
  for (let depth = 0; depth < blocks.length; depth++) {
    if (depth === numbering.opening.length) numbering.opening.push(++numbering.next);
    session.numbers[blocks[depth]] = numbering.opening[depth];
  }
}

/**
 * Decodes `[k, start, n, start, n, …]`: the first k ids of the previous call, then n consecutive
 * ids from each `start`. The result must have `length` ids; memory is never allocated for more.
 */
function decodeRuns(
  code: readonly number[],
  previous: Uint32Array,
  length: number,
  what: string,
): Uint32Array {
  if (length > LIMITS.requestBlocksMax)
    throw refuse(`${what} stands for ${length} blocks, more than ${LIMITS.requestBlocksMax}`);
  if (code.length % 2 !== 1)
    throw refuse(`${what} is not a run code: it has an even number of entries`);
  const keep = code[0];
  if (keep > previous.length || keep > length)
    throw refuse(`${what} repeats ${keep} ids of ${previous.length} for ${length} blocks`);
  const ids = new Uint32Array(length);
  ids.set(previous.subarray(0, keep));
  let at = keep;
  for (let i = 1; i < code.length; i += 2) {
    const start = code[i];
    const run = code[i + 1];
    if (run > length - at)
      throw refuse(`${what} decodes to more than the ${length} blocks of its call`);
    if (start + run > 2 ** 32) throw refuse(`${what} has ids beyond 32 bits`);
    for (let n = 0; n < run; n++) ids[at++] = start + n;
  }
  if (at !== length) throw refuse(`${what} decodes to ${at} ids, not the ${length} of its call`);
  return ids;
}
