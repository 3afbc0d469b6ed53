export { eventEndpoints } from "./event-sources.ts";
export { WorkerHealth, type WorkerHealthOptions } from "./worker-health.ts";
