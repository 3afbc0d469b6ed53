export { createHearthOrder } from "./hearth-order.ts";
export { createLruOrder } from "./lru-order.ts";
export type { CreateOrder, OrderView, VictimOrder } from "./victim-order.ts";
