export {
  bundledTrace,
  LINE_FORMATS,
  type LineFormat,
  type OpenTraceOptions,
  openTrace,
  parseTraceLine,
} from "./open.ts";
export {
  LIMITS as TRACE_LIMITS,
  type ParsedRequest,
  type Trace,
  type TraceRequest,
} from "./trace.ts";
