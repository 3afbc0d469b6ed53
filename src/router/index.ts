export type * from "./active-load.ts";
export type * from "./commander.ts";
export { ReferenceIndex } from "./index/index.ts";
export { type ActiveLoadOptions, createActiveLoad } from "./load/index.ts";
export type * from "./prefix-index.ts";
export type * from "./route.ts";
export * from "./settings.ts";
export { createWorkerTable, type WorkerTableOptions } from "./table/index.ts";
export type * from "./workers.ts";
