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
  TRACE_FORMATS,
  type Trace,
  type TraceFormat,
  type TraceRequest,
} from "./trace.ts";
