import { atLine, lastBlockTokens, refuse } from "../fields.ts";
import { readLines } from "../lines.ts";
import { LIMITS, type ParsedRequest, type TraceRequest } from "../trace.ts";

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

/** All requests of a file in order of time; those of equal times keep the file's order. */
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
