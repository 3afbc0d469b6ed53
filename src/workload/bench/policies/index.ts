export {
  benchPolicies,
  type PoliciesBench,
  type PoliciesBenchOptions,
  type PoliciesRow,
} from "./policies-bench.ts";
