import {
  atLine,
  blockTokensOf,
  lastBlockTokens,
  listOf,
  namesOf,
  objectOf,
  parseObject,
  parseObjectLossless,
  readLines,
  refuse,
  refuseCount,
  show,
  TOKENS_MAX,
  textOf,
  timeOf,
  tokensOf,
  wholeOf,
} from "../lines.ts";
import { createPrefixIds } from "../prefix-ids.ts";
import { LIMITS, type ParsedRequest, type TraceRequest } from "../trace.ts";

/** Tokens per block if the file does not say so: the value of Mooncake's own traces. */
export const MOONCAKE_BLOCK_TOKENS = 512;

/**
 * Parses one line of a Mooncake trace: `timestamp` (ms), `input_length` and `output_length`
 * (tokens), and `hash_ids`. Files derived from agent sessions also have `block_size`, `session_id`
 * and `turn`.
 */
export function parseMooncakeLine(
  text: string,
  blockTokens = MOONCAKE_BLOCK_TOKENS,
): ParsedRequest {
  const fields = parseObject(text);
  const size =
    fields.block_size === undefined ? blockTokens : blockTokensOf(fields.block_size, "block_size");
  const inputTokens = tokensOf(fields.input_length, "input_length");
  const names = namesOf(fields.hash_ids, "hash_ids");
  checkCover(names.length, inputTokens, size);
  return {
    atMs: timeOf(fields.timestamp, "timestamp"),
    inputTokens,
    outputTokens: tokensOf(fields.output_length, "output_length"),
    blockTokens: size,
    names,
    session: fields.session_id === undefined ? undefined : textOf(fields.session_id, "session_id"),
    turn: fields.turn === undefined ? undefined : wholeOf(fields.turn, "turn"),
  };
}

/**
 * Checks the number of blocks of a prompt. Published lists have ceil(tokens / block) elements. One
 * less is accepted too, because lists made from smaller full blocks may leave out the last tokens.
 */
function checkCover(blocks: number, inputTokens: number, blockTokens: number): void {
  const most = Math.ceil(inputTokens / blockTokens);
  if (blocks > most || blocks < Math.floor(inputTokens / blockTokens))
    throw refuseCount("hash_ids", blocks, inputTokens, most, blockTokens);
}

export async function* mooncakeRequests(source: Source): AsyncGenerator<TraceRequest, void, void> {
  const ids = createPrefixIds();
  for await (const parsed of readRequests(source, parseMooncakeLine)) {
    const blocks = atLine(source.path, parsed.line, () => ids.intern(parsed.names));
    yield requestOf(parsed, parsed.atMs, blocks);
  }
}

export const AZURE_BLOCK_TOKENS = 512;
export const AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens";

const IDS = 2 ** 32;
const ROW =
  /^(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:\+00:00)?,(\d{1,10}),(\d{1,10})$/;

/**
 * Parses one row of an Azure LLM inference trace, `2023-11-16 18:17:03.9799600,4808,10`: arrival
 * time, prompt tokens, answer tokens. Returns null for the header. `atMs` is in milliseconds since
 * 1970 (UTC).
 */
export function parseAzureLine(
  text: string,
  blockTokens = AZURE_BLOCK_TOKENS,
): ParsedRequest | null {
  if (text === AZURE_HEADER) return null;
  const row = ROW.exec(text);
  if (row === null) throw refuse(`${show(text)} is not a row of "${AZURE_HEADER}"`);
  const [year, month, day, hour, minute, second] = row.slice(1, 7).map(Number);
  const wholeMs = Date.UTC(year!, month! - 1, day!, hour!, minute!, second!);
  const inputTokens = Number(row[8]);
  const outputTokens = Number(row[9]);
  if (inputTokens > TOKENS_MAX || outputTokens > TOKENS_MAX)
    throw refuse(`${show(text)} has more than ${TOKENS_MAX} tokens`);
  if (Math.ceil(inputTokens / blockTokens) > LIMITS.requestBlocksMax)
    throw refuse(`${inputTokens} tokens make more than ${LIMITS.requestBlocksMax} blocks`);
  return {
    atMs: wholeMs + (row[7] === undefined ? 0 : Number(`0.${row[7]}`) * 1_000),
    inputTokens,
    outputTokens,
    blockTokens,
    names: [],
    session: undefined,
    turn: undefined,
  };
}

/**
 * Yields the requests of an Azure trace. The file contains only lengths, so no two prompts share a
 * block.
 */
export async function* azureRequests(source: Source): AsyncGenerator<TraceRequest, void, void> {
  let next = 0;
  let startMs: number | null = null;
  for await (const { number, text } of readLines(source.path)) {
    const parsed = atLine(source.path, number, () => parseAzureLine(text, source.blockTokens));
    if (parsed === null) continue;
    startMs ??= parsed.atMs;
    const count = Math.ceil(parsed.inputTokens / source.blockTokens);
    if (next + count > IDS) throw refuse(`${source.path}:${number}: more than ${IDS} blocks`);
    const blocks = new Uint32Array(count);
    for (let i = 0; i < count; i++) blocks[i] = next++;
    yield {
      arrivalMs: parsed.atMs - startMs,
      inputTokens: parsed.inputTokens,
      outputTokens: parsed.outputTokens,
      blocks,
      lastBlockTokens: lastBlockTokens(parsed.inputTokens, count, source.blockTokens),
      session: undefined,
      turn: undefined,
    };
  }
}

const DYNAMO_SCHEMA = "dynamo.request.trace.v1";

/**
 * Parses one event of a Dynamo request trace: a `request_end` with the prompt's 64-bit
 * `input_sequence_hashes` (each covers the whole prefix). Returns null for any other event. `atMs`
 * is the time at which the request was received, in ms since 1970.
 */
export function parseDynamoLine(text: string): ParsedRequest | null {
  const event = objectOf(parseObjectLossless(text).event, "event");
  if (event.schema !== DYNAMO_SCHEMA)
    throw refuse(`event.schema is ${show(event.schema)}, not "${DYNAMO_SCHEMA}"`);
  if (textOf(event.event_type, "event.event_type") !== "request_end") return null;
  const request = objectOf(event.request, "event.request");
  const replay = objectOf(request.replay, "event.request.replay");
  const inputTokens = tokensOf(replay.input_length, "replay.input_length");
  const blockTokens = blockTokensOf(replay.trace_block_size, "replay.trace_block_size");
  const names = hashesOf(replay.input_sequence_hashes);
  const blocks = Math.ceil(inputTokens / blockTokens);
  if (names.length !== blocks)
    throw refuseCount("input_sequence_hashes", names.length, inputTokens, blocks, blockTokens);
  return {
    atMs: timeOf(request.request_received_ms, "request_received_ms"),
    inputTokens,
    outputTokens: tokensOf(request.output_tokens, "output_tokens"),
    blockTokens,
    names,
    session: sessionOf(event.agent_context),
    turn: undefined,
  };
}

function hashesOf(value: unknown): readonly (number | bigint)[] {
  const list = listOf(value, "input_sequence_hashes", LIMITS.requestBlocksMax);
  for (let i = 0; i < list.length; i++) {
    const hash = list[i];
    const whole = typeof hash === "bigint" || (Number.isSafeInteger(hash) && (hash as number) >= 0);
    if (!whole || (hash as bigint) < 0n || (hash as bigint) > 0xffff_ffff_ffff_ffffn)
      throw refuse(`input_sequence_hashes[${i}] is ${show(hash)}, not a 64-bit hash`);
  }
  return list as readonly (number | bigint)[];
}

function sessionOf(context: unknown): string | undefined {
  if (context === undefined || context === null) return undefined;
  const { session_id } = objectOf(context, "event.agent_context");
  return session_id === undefined ? undefined : textOf(session_id, "agent_context.session_id");
}

/**
 * Yields the requests in order of arrival. The file lists them in the order in which they ended.
 */
export async function* dynamoRequests(source: Source): AsyncGenerator<TraceRequest, void, void> {
  const sorted = await readSorted(numbered(source), source.path);
  const startMs = sorted[0]?.atMs ?? 0;
  const ids = createPrefixIds();
  for (const parsed of sorted)
    yield requestOf(parsed, parsed.atMs - startMs, ids.intern(parsed.names));
}

/** Replaces hashes by small numbers, so that a request in memory takes 4 bytes per block. */
async function* numbered(source: Source): AsyncGenerator<PlacedRequest, void, void> {
  const ids = createPrefixIds();
  for await (const parsed of readRequests(source, parseDynamoLine))
    yield { ...parsed, names: atLine(source.path, parsed.line, () => ids.intern(parsed.names)) };
}

/** Arguments that `openTrace` passes to the reader of a format. */
export interface Source {
  readonly path: string;
  readonly blockTokens: number;
}

interface PlacedRequest extends ParsedRequest {
  readonly line: number;
}

/**
 * Yields the requests of a file that has at most one in each line. `parse` returns null for a line
 * without a request.
 */
export async function* readRequests(
  source: Source,
  parse: (text: string, blockTokens: number) => ParsedRequest | null,
): AsyncGenerator<PlacedRequest, void, void> {
  for await (const { number, text } of readLines(source.path)) {
    const request = atLine(source.path, number, () => {
      const parsed = parse(text, source.blockTokens);
      if (parsed !== null) checkBlockTokens(parsed.blockTokens, source.blockTokens);
      return parsed;
    });
    if (request !== null) yield { ...request, line: number };
  }
}

/**
 * Returns all requests of a file in order of time. Requests with equal times keep the file's order.
 */
export async function readSorted(
  requests: AsyncIterable<PlacedRequest>,
  path: string,
): Promise<PlacedRequest[]> {
  const held: PlacedRequest[] = [];
  let names = 0;
  for await (const request of requests) {
    names += request.names.length;
    if (held.length === LIMITS.heldRequestsMax || names > LIMITS.heldNamesMax)
      throw refuse(`${path}:${request.line}: more requests than can be held to sort them`);
    held.push(request);
  }
  return held.sort((a, b) => a.atMs - b.atMs);
}

export function checkBlockTokens(found: number, expected: number): void {
  if (found !== expected)
    throw refuse(`blocks of ${found} tokens, but of ${expected} in the lines before`);
}

export function requestOf(
  parsed: ParsedRequest,
  arrivalMs: number,
  blocks: Uint32Array,
): TraceRequest {
  return {
    arrivalMs,
    inputTokens: parsed.inputTokens,
    outputTokens: parsed.outputTokens,
    blocks,
    lastBlockTokens: lastBlockTokens(parsed.inputTokens, blocks.length, parsed.blockTokens),
    session: parsed.session,
    turn: parsed.turn,
  };
}
