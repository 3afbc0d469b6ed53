export { type EventSource, eventSources } from "./event-sources.ts";
export { WorkerHealth, type WorkerHealthOptions } from "./worker-health.ts";
