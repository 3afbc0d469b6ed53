export {
  type ClusterSummary,
  type Dispatcher,
  type RoutedPrompt,
  replayCluster,
} from "./cluster.ts";
export {
  type AgentStatus,
  agentConfigText,
  type Carrier,
  makeFolder,
  PrivateAgent,
  type PrivateAgentOptions,
  PrivateBroker,
  PrivateRouter,
  routerConfigText,
} from "./private-agent.ts";
export {
  formatSummary,
  PREFILL_TOKENS_PER_S,
  type ReplayOptions,
  type ReplaySummary,
  ReplayTally,
  replay,
  replayManifest,
  summarise,
} from "./replay.ts";
