export { type AgentStatus, PrivateAgent, type PrivateAgentOptions } from "./private-agent.ts";
export { type ReplayOptions, replay, replayManifest } from "./replay.ts";
export { formatSummary, PREFILL_TOKENS_PER_S } from "./summary-table.ts";
export { type ReplaySummary, ReplayTally, summarise } from "./tally.ts";
