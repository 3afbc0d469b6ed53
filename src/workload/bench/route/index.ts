export { LeafLru } from "./leaf-lru.ts";
export {
  benchRoute,
  ROUTE_POLICIES,
  type RouteBenchOptions,
  type RoutePolicy,
  type RouteRow,
} from "./route-bench.ts";
export { SimulatedClock } from "./simulated-clock.ts";
