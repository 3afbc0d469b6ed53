export { errorBody, type ProxyError } from "./answers.ts";
export {
  type ChatRequest,
  chatOfMessages,
  chatOfResponses,
  exactFields,
  type Fields,
} from "./chat-request.ts";
export {
  PROXY_OUTCOMES,
  type ProxyOutcome,
  type ProxySnapshot,
  type TokenDifference,
} from "./counts.ts";
export { type ErrorShape, FORWARDED_PATHS, shapeOf } from "./endpoint.ts";
export { checkModels } from "./models.ts";
export type * from "./observer.ts";
export { type OpenAiProxy, openProxy, type ProxyCaller, type ProxyOptions } from "./proxy.ts";
export {
  type EngineKind,
  PROXY_DEFAULTS,
  PROXY_MODEL_DEFAULTS,
  type ProxyModel,
  type ProxySettings,
} from "./settings.ts";
export { DownWorkers, type EventSource, eventSources, REQUESTS_MAX } from "./worker-health.ts";
export { EventCutter, OutputCount } from "./worker-output.ts";
