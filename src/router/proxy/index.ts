export { errorBody, type ProxyError } from "./answers.ts";
export { PROXY_OUTCOMES, type ProxyOutcome, type ProxySnapshot } from "./counts.ts";
export { ASK_PATHS, type ErrorShape, shapeOf } from "./endpoint.ts";
export { type EventSource, eventSources } from "./health/index.ts";
export type * from "./observer.ts";
export { type OpenAiProxy, openProxy, type ProxyCaller, type ProxyOptions } from "./proxy.ts";
export {
  type EngineKind,
  PROXY_DEFAULTS,
  PROXY_MODEL_DEFAULTS,
  type ProxyModel,
  type ProxySettings,
} from "./settings.ts";
export type { TokenDifference } from "./token-check.ts";
export { checkModels } from "./token-models.ts";
