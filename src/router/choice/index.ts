export { Affinity } from "./affinity.ts";
export {
  type CostRules,
  costOf,
  costsOf,
  uncachedTokens,
  withOverlapWeight,
} from "./cost.ts";
export { type CostInput, CostInputs, emptyInput } from "./cost-inputs.ts";
export { HeldTokens } from "./held-tokens.ts";
export { type Picked, pickLowest, pickSoftmax, sharedByLowest, softmax } from "./pick.ts";
export {
  DECODE_ROLES,
  PREFILL_ROLES,
  type Selection,
  Selector,
  type Wish,
  wishOf,
} from "./selection.ts";
export { Thresholds } from "./thresholds.ts";
export { type Waiting, WaitQueue } from "./wait-queue.ts";
