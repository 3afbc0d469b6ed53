export * from "./announcement.ts";
export * from "./block-locator.ts";
export * from "./known-peers.ts";
export * from "./summaries.ts";
