export {
  BodyBudget,
  type BodyLimits,
  type BodyRefusal,
  type BodyShare,
  readBody,
} from "./read-body.ts";
