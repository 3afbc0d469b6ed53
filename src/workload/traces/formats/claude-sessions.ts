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

/** How a document writes `hash_ids`: in full, or run-coded against the call before (`runs.ts`). */
export type SessionCoding = "claude-sessions" | "claude-sessions-runs";

/** One session: one line, one JSON document. */
export interface ParsedSession {
  readonly id: string;
  readonly blockTokens: number;
  /** Tokens of the tool descriptions and the system prompt that open the session's prompts. */
  readonly openingTokens: number;
  /**
   * All model calls, sub-agents' among them, in order of time; `atMs` counts from the session's
   * start, `turn` is the place in this order. Names are the document's own and mean nothing
   * outside.
   */
  readonly calls: readonly ParsedRequest[];
  /** From the session's start to the end of its last call. */
  readonly spanMs: number;
}

/** `hash_ids` before they are decoded, beside the call they belong to. */
interface RawCall {
  readonly atMs: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly serviceMs: number;
  readonly ids: readonly number[];
}

const SUBAGENT_DEPTH_MAX = 16;

/**
 * One session document of the kv-cache-tester set: `requests` with `t` and `api_time` in seconds,
 * `in` and `out` in tokens, and `hash_ids` for the floor(in / block_size) full blocks. A `subagent`
 * entry holds requests of its own, with `t` from its start, in the id space of the document.
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
  const order = raw.map((_, index) => index).sort((a, b) => raw[a]!.atMs - raw[b]!.atMs);
  const calls = order.map((index, turn): ParsedRequest => {
    const { atMs, inputTokens, outputTokens } = raw[index]!;
    return {
      atMs,
      inputTokens,
      outputTokens,
      blockTokens,
      names: names[index]!,
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

/** All calls in file order, the order that the run code refers to. */
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

/** Which coding a document uses: in full where every list is as long as its prompt. */
export function codingOf(document: Fields): SessionCoding {
  const blockTokens = blockTokensOf(document.block_size, "block_size");
  const full = rawCallsOf(document).every(
    (call) => call.ids.length === Math.floor(call.inputTokens / blockTokens),
  );
  return full ? "claude-sessions" : "claude-sessions-runs";
}

/**
 * The sessions one after another, as they stand in the file: the source has no common clock, so
 * each begins when the one before has had its last answer. Only full blocks are asked for.
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

/** A composed trace and the sessions it was made from. */
interface NativeSource {
  readonly path: string;
  /** Tokens of the composed trace's own blocks, and of the sessions'. */
  readonly composedBlockTokens: number;
  readonly blockTokens: number;
  readonly sessionsPath: string;
  readonly sessionsCoding: SessionCoding;
}

/** A call as the length of the prefix shared with the previous call, and the rest. */
interface Call {
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly keep: number;
  readonly tail: Uint32Array;
}

interface Session {
  readonly calls: readonly Call[];
  /** How many leading blocks of the first call stand for the prefix shared by all sessions. */
  readonly openingBlocks: number;
  /** The session's block → its number in the trace + 1; 0 until it is first used. */
  readonly numbers: Uint32Array;
  /** The blocks of the call replayed last, as numbers of the trace. */
  current: Uint32Array;
  /** The call that comes next. */
  turn: number;
}

/** Distinct blocks so far, and the shared prefix: the number + 1 of its block at each depth. */
interface Numbering {
  next: number;
  readonly opening: number[];
}

/**
 * The composed trace with the sessions' own smaller blocks. Arrivals and order are the composed
 * file's; a row names its call by `session_id` and `turn`. As in the composing, the first
 * floor((tool_tokens + system_tokens) / 2 / block) blocks of a session's first call stand for one
 * prefix that all sessions share, wherever these names occur; all other blocks are the session's.
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

/** Keeps a session in the memory of its distinct blocks rather than of all its prompts. */
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
    const block = call.tail[i]!;
    if (session.numbers[block] === 0) session.numbers[block] = ++numbering.next;
    blocks[call.keep + i] = session.numbers[block]! - 1;
  }
  session.current = blocks;
  session.turn++;
  return blocks;
}

function shareOpening(session: Session, blocks: Uint32Array, numbering: Numbering): void {
  for (let depth = 0; depth < blocks.length; depth++) {
    if (depth === numbering.opening.length) numbering.opening.push(++numbering.next);
    session.numbers[blocks[depth]!] = numbering.opening[depth]!;
  }
}

/**
 * Decodes `[k, start, n, start, n, …]`: the first k ids of the call before, then n consecutive ids
 * from each start. `length` is how many ids must come out; nothing is allocated for more.
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
  const keep = code[0]!;
  if (keep > previous.length || keep > length)
    throw refuse(`${what} repeats ${keep} ids of ${previous.length} for ${length} blocks`);
  const ids = new Uint32Array(length);
  ids.set(previous.subarray(0, keep));
  let at = keep;
  for (let i = 1; i < code.length; i += 2) {
    const start = code[i]!;
    const run = code[i + 1]!;
    if (run > length - at)
      throw refuse(`${what} decodes to more than the ${length} blocks of its call`);
    if (start + run > 2 ** 32) throw refuse(`${what} has ids beyond 32 bits`);
    for (let n = 0; n < run; n++) ids[at++] = start + n;
  }
  if (at !== length) throw refuse(`${what} decodes to ${at} ids, not the ${length} of its call`);
  return ids;
}
