export { type CommanderOptions, createCommander } from "./commander.ts";
export { tellPolicies } from "./proxy-marks.ts";
export { proxyModels, proxySettings } from "./proxy-settings.ts";
export { type RouterHttp, startRouterHttp } from "./router-http.ts";
export { RouterService, type RouterServiceParts } from "./router-service.ts";
export { type RunRouterOptions, readRouterConfig, runRouter } from "./run-router.ts";
