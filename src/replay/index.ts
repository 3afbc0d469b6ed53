export { MockEngine, type MockEngineOptions } from "./mock-engine.ts";
export { type AgentStatus, PrivateAgent, type PrivateAgentOptions } from "./private-agent.ts";
export { PrivateBroker } from "./private-broker.ts";
export { PrivateRouter, type PrivateRouterOptions } from "./private-router.ts";
export { type ReplayOptions, replay, replayManifest } from "./replay.ts";
export { formatSummary, PREFILL_TOKENS_PER_S } from "./summary-table.ts";
export { type ReplaySummary, ReplayTally, summarise } from "./tally.ts";
