export { Agent, type AgentParts, type AgentState } from "./agent.ts";
export { operatorActions } from "./agent-api.ts";
export { type PlaceOptions, placeArena, readNamespaceKeys, watchArena } from "./agent-resources.ts";
export {
  ControlBus,
  type ControlBusParts,
  ControlService,
  type ControlServiceParts,
} from "./control-service.ts";
export { hostProblems, routerProblems } from "./host-problems.ts";
export { activeDevices } from "./peer-transports.ts";
export { PeerReporter, type PeerReporterParts } from "./peers-service.ts";
export { createServiceManager, type ServiceManager, STOP_MS_MAX } from "./process.ts";
export {
  type CommanderOptions,
  createCommander,
  PROXY_DRAIN_MS,
  proxyModels,
  proxySettings,
  RouterService,
  type RouterServiceParts,
  type RunRouterOptions,
  readRouterConfig,
  runRouter,
  startRouterHttp,
} from "./router/index.ts";
export { type RunAgentOptions, readConfig, runAgent } from "./run-agent.ts";
export { type FolderIdentity, folderIdentity, replacementReason } from "./ssd-service.ts";
