export { Agent, type AgentParts, type AgentState } from "./agent.ts";
export { operatorWork } from "./agent-api.ts";
export { type PlaceOptions, placeArena, readNamespaceKeys, watchArena } from "./agent-resources.ts";
export {
  ControlBus,
  type ControlBusParts,
  ControlRoom,
  type ControlRoomParts,
} from "./control-service.ts";
export { hostProblems, routerProblems } from "./host-problems.ts";
export { PeerSource } from "./peer-source.ts";
export { devicesInUse } from "./peer-transports.ts";
export { PeerNews, type PeerNewsParts } from "./peers-service.ts";
export { createServiceManager, type ServiceManager, STOP_MS_MAX } from "./process.ts";
export {
  type CommanderOptions,
  createCommander,
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
export { type FolderMark, folderMark, whyReplaced } from "./ssd-service.ts";
