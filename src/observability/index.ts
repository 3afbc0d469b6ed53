export {
  API_REFUSALS,
  type ApiRefusal,
  type LookupOutcome,
  type LookupTier,
  METRICS,
  METRICS_OF,
  type MetricName,
  type MetricSpec,
  renderHealthReference,
  renderMetricsReference,
  type TierName,
} from "./catalogue.ts";
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
export type { DevicesSnapshot } from "./device-metrics.ts";
export {
  createFrameCounts,
  FRAME_OPERATIONS,
  FRAME_STATUSES,
  type FrameCounts,
} from "./engine-metrics.ts";
export {
  createHealth,
  HEALTH_CODE_NAMES,
  HEALTH_CODES,
  Health,
  type HealthCode,
  type HealthCodeSpec,
  type HealthCount,
  type HealthOptions,
  type HealthProblem,
  type RaiseOptions,
} from "./health.ts";
export {
  createLogger,
  LOG_LEVELS,
  type LogFields,
  type LogFormat,
  type Logger,
  type LoggerOptions,
  type LogLevel,
} from "./logger.ts";
export { createMetrics, type Metrics, type MetricsOptions } from "./metrics.ts";
export {
  BREAKER_STATES,
  PEER_STATES,
  type PeersSnapshot,
  PULL_OUTCOME_LABELS,
  SERVED_OUTCOMES,
  TRANSPORT_LABELS,
  type TransportLabel,
} from "./peer-metrics.ts";
export {
  type DescriptorUse,
  descriptorUse,
  isShortOfDescriptors,
  type LoopLag,
  raiseDescriptorLimit,
  watchDescriptors,
  watchLoopLag,
} from "./process-watch.ts";
export type { PublisherSnapshot } from "./publisher-metrics.ts";
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
