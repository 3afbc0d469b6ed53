export type { EvictionPolicy, Placement } from "./eviction-policy.ts";
export { lru } from "./lru.ts";
