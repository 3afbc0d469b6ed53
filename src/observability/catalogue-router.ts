import type { MetricSpec } from "./catalogue.ts";

/** How a question to the router ends. */
export const ROUTE_OUTCOMES = ["routed", "none", "busy", "unknown_worker", "aborted"] as const;
export type RouteOutcomeLabel = (typeof ROUTE_OUTCOMES)[number];

/** What decided. */
export const DECIDED_BY = [
  "lowest_cost",
  "tie_draw",
  "softmax",
  "affinity",
  "direct",
  "round_robin",
  "random",
  "least_loaded",
  "only_one",
  "none",
] as const;
export type DecidedByLabel = (typeof DECIDED_BY)[number];

/** Why a worker was no candidate. */
export const FILTER_REASONS = [
  "other_model",
  "other_role",
  "stale",
  "draining",
  "not_allowed",
  "excluded",
  "busy_blocks",
  "busy_prefill",
] as const;
export type FilterReasonLabel = (typeof FILTER_REASONS)[number];

export const ROUTER_TIERS = ["device", "host", "disk"] as const;
export const WORKER_STATES = ["live", "stale", "draining"] as const;
export const END_REASONS = ["free", "expired", "worker_left"] as const;
export type EndReasonLabel = (typeof END_REASONS)[number];

/** What happened to messages about what workers hold. */
export const INTAKE_EVENTS = [
  "batch",
  "change",
  "heartbeat",
  "duplicate",
  "early",
  "stale",
  "unannounced",
  "refused",
  "overfull",
  "pending_dropped",
] as const;

/** What was done to keep the picture right. */
export const RESYNCS = [
  "gap",
  "incarnation",
  "range",
  "picture",
  "picture_failed",
  "mismatch",
  "doubt",
] as const;

/** What passed between this router and its replicas. */
export const REPLICA_NEWS = [
  "sent",
  "received",
  "dropped",
  "refused",
  "list",
  "orphan_ended",
  "unknown_worker",
  "picture_given",
  "picture_taken",
] as const;
/** What engines that are followed without an agent said of blocks. */
export const ENGINE_BLOCKS = ["stored", "reannounced", "removed"] as const;
export const ENGINE_RESYNCS = ["gap", "replay", "restart", "lost_batch"] as const;
export const LOCATE_OUTCOMES = ["answered", "refused", "dropped"] as const;
export const SAVE_OUTCOMES = ["saved", "failed"] as const;

/** Seconds: a decision takes tens of microseconds, one that waits for a worker seconds. */
const DECISION_BUCKETS = [
  2e-5, 5e-5, 1e-4, 1.5e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 1e-2, 0.1, 1, 10,
] as const;

/** Metrics of routers. */
export const ROUTER_METRICS = {
  routerHitRatio: {
    name: "cgn_router_cache_hit_ratio",
    type: "gauge",
    help: "Share of the prompt tokens of the last five minutes that the chosen worker had",
    labels: {},
  },
  routerOutcomes: {
    name: "hearth_router_requests_total",
    type: "counter",
    help: "Requests for a worker, by how they ended",
    labels: { outcome: ROUTE_OUTCOMES },
  },
  routerDecisions: {
    name: "hearth_router_decisions_total",
    type: "counter",
    help: "Decisions with a request id, by what decided",
    labels: { by: DECIDED_BY },
  },
  routerSeconds: {
    name: "hearth_router_decision_seconds",
    type: "histogram",
    help: "Time from a request for a worker to the answer, waits in the queue among it",
    labels: {},
    buckets: DECISION_BUCKETS,
  },
  routerFiltered: {
    name: "hearth_router_filtered_total",
    type: "counter",
    help: "Workers that were no candidates of a decision, by why",
    labels: { reason: FILTER_REASONS },
  },
  routerPromptTokens: {
    name: "hearth_router_prompt_tokens_total",
    type: "counter",
    help: "Prompt tokens that were routed with a request id",
    labels: {},
  },
  routerCachedTokens: {
    name: "hearth_router_cached_tokens_total",
    type: "counter",
    help: "Of them, those that the chosen worker had, by tier",
    labels: { tier: ROUTER_TIERS },
  },
  routerWaiting: {
    name: "hearth_router_waiting_requests",
    type: "gauge",
    help: "Requests that wait because all workers are busy",
    labels: {},
  },
  routerActive: {
    name: "hearth_router_active_requests",
    type: "gauge",
    help: "Requests that were routed and are not freed",
    labels: {},
  },
  routerEnded: {
    name: "hearth_router_ended_total",
    type: "counter",
    help: "Requests that ended, by why: freed, nothing heard of, worker gone",
    labels: { why: END_REASONS },
  },
  routerWorkers: {
    name: "hearth_router_workers",
    type: "gauge",
    help: "Workers, each data parallel rank for itself, by state",
    labels: { state: WORKER_STATES },
  },
  routerKnown: {
    name: "hearth_router_workers_known",
    type: "gauge",
    help: "Workers of which it is known what they hold",
    labels: {},
  },
  routerWorkerKnown: {
    name: "hearth_router_worker_known",
    type: "gauge",
    help: "Whether all that the worker holds is known",
    labels: { worker: [], rank: [] },
  },
  routerWorkerBlocks: {
    name: "hearth_router_worker_blocks",
    type: "gauge",
    help: "Blocks that the worker is known to hold, by tier",
    labels: { worker: [], rank: [], tier: ROUTER_TIERS },
  },
  routerWorkerReached: {
    name: "hearth_router_worker_reached",
    type: "gauge",
    help: "Whether the worker's API has answered since it is known, of workers with a url",
    labels: { worker: [] },
  },
  routerEngineReached: {
    name: "hearth_router_engine_reached",
    type: "gauge",
    help: "Whether the KV events of the worker's engine can be heard, of workers without an agent",
    labels: { worker: [], rank: [] },
  },
  routerEngineBlockTokens: {
    name: "hearth_router_engine_block_tokens",
    type: "gauge",
    help: "Tokens in a block of the worker's engine, as its events and the configuration say",
    labels: { worker: [], rank: [], source: ["engine", "configured"] },
  },
  routerEngineEvents: {
    name: "hearth_router_engine_events_total",
    type: "counter",
    help: "KV events that were read from the worker's engine",
    labels: { worker: [], rank: [] },
  },
  routerEngineBlocks: {
    name: "hearth_router_engine_blocks_total",
    type: "counter",
    help: "Blocks in events of the worker's engine that were applied",
    labels: { worker: [], rank: [], kind: ENGINE_BLOCKS },
  },
  routerEngineDropped: {
    name: "hearth_router_engine_dropped_total",
    type: "counter",
    help: "Events of the worker's engine that were left out, of removals blocks, by reason",
    labels: { worker: [], rank: [], reason: [] },
  },
  routerEngineResyncs: {
    name: "hearth_router_engine_resyncs_total",
    type: "counter",
    help: "Holes in the events of the worker's engine, replays, restarts, and batches lost",
    labels: { worker: [], rank: [], kind: ENGINE_RESYNCS },
  },
  routerIndexBlocks: {
    name: "hearth_router_index_blocks",
    type: "gauge",
    help: "Different blocks that workers hold",
    labels: {},
  },
  routerIndexHeld: {
    name: "hearth_router_index_held_blocks",
    type: "gauge",
    help: "Blocks counted once for each worker and tier that has them",
    labels: {},
  },
  routerIndexBytes: {
    name: "hearth_router_index_bytes",
    type: "gauge",
    help: "Memory of the picture of who holds what",
    labels: {},
  },
  routerForgotten: {
    name: "hearth_router_index_forgotten_total",
    type: "counter",
    help: "Blocks forgotten for want of room in the picture",
    labels: {},
  },
  routerEvents: {
    name: "hearth_router_events_total",
    type: "counter",
    help: "Messages about what workers hold, and the changes in them, by what they were",
    labels: { kind: INTAKE_EVENTS },
  },
  routerResyncs: {
    name: "hearth_router_resyncs_total",
    type: "counter",
    help: "Times the picture of a worker was found wanting, and asked for again",
    labels: { kind: RESYNCS },
  },
  routerReplicas: {
    name: "hearth_router_replicas",
    type: "gauge",
    help: "Other routers of the cluster that are heard",
    labels: {},
  },
  routerReplicaNews: {
    name: "hearth_router_replica_news_total",
    type: "counter",
    help: "Messages between this router and its replicas, and what was done about them",
    labels: { kind: REPLICA_NEWS },
  },
  routerLocate: {
    name: "hearth_router_locate_total",
    type: "counter",
    help: "Questions of hosts about who has blocks, by what became of them",
    labels: { outcome: LOCATE_OUTCOMES },
  },
  routerSaves: {
    name: "hearth_router_saves_total",
    type: "counter",
    help: "Times the picture was written to be found again after a restart",
    labels: { outcome: SAVE_OUTCOMES },
  },
} as const satisfies Record<string, MetricSpec>;

/** How a request to the proxy ended, as its client saw it. */
const PROXY_OUTCOME_LABELS = [
  "done",
  "client_left",
  "refused",
  "busy",
  "no_worker",
  "worker_failed",
] as const;

const POLICY_LABELS = [
  "cold_worker",
  "idle_session",
  "cache_control",
  "reasoning",
  "context_rewrite",
] as const;

/** What became of a policy's commands. */
const POLICY_OUTCOMES = ["sent", "receipt", "refused", "no_answer", "declined"] as const;

/** Metrics of a router's proxy, and of what it tells agents to do. */
export const PROXY_METRICS = {
  proxyRequests: {
    name: "hearth_router_proxy_requests_total",
    type: "counter",
    help: "Requests to the proxy, by how they ended for the client",
    labels: { outcome: PROXY_OUTCOME_LABELS },
  },
  proxyActive: {
    name: "hearth_router_proxy_active_requests",
    type: "gauge",
    help: "Requests to the proxy that are under way",
    labels: {},
  },
  proxyRetries: {
    name: "hearth_router_proxy_retries_total",
    type: "counter",
    help: "Requests to the proxy that got another worker because one failed",
    labels: {},
  },
  proxyWorkersOut: {
    name: "hearth_router_proxy_workers_out",
    type: "gauge",
    help: "Workers that the proxy leaves out because they do not answer health checks",
    labels: {},
  },
  proxyPulses: {
    name: "hearth_router_proxy_engine_pulses",
    type: "gauge",
    help: "Engine processes that answer pings where they publish KV events, one for each rank",
    labels: {},
  },
  proxyTimesOut: {
    name: "hearth_router_proxy_workers_left_out_total",
    type: "counter",
    help: "How often a worker was left out because it did not answer a health check",
    labels: {},
  },
  proxyPrefills: {
    name: "hearth_router_proxy_prefills_total",
    type: "counter",
    help: "Prefills on a worker apart; failed ones were left to the worker that decodes",
    labels: { outcome: ["done", "failed"] },
  },
  proxyOutputTokens: {
    name: "hearth_router_proxy_output_tokens_total",
    type: "counter",
    help: "Tokens of answers that went through the proxy",
    labels: {},
  },
  proxyPrompts: {
    name: "hearth_router_proxy_prompts_total",
    type: "counter",
    help: "Prompts that were to be turned into tokens; failed and late ones went without",
    labels: { outcome: ["done", "failed", "late"] },
  },
  proxyTokenChecks: {
    name: "hearth_router_proxy_token_checks_total",
    type: "counter",
    help: "Prompts whose tokens were counted by the proxy and by the engine, by the comparison",
    labels: { outcome: ["equal", "different"] },
  },
  policyMode: {
    name: "hearth_router_policy_on",
    type: "gauge",
    help: "Whether a policy is on: 1, in a dry run: 0.5, off: 0",
    labels: { policy: POLICY_LABELS },
  },
  policyCommands: {
    name: "hearth_router_policy_commands_total",
    type: "counter",
    help: "Commands that policies decided on, dry runs among them, by what became of them",
    labels: { policy: POLICY_LABELS, outcome: POLICY_OUTCOMES },
  },
  policyInFlight: {
    name: "hearth_router_policy_commands_running",
    type: "gauge",
    help: "Commands of policies that wait for their receipts",
    labels: { policy: POLICY_LABELS },
  },
  policyBytes: {
    name: "hearth_router_policy_bytes_total",
    type: "counter",
    help: "Bytes that commands of policies moved or freed, as receipts say",
    labels: { policy: POLICY_LABELS },
  },
} as const satisfies Record<string, MetricSpec>;
