export type * from "./active-load.ts";
export type * from "./commander.ts";
export type * from "./prefix-index.ts";
export type * from "./route.ts";
export * from "./settings.ts";
export type * from "./workers.ts";
