export * from "./bus-publisher.ts";
export * from "./engine-batches.ts";
export * from "./engine-rank.ts";
export * from "./published-sets.ts";
export * from "./residency-log.ts";
export * from "./snapshots.ts";
export * from "./stream-publisher.ts";
export * from "./zmq-publisher.ts";
