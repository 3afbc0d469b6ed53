/** Types of traces, and limits of trace files. */

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
  /** Name of the file without folder and extensions: `mooncake_conversation_0-40min`. */
  readonly name: string;
  /** Path of the file, as given to `openTrace`. */
  readonly path: string;
  readonly format: TraceFormat;
  /** Number of tokens in a full block. */
  readonly blockTokens: number;
  /**
   * Yields the requests in the order of the replay. Each call reads the file again and yields the
   * same block numbers. Throws TRACE_INVALID with file, line and the problem.
   */
  requests(): AsyncIterable<TraceRequest>;
}

export interface TraceRequest {
  /**
   * Milliseconds from the start of the trace. Does not decrease if the file is sorted, as all known
   * files are; RAGPulse and Dynamo files are sorted while reading.
   */
  readonly arrivalMs: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  /**
   * The prompt's blocks from first to last. Ids are numbers from 0 without gaps, in order of first
   * occurrence in the trace. An id identifies a block together with all blocks before it: the
   * readers check that each block has exactly one predecessor, so equal ids mean equal prefixes.
   * Read only.
   */
  readonly blocks: Uint32Array;
  /**
   * Number of tokens in the last block: `blockTokens` unless it is partial; 0 without blocks.
   */
  readonly lastBlockTokens: number;
  /** Id of the conversation, if the file names it. */
  readonly session: string | undefined;
  /** Index of the request in its session, from 0, if the file contains it. */
  readonly turn: number | undefined;
}

/** One request as its line states it: with the file's own block names and clock. */
export interface ParsedRequest {
  readonly atMs: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly blockTokens: number;
  /**
   * Names of the blocks (RAGPulse: of the prompt's pieces); empty if the file contains only
   * lengths.
   */
  readonly names: ArrayLike<number | bigint>;
  readonly session: string | undefined;
  readonly turn: number | undefined;
}

/** Limits far above every known trace, so that a hostile line takes at most 100 ms. */
export const LIMITS = {
  /** Maximum bytes of a line. The longest known session document has 4.2 million. */
  lineBytesMax: 8 * 2 ** 20,
  /**
   * Maximum number of values (numbers, strings, …), of strings (keys included), and of objects and
   * lists in a line.
   */
  line: { values: 2 ** 20, strings: 2 ** 16, containers: 2 ** 16 },
  /** Like `line`, for lines with 64-bit integers, whose parser checks every value and is slower. */
  losslessLine: { values: 3 * 2 ** 15, strings: 2 ** 12, containers: 2 ** 12 },
  /** Maximum number of blocks in one prompt: two million tokens of 16-token blocks. */
  requestBlocksMax: 2 ** 17,
  /** Maximum number of blocks in all calls of one session document. */
  sessionBlocksMax: 2 ** 23,
  /** Maximum number of distinct blocks of one trace, for traces that list block hashes. */
  distinctBlocksMax: 2 ** 24,
  /** Maximum number of distinct pieces of prompts in a RAGPulse release. */
  piecesMax: 2 ** 22,
  /**
   * Maximum number of requests, and of blocks or pieces in them, that are kept in memory for
   * formats that must be sorted.
   */
  heldRequestsMax: 2 ** 20,
  heldNamesMax: 2 ** 24,
} as const;
