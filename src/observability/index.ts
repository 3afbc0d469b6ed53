export {
  API_REFUSALS,
  type ApiRefusal,
  type LookupOutcome,
  type LookupTier,
  METRICS,
  METRICS_OF,
  type MetricName,
  type MetricSpec,
  type TierName,
} from "./catalogue.ts";
export { FRAME_OPERATIONS, FRAME_STATUSES } from "./catalogue-engine.ts";
export {
  BREAKER_STATES,
  PEER_STATES,
  PULL_OUTCOME_LABELS,
  SERVED_OUTCOMES,
  TRANSPORT_LABELS,
  type TransportLabel,
} from "./catalogue-peers.ts";
export {
  DECIDED_BY,
  type DecidedByLabel,
  END_REASONS,
  ENGINE_BLOCKS,
  type EndReasonLabel,
  FILTER_REASONS,
  type FilterReasonLabel,
  ROUTE_OUTCOMES,
  type RouteOutcomeLabel,
} from "./catalogue-router.ts";
export {
  type DescriptorUse,
  descriptorUse,
  isShortOfDescriptors,
  raiseDescriptorLimit,
  watchDescriptors,
} from "./descriptors.ts";
export { createFrameCounts, type FrameCounts } from "./frame-counts.ts";
export {
  createHealth,
  type Health,
  type HealthCount,
  type HealthOptions,
  type HealthProblem,
  type RaiseOptions,
} from "./health.ts";
export {
  HEALTH_CODE_NAMES,
  HEALTH_CODES,
  type HealthCode,
  type HealthCodeSpec,
} from "./health-codes.ts";
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
export type { PeersSnapshot } from "./peer-snapshot.ts";
export { renderHealthReference, renderMetricsReference } from "./reference.ts";
export type { MetricRegistry } from "./registry.ts";
export {
  createRouterMetrics,
  type RoutedTokens,
  type RouterMetrics,
  type RouterMetricsOptions,
  type RouterSnapshot,
} from "./router-metrics.ts";
export type {
  ControlSnapshot,
  EngineSnapshot,
  FrameCount,
  ProcessSnapshot,
  StoreSnapshot,
} from "./snapshots.ts";
export type { DevicesSnapshot } from "./write-devices.ts";
export type { FeedSnapshot } from "./write-feed.ts";
