export {
  benchRoute,
  ROUTE_POLICIES,
  type RouteBenchOptions,
  type RoutePolicy,
  type RouteRow,
} from "./route-bench.ts";
