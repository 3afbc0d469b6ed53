export { Agent, type AgentParts, type AgentState } from "./agent.ts";
export { type PlaceOptions, placeArena } from "./arena-places.ts";
export { watchArena } from "./arena-watch.ts";
export { ControlBus, type ControlBusParts } from "./control-bus.ts";
export { ControlRoom, type ControlRoomParts } from "./control-room.ts";
export { type FolderMark, folderMark, whyReplaced } from "./folder-mark.ts";
export { hostProblems, routerProblems } from "./host-problems.ts";
export { readNamespaceKeys } from "./namespace-keys.ts";
export { operatorWork } from "./operator-work.ts";
export { PeerNews, type PeerNewsParts } from "./peer-news.ts";
export { PeerSource } from "./peer-source.ts";
export { devicesInUse } from "./rdma-options.ts";
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
export { createServiceManager, type ServiceManager } from "./service-manager.ts";
export { STOP_MS_MAX } from "./stop-times.ts";
