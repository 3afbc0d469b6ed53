import { atLine, lastBlockTokens, refuse, show, TOKENS_MAX } from "../fields.ts";
import { readLines } from "../lines.ts";
import { LIMITS, type ParsedRequest, type TraceRequest } from "../trace.ts";
import type { Source } from "./reader.ts";

export const AZURE_BLOCK_TOKENS = 512;
export const AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens";

const IDS = 2 ** 32;
const ROW =
  /^(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:\+00:00)?,(\d{1,10}),(\d{1,10})$/;

/**
 * One row of an Azure LLM inference trace, `2023-11-16 18:17:03.9799600,4808,10`: arrival, prompt
 * tokens, answer tokens. Null for the header. `atMs` counts from 1970 in UTC.
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

/** The file has lengths only, so no two prompts share a block: each gets blocks of its own. */
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
