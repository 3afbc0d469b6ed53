export * from "./encoder.ts";
export * from "./model.ts";
export * from "./protocol.ts";
export * from "./token-pool.ts";
