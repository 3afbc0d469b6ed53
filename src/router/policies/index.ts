export * from "./command-queue.ts";
export * from "./policies.ts";
export * from "./prompt-chain.ts";
export * from "./session-table.ts";
export * from "./settings.ts";
