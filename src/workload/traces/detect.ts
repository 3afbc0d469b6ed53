import { blockTokensOf, parseObject, refuse } from "./fields.ts";
import { AZURE_BLOCK_TOKENS, AZURE_HEADER } from "./formats/azure.ts";
import { codingOf } from "./formats/claude-sessions.ts";
import { parseDynamoLine } from "./formats/dynamo.ts";
import { MOONCAKE_BLOCK_TOKENS } from "./formats/mooncake.ts";
import { RAGPULSE_BLOCK_TOKENS } from "./formats/ragpulse.ts";
import { PIECE_KINDS, RAGPULSE_TRACE_FILE } from "./formats/ragpulse-pieces.ts";
import type { TraceFormat } from "./trace.ts";

export interface Detected {
  readonly format: TraceFormat;
  readonly blockTokens: number;
  /** Whether the file itself fixes the block size, so that nobody may choose another. */
  readonly fixed: boolean;
}

/**
 * What a file is, from its first line, or null where the line belongs to a known format and tells
 * nothing of its blocks (a Dynamo event): the next one will. Throws TRACE_INVALID where it is
 * nothing known.
 */
export function detectFormat(line: string): Detected | null {
  if (line === AZURE_HEADER)
    return { format: "azure", blockTokens: AZURE_BLOCK_TOKENS, fixed: false };
  const fields = parseObject(line);
  if (fields.event !== undefined) {
    const parsed = parseDynamoLine(line);
    return parsed && { format: "dynamo", blockTokens: parsed.blockTokens, fixed: true };
  }
  if (fields.requests !== undefined) {
    const blockTokens = blockTokensOf(fields.block_size, "block_size");
    return { format: codingOf(fields), blockTokens, fixed: true };
  }
  if (PIECE_KINDS.some(({ id }) => fields[id] !== undefined))
    throw refuse(
      "this file tells the lengths of prompt pieces, it has no requests: " +
        `give ${RAGPULSE_TRACE_FILE}.jsonl.gz of the same folder`,
    );
  if (Array.isArray(fields.hash_ids)) {
    const fixed = fields.block_size !== undefined;
    const blockTokens = fixed
      ? blockTokensOf(fields.block_size, "block_size")
      : MOONCAKE_BLOCK_TOKENS;
    return { format: "mooncake", blockTokens, fixed };
  }
  if (typeof fields.hash_ids === "object" && fields.hash_ids !== null)
    return { format: "ragpulse", blockTokens: RAGPULSE_BLOCK_TOKENS, fixed: false };
  throw refuse(
    "no known trace: wants JSON lines of Mooncake, Claude Code sessions, RAGPulse or Dynamo, " +
      "or the CSV of Azure",
  );
}
