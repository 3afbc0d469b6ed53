export {
  type ClusterReplayOptions,
  type ClusterSummary,
  type Dispatcher,
  type RoutedPrompt,
  replayCluster,
  traceHashes,
} from "./cluster.ts";
export { makeFolder } from "./own-process.ts";
export {
  type AgentStatus,
  agentConfigText,
  PrivateAgent,
  type PrivateAgentOptions,
} from "./private-agent.ts";
export { PrivateBroker } from "./private-broker.ts";
export { PrivateRouter, type PrivateRouterOptions, routerConfigText } from "./private-router.ts";
export { type ReplayOptions, replay, replayManifest } from "./replay.ts";
export { formatSummary, PREFILL_TOKENS_PER_S } from "./summary-table.ts";
export { type ReplaySummary, ReplayTally, summarise } from "./tally.ts";
