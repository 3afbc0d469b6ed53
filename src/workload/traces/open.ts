import { stat } from "node:fs/promises";
import { basename, dirname, resolve } from "node:path";
import { messageOf, unreachable } from "../../core/index.ts";
import path from "./data/mooncake_arxiv_first1000.jsonl.gz" with { type: "file" };
import {
  codingOf,
  composedNativeRequests,
  type SessionCoding,
  sessionRequests,
} from "./formats/claude-sessions.ts";
import {
  findJsonl,
  PIECE_KINDS,
  RAGPULSE_BLOCK_TOKENS,
  RAGPULSE_TRACE_FILE,
  ragPulseRequests,
} from "./formats/ragpulse.ts";
import type { Source } from "./formats/row-formats.ts";
import {
  AZURE_BLOCK_TOKENS,
  AZURE_HEADER,
  azureRequests,
  dynamoRequests,
  MOONCAKE_BLOCK_TOKENS,
  mooncakeRequests,
  parseDynamoLine,
} from "./formats/row-formats.ts";
import { atLine, blockTokensOf, parseObject, readLines, refuse } from "./lines.ts";
import type { Trace, TraceFormat, TraceRequest } from "./trace.ts";

export interface OpenTraceOptions {
  /**
   * Tokens per block for files that do not specify it: Mooncake lines without `block_size` (default
   * 512), RAGPulse (16) and Azure (512).
   */
  readonly blockTokens?: number;
  /**
   * Only for the composed Claude Code trace: path of the sessions file from which it was composed.
   * The trace then has the 64-token blocks of the sessions instead of those of the composed file.
   */
  readonly nativeBlocks?: string;
  /** Name of the trace; default: the name of the file. */
  readonly name?: string;
}

/**
 * Opens a trace file: plain, gzip or Zstandard. Detects its format by its content. A folder means
 * the RAGPulse release in it. Throws TRACE_INVALID with the file, the line and the problem.
 */
export async function openTrace(path: string, options: OpenTraceOptions = {}): Promise<Trace> {
  const file = await fileOf(path);
  const found = await detect(file);
  const blockTokens = chooseBlockTokens(file, found, options.blockTokens);
  if (options.nativeBlocks !== undefined)
    return openNative(path, file, found, options.nativeBlocks, options.name);
  return {
    name: options.name ?? nameOf(file, found.format),
    path,
    format: found.format,
    blockTokens,
    requests: () => requestsOf(found.format, { path: file, blockTokens }),
  };
}

function requestsOf(format: TraceFormat, source: Source): AsyncIterable<TraceRequest> {
  switch (format) {
    case "mooncake":
      return mooncakeRequests(source);
    case "claude-sessions":
    case "claude-sessions-runs":
      return sessionRequests(source, format);
    case "ragpulse":
      return ragPulseRequests(source);
    case "dynamo":
      return dynamoRequests(source);
    case "azure":
      return azureRequests(source);
    case "claude-composed-native":
      throw refuse(`${source.path}: native blocks need the sessions file too`);
    default:
      return unreachable(format, "trace format");
  }
}

async function openNative(
  path: string,
  file: string,
  found: Detected,
  sessionsPath: string,
  name: string | undefined,
): Promise<Trace> {
  if (found.format !== "mooncake")
    throw refuse(`${file}: only a composed trace has sessions that it was made from`);
  const sessions = await detect(await fileOf(sessionsPath));
  if (sessions.format !== "claude-sessions" && sessions.format !== "claude-sessions-runs")
    throw refuse(`${sessionsPath}: holds no sessions: give claude_code_sessions.runs.jsonl.gz`);
  const sessionsCoding: SessionCoding = sessions.format;
  const { blockTokens } = sessions;
  return {
    name: name ?? nameOf(file, "mooncake").replace(/_?\d*$/, `_${blockTokens}`),
    path,
    format: "claude-composed-native",
    blockTokens,
    requests: () =>
      composedNativeRequests({
        path: file,
        composedBlockTokens: found.blockTokens,
        blockTokens,
        sessionsPath,
        sessionsCoding,
      }),
  };
}

async function fileOf(path: string): Promise<string> {
  const entry = await stat(path).catch((thrown: unknown) => {
    throw refuse(`${path}: cannot be opened: ${messageOf(thrown)}`, thrown);
  });
  if (!entry.isDirectory()) return path;
  const file = await findJsonl(path, RAGPULSE_TRACE_FILE);
  if (file !== null) return file;
  throw refuse(`${path}: is a folder without ${RAGPULSE_TRACE_FILE}.jsonl.gz: give a trace file`);
}

async function detect(file: string): Promise<Detected> {
  for await (const { number, text } of readLines(file)) {
    const found = atLine(file, number, () => detectFormat(text));
    if (found !== null) return found;
  }
  throw refuse(`${file}: has no request`);
}

function chooseBlockTokens(file: string, found: Detected, wanted: number | undefined): number {
  if (wanted === undefined || wanted === found.blockTokens) return found.blockTokens;
  if (found.fixed)
    throw refuse(`${file}: has blocks of ${found.blockTokens} tokens, not of ${wanted}`);
  if (!Number.isSafeInteger(wanted) || wanted < 1 || wanted > 2 ** 20)
    throw refuse(`${file}: cannot be cut into blocks of ${wanted} tokens`);
  return wanted;
}

/**
 * Returns the name of a trace. RAGPulse's file has the same name in every release, so the folder's
 * name is used.
 */
function nameOf(file: string, format: TraceFormat): string {
  if (format === "ragpulse") return basename(dirname(resolve(file)));
  return basename(file).replace(/(\.(gz|zst|jsonl|json|csv|runs))+$/, "");
}

interface Detected {
  readonly format: TraceFormat;
  readonly blockTokens: number;
  /** True if the file determines the block size, so that no option can override it. */
  readonly fixed: boolean;
}

/**
 * Detects the format from a line. Returns null if the line belongs to a known format but does not
 * determine its blocks (a Dynamo event without them); the next line may. Throws TRACE_INVALID for
 * an unknown format.
 */
function detectFormat(line: string): Detected | null {
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
      "this file has the lengths of prompt pieces, but has no requests: " +
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
    "unknown trace format: expected JSON lines of Mooncake, Claude Code sessions, RAGPulse or " +
      "Dynamo, or the CSV of Azure",
  );
}

/**
 * Opens the trace that the executable contains: the first 1,000 requests (177 s) of the Mooncake
 * arXiv release, with 19,686 uses of 512-token blocks. Source and licence: `data/README.md`.
 */
export function bundledTrace(): Promise<Trace> {
  return openTrace(path, { name: "mooncake_arxiv_first1000" });
}
