import {
  atLine,
  blockTokensOf,
  listOf,
  objectOf,
  parseObjectLossless,
  refuse,
  refuseCount,
  show,
  textOf,
  timeOf,
  tokensOf,
} from "../fields.ts";
import { createPrefixIds } from "../prefix-ids.ts";
import { LIMITS, type ParsedRequest, type TraceRequest } from "../trace.ts";
import { type PlacedRequest, readRequests, readSorted, requestOf, type Source } from "./reader.ts";

export const DYNAMO_SCHEMA = "dynamo.request.trace.v1";

/**
 * One event of a Dynamo request trace: a `request_end` with the prompt's 64-bit
 * `input_sequence_hashes` (each over the whole prefix), or null for every other event. `atMs` is
 * the moment the request was received, in ms since 1970.
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

/** Events stand in the order in which requests ended; they are replayed in the order of arrival. */
export async function* dynamoRequests(source: Source): AsyncGenerator<TraceRequest, void, void> {
  const sorted = await readSorted(numbered(source), source.path);
  const startMs = sorted[0]?.atMs ?? 0;
  const ids = createPrefixIds();
  for (const parsed of sorted)
    yield requestOf(parsed, parsed.atMs - startMs, ids.intern(parsed.names));
}

/** Small numbers in place of the hashes, so that holding a request costs 4 bytes a block. */
async function* numbered(source: Source): AsyncGenerator<PlacedRequest, void, void> {
  const ids = createPrefixIds();
  for await (const parsed of readRequests(source, parseDynamoLine))
    yield { ...parsed, names: atLine(source.path, parsed.line, () => ids.intern(parsed.names)) };
}
