export {
  type CostInput,
  CostInputs,
  type CostRules,
  costOf,
  costsOf,
  emptyInput,
  HeldTokens,
  uncachedTokens,
  withOverlapWeight,
} from "./cost.ts";
export { Affinity, pickLowest, pickSoftmax, sharedByLowest, softmax } from "./pick.ts";
export { createPromptHasher, type PromptHasher, tokenSalt } from "./prompt.ts";
export { createRouter, prefillId, type RouterParts } from "./router.ts";
export {
  constraintsOf,
  DECODE_ROLES,
  type RouteConstraints,
  type Selection,
  Selector,
  Thresholds,
} from "./selection.ts";
export { type Waiting, WaitQueue } from "./wait-queue.ts";
