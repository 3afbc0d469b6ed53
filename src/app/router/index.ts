export { type CommanderOptions, createCommander } from "./commander.ts";
export { RouterService, type RouterServiceParts } from "./router-service.ts";
export { type RunRouterOptions, readRouterConfig, runRouter } from "./run-router.ts";
