export { type CommanderOptions, createCommander } from "./policies-service.ts";
export {
  createPolicyObserver,
  PROXY_DRAIN_MS,
  proxyModels,
  proxySettings,
} from "./proxy-service.ts";
export { RouterService, type RouterServiceParts } from "./router-service.ts";
export {
  type RunRouterOptions,
  readRouterConfig,
  runRouter,
  startRouterHttp,
} from "./run-router.ts";
