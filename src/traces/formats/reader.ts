import { atLine, lastBlockTokens, refuse } from "../fields.ts";
import { readLines } from "../lines.ts";
import type { ParsedRequest, TraceRequest } from "../trace.ts";

/** What a format's reader is told by `openTrace`. */
export interface Source {
  readonly path: string;
  readonly blockTokens: number;
}

export interface PlacedRequest extends ParsedRequest {
  readonly line: number;
}

/** The requests of a file with one, or none, in each line; `parse` answers null for none. */
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
