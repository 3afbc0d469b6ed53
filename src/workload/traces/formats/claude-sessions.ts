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
import { checkBlockTokens, requestOf, type Source } from "./row-formats.ts";
import { decodeRuns } from "./runs.ts";

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
