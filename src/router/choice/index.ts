export { Affinity } from "./affinity.ts";
export {
  type CostInput,
  type CostRules,
  costOf,
  uncachedTokens,
  withOverlapWeight,
} from "./cost.ts";
export { HeldTokens } from "./held-tokens.ts";
export { type Picked, pickLowest, pickSoftmax, sharedByLowest, softmax } from "./pick.ts";
export {
  DECODE_ROLES,
  PREFILL_ROLES,
  type Selection,
  select,
  type Wish,
  wishOf,
} from "./selection.ts";
export { Thresholds } from "./thresholds.ts";
export { type Waiting, WaitQueue } from "./wait-queue.ts";
