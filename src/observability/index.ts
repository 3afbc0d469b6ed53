export {
  FRAME_OPERATIONS,
  FRAME_STATUSES,
  type LookupOutcome,
  METRICS,
  type MetricName,
  type MetricSpec,
  type TierName,
} from "./catalogue.ts";
export { createFrameCounts, type FrameCounts } from "./frame-counts.ts";
export {
  createLogger,
  LOG_LEVELS,
  type LogFields,
  type LogFormat,
  type Logger,
  type LoggerOptions,
  type LogLevel,
} from "./logger.ts";
export { type LoopLag, watchLoopLag } from "./loop-lag.ts";
export { createMetrics, type Metrics, type MetricsOptions } from "./metrics.ts";
export { renderMetricsReference } from "./reference.ts";
export type { EngineSnapshot, FrameCount, ProcessSnapshot, StoreSnapshot } from "./snapshots.ts";
