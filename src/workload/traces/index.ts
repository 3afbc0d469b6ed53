export { bundledTrace } from "./bundled.ts";
export { type OpenTraceOptions, openTrace } from "./open.ts";
export { LINE_FORMATS, type LineFormat, parseTraceLine } from "./parse.ts";
export {
  LIMITS as TRACE_LIMITS,
  type ParsedRequest,
  TRACE_FORMATS,
  type Trace,
  type TraceFormat,
  type TraceRequest,
} from "./trace.ts";
