export * from "./event-log.ts";
export * from "./residency.ts";
