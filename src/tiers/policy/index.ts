export type { EvictionPolicy, Placement } from "./eviction-policy.ts";
export { createHearthOrder } from "./hearth-order.ts";
export { lru } from "./lru.ts";
export { createLruOrder } from "./lru-order.ts";
export type { CreateOrder, OrderView, VictimOrder } from "./victim-order.ts";
