export { parseSessionLine } from "./formats/claude-sessions.ts";
export { parsePieceLine, parseRagPulseLine } from "./formats/ragpulse.ts";
export { parseAzureLine, parseDynamoLine, parseMooncakeLine } from "./formats/row-formats.ts";
export { bundledTrace, type OpenTraceOptions, openTrace } from "./open.ts";
export {
  LIMITS as TRACE_LIMITS,
  type ParsedRequest,
  type Trace,
  type TraceFormat,
  type TraceRequest,
} from "./trace.ts";
