import { stat } from "node:fs/promises";
import { basename, dirname, resolve } from "node:path";
import { messageOf, unreachable } from "../../core/index.ts";
import { type Detected, detectFormat } from "./detect.ts";
import { atLine, refuse } from "./fields.ts";
import { azureRequests } from "./formats/azure.ts";
import { type SessionCoding, sessionRequests } from "./formats/claude-sessions.ts";
import { composedNativeRequests } from "./formats/composed-native.ts";
import { dynamoRequests } from "./formats/dynamo.ts";
import { mooncakeRequests } from "./formats/mooncake.ts";
import { ragPulseRequests } from "./formats/ragpulse.ts";
import { findJsonl, RAGPULSE_TRACE_FILE } from "./formats/ragpulse-pieces.ts";
import type { Source } from "./formats/reader.ts";
import { readLines } from "./lines.ts";
import type { Trace, TraceFormat, TraceRequest } from "./trace.ts";

export interface OpenTraceOptions {
  /**
   * Tokens in a block where the file leaves it open: Mooncake lines without `block_size` (512
   * unless told), RAGPulse (16), Azure (512).
   */
  readonly blockTokens?: number;
  /**
   * For the composed Claude Code trace only: path of the sessions file it was made from. The trace
   * then has the sessions' own 64-token blocks instead of the composed file's.
   */
  readonly nativeBlocks?: string;
  /** Name of the trace; the file's unless told. */
  readonly name?: string;
}

/**
 * Opens a trace: plain, gzip or Zstandard, its format told by its content. A folder stands for the
 * RAGPulse release in it. Throws TRACE_INVALID with the file, the line and what is wrong.
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

/** RAGPulse's file is called the same in every release; its folder says which. */
function nameOf(file: string, format: TraceFormat): string {
  if (format === "ragpulse") return basename(dirname(resolve(file)));
  return basename(file).replace(/(\.(gz|zst|jsonl|json|csv|runs))+$/, "");
}
