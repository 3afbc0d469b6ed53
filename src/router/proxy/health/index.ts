export { DownWorkers, REQUESTS_MAX } from "./down-workers.ts";
export { type EventSource, eventSources } from "./event-sources.ts";
export { WorkerHealth, type WorkerHealthOptions } from "./worker-health.ts";
