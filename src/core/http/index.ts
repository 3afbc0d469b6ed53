export { BodyBudget, type BodyShare } from "./body-budget.ts";
export { type BodyLimits, type BodyRefusal, readBody } from "./read-body.ts";
