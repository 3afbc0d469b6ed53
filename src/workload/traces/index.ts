export { bundledTrace, type OpenTraceOptions, openTrace } from "./open.ts";
export {
  LIMITS as TRACE_LIMITS,
  type ParsedRequest,
  type Trace,
  type TraceFormat,
  type TraceRequest,
} from "./trace.ts";
