export { WorkerHealth, type WorkerHealthOptions } from "./worker-health.ts";
