import {
  atLine,
  blockTokensOf,
  namesOf,
  parseObject,
  refuseCount,
  textOf,
  timeOf,
  tokensOf,
  wholeOf,
} from "../fields.ts";
import { createPrefixIds } from "../prefix-ids.ts";
import type { ParsedRequest, TraceRequest } from "../trace.ts";
import { readRequests, requestOf, type Source } from "./reader.ts";

/** Tokens of a block where the file does not say: Mooncake's own. */
export const MOONCAKE_BLOCK_TOKENS = 512;

/**
 * One line of a Mooncake trace: `timestamp` (ms), `input_length`, `output_length` (tokens) and
 * `hash_ids`. Files derived from agent sessions add `block_size`, `session_id` and `turn`.
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
 * Published lists have ceil(tokens / block) entries; one made from smaller full blocks may leave
 * the last tokens out, so one less is taken too.
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
