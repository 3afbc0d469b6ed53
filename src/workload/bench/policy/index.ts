export { createLists, type Lists } from "./lists.ts";
export {
  benchPolicy,
  POLICY_NAMES,
  type PolicyBenchOptions,
  type PolicyName,
  type PolicyRow,
} from "./policy-bench.ts";
