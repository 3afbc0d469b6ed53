/** Formats of trace files. */

export const TRACE_FORMATS = [
  "mooncake",
  "claude-sessions",
  "claude-sessions-runs",
  "claude-composed-native",
  "ragpulse",
  "dynamo",
  "azure",
] as const;

export type TraceFormat = (typeof TRACE_FORMATS)[number];

export interface Trace {
  /** The file's name without folder and endings: `mooncake_conversation_0-40min`. */
  readonly name: string;
  /** The path as given. */
  readonly path: string;
  readonly format: TraceFormat;
  /** Tokens in a full block. */
  readonly blockTokens: number;
  /**
   * The requests in replay order. Each call reads the file anew and yields the same numbers. Throws
   * TRACE_INVALID with file, line and the problem.
   */
  requests(): AsyncIterable<TraceRequest>;
}

export interface TraceRequest {
  /**
   * Milliseconds from the start of the trace. Not decreasing where the source is sorted, as every
   * file known to us is; RAGPulse and Dynamo files are sorted here.
   */
  readonly arrivalMs: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  /**
   * The prompt's blocks from first to last. Ids are dense (0, 1, 2 … in order of first sight over
   * the whole trace), and an id names a block together with everything before it: each has exactly
   * one predecessor, which the readers check, so equal ids imply equal prefixes. Read only.
   */
  readonly blocks: Uint32Array;
  /** Tokens in the last block: `blockTokens` unless it is part full, 0 where there is no block. */
  readonly lastBlockTokens: number;
  /** The conversation, if the source names it. */
  readonly session: string | undefined;
  /** Number of the request in its session, from 0, if the source has it. */
  readonly turn: number | undefined;
}

/**
 * One request as its line has it: blocks under the file's own names, time on the file's own clock.
 */
export interface ParsedRequest {
  readonly atMs: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly blockTokens: number;
  /**
   * Names of the blocks (RAGPulse: of the prompt pieces); empty where the source has lengths only.
   */
  readonly names: ArrayLike<number | bigint>;
  readonly session: string | undefined;
  readonly turn: number | undefined;
}

/** Limits far above every known trace, so that a hostile line costs at most 100 ms. */
export const LIMITS = {
  /** Longest line read, in bytes; the longest session document known has 4.2 million. */
  lineBytesMax: 8 * 2 ** 20,
  /** Most values (numbers, strings, …), strings (keys included), objects and lists in a line. */
  line: { values: 2 ** 20, strings: 2 ** 16, containers: 2 ** 16 },
  /** The same where 64-bit integers must survive: that parser looks at every value. */
  losslessLine: { values: 3 * 2 ** 15, strings: 2 ** 12, containers: 2 ** 12 },
  /** Most blocks in one prompt: two million tokens of 16-token blocks. */
  requestBlocksMax: 2 ** 17,
  /** Most blocks in all calls of one session document. */
  sessionBlocksMax: 2 ** 23,
  /** Distinct blocks of one trace, at most. Applies to traces that list block hashes. */
  distinctBlocksMax: 2 ** 24,
  /** Most distinct pieces of prompts in a RAGPulse release. */
  piecesMax: 2 ** 22,
  /** Most requests, and blocks or pieces in them, kept in memory by formats that must be sorted. */
  heldRequestsMax: 2 ** 20,
  heldNamesMax: 2 ** 24,
} as const;
