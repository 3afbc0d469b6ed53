export {
  benchPolicy,
  POLICY_NAMES,
  type PolicyBenchOptions,
  type PolicyName,
  type PolicyRow,
} from "./policy-bench.ts";
