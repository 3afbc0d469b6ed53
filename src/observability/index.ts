export * from "./health.ts";
export * from "./logger.ts";
export * from "./metrics.ts";
export * from "./process-metrics.ts";
export * from "./process-watch.ts";
