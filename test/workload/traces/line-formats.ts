import {
  type ParsedRequest,
  parseAzureLine,
  parseDynamoLine,
  parseMooncakeLine,
  parsePieceLine,
  parseRagPulseLine,
  parseSessionLine,
  type TraceFormat,
} from "../../../src/workload/traces/index.ts";

type Parse = (text: string) => readonly ParsedRequest[];

const one =
  (parse: (text: string) => ParsedRequest | null): Parse =>
  (text) => {
    const parsed = parse(text);
    return parsed === null ? [] : [parsed];
  };

/** Kinds of lines: one for each format with lines of its own, and RAGPulse's companion files. */
const PARSERS = {
  mooncake: one((text) => parseMooncakeLine(text)),
  "claude-sessions": (text) => parseSessionLine(text, "claude-sessions").calls,
  "claude-sessions-runs": (text) => parseSessionLine(text, "claude-sessions-runs").calls,
  ragpulse: one((text) => parseRagPulseLine(text)),
  "ragpulse-pieces": (text) => {
    parsePieceLine(text);
    return [];
  },
  dynamo: one(parseDynamoLine),
  azure: one((text) => parseAzureLine(text)),
} satisfies Record<Exclude<TraceFormat, "claude-composed-native"> | "ragpulse-pieces", Parse>;

export type LineFormat = keyof typeof PARSERS;

export const LINE_FORMATS = Object.keys(PARSERS) as readonly LineFormat[];

/**
 * The requests in one line of a file of `format`: none for headers, events and prompt pieces.
 * Throws TRACE_INVALID, without a place, if the line is malformed.
 */
export function parseTraceLine(format: LineFormat, text: string): readonly ParsedRequest[] {
  return PARSERS[format](text);
}
