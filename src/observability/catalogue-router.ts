import type { MetricSpec } from "./catalogue.ts";

/** Outcomes of a routing request. */
export const ROUTE_OUTCOMES = ["routed", "none", "busy", "unknown_worker", "aborted"] as const;
export type RouteOutcomeLabel = (typeof ROUTE_OUTCOMES)[number];

/** Rules that decide. */
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

/** Reasons for filtering out a worker. */
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

/** Events of residency messages. */
export const INGEST_EVENTS = [
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

/** Causes and steps of resynchronizations. */
export const RESYNCS = [
  "gap",
  "incarnation",
  "range",
  "picture",
  "picture_failed",
  "mismatch",
  "doubt",
] as const;

/** Messages between this router and its replicas. */
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
/** Block events of engines that are followed without an agent. */
export const ENGINE_BLOCKS = ["stored", "reannounced", "removed"] as const;
export const ENGINE_RESYNCS = ["gap", "replay", "restart", "lost_batch"] as const;
export const LOCATE_OUTCOMES = ["answered", "refused", "dropped"] as const;
export const SAVE_OUTCOMES = ["saved", "failed"] as const;

/** Seconds. A decision takes tens of microseconds; one that waits for a worker takes seconds. */
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
    help: "Routing requests, by outcome",
    labels: { outcome: ROUTE_OUTCOMES },
  },
  routerDecisions: {
    name: "hearth_router_decisions_total",
    type: "counter",
    help: "Decisions with a request id, by deciding rule",
    labels: { by: DECIDED_BY },
  },
  routerSeconds: {
    name: "hearth_router_decision_seconds",
    type: "histogram",
    help: "Time from a routing request to its answer, including the queue",
    labels: {},
    buckets: DECISION_BUCKETS,
  },
  routerFiltered: {
    name: "hearth_router_filtered_total",
    type: "counter",
    help: "Workers filtered out of a decision, by reason",
    labels: { reason: FILTER_REASONS },
  },
  routerPromptTokens: {
    name: "hearth_router_prompt_tokens_total",
    type: "counter",
    help: "Prompt tokens routed with a request id",
    labels: {},
  },
  routerCachedTokens: {
    name: "hearth_router_cached_tokens_total",
    type: "counter",
    help: "Routed prompt tokens that the chosen worker had cached, by tier",
    labels: { tier: ROUTER_TIERS },
  },
  routerWaiting: {
    name: "hearth_router_waiting_requests",
    type: "gauge",
    help: "Requests queued because all workers are busy",
    labels: {},
  },
  routerActive: {
    name: "hearth_router_active_requests",
    type: "gauge",
    help: "Requests routed and not yet freed",
    labels: {},
  },
  routerEnded: {
    name: "hearth_router_ended_total",
    type: "counter",
    help: "Requests ended, by reason: freed, expired, worker left",
    labels: { why: END_REASONS },
  },
  routerWorkers: {
    name: "hearth_router_workers",
    type: "gauge",
    help: "Workers, counted per data-parallel rank, by state",
    labels: { state: WORKER_STATES },
  },
  routerKnown: {
    name: "hearth_router_workers_known",
    type: "gauge",
    help: "Workers with known blocks",
    labels: {},
  },
  routerWorkerKnown: {
    name: "hearth_router_worker_known",
    type: "gauge",
    help: "Whether all blocks of the worker are known",
    labels: { worker: [], rank: [] },
  },
  routerWorkerBlocks: {
    name: "hearth_router_worker_blocks",
    type: "gauge",
    help: "Known blocks of the worker, by tier",
    labels: { worker: [], rank: [], tier: ROUTER_TIERS },
  },
  routerWorkerReached: {
    name: "hearth_router_worker_reached",
    type: "gauge",
    help:
      "Whether the worker's API has answered since the worker is known; only workers with " +
      "a url",
    labels: { worker: [] },
  },
  routerEngineReached: {
    name: "hearth_router_engine_reached",
    type: "gauge",
    help:
      "Whether the KV events of the worker's engine are received; only workers without an " +
      "agent",
    labels: { worker: [], rank: [] },
  },
  routerEngineBlockTokens: {
    name: "hearth_router_engine_block_tokens",
    type: "gauge",
    help: "Tokens per block of the worker's engine, from its events and from the configuration",
    labels: { worker: [], rank: [], source: ["engine", "configured"] },
  },
  routerEngineEvents: {
    name: "hearth_router_engine_events_total",
    type: "counter",
    help: "KV events received from the worker's engine",
    labels: { worker: [], rank: [] },
  },
  routerEngineBlocks: {
    name: "hearth_router_engine_blocks_total",
    type: "counter",
    help: "Blocks in the applied events of the worker's engine",
    labels: { worker: [], rank: [], kind: ENGINE_BLOCKS },
  },
  routerEngineDropped: {
    name: "hearth_router_engine_dropped_total",
    type: "counter",
    help: "Events of the worker's engine that were skipped, by reason; for removals, blocks",
    labels: { worker: [], rank: [], reason: [] },
  },
  routerEngineResyncs: {
    name: "hearth_router_engine_resyncs_total",
    type: "counter",
    help: "Gaps, replays, restarts and lost batches in the events of the worker's engine",
    labels: { worker: [], rank: [], kind: ENGINE_RESYNCS },
  },
  routerIndexBlocks: {
    name: "hearth_router_index_blocks",
    type: "gauge",
    help: "Distinct blocks of all workers",
    labels: {},
  },
  routerIndexHeld: {
    name: "hearth_router_index_held_blocks",
    type: "gauge",
    help: "Blocks of all workers, counted per worker and tier",
    labels: {},
  },
  routerIndexBytes: {
    name: "hearth_router_index_bytes",
    type: "gauge",
    help: "Memory of the index of workers' blocks",
    labels: {},
  },
  routerForgotten: {
    name: "hearth_router_index_forgotten_total",
    type: "counter",
    help: "Blocks evicted from the index because it was full",
    labels: {},
  },
  routerEvents: {
    name: "hearth_router_events_total",
    type: "counter",
    help: "Residency messages and the changes in them, by kind",
    labels: { kind: INGEST_EVENTS },
  },
  routerResyncs: {
    name: "hearth_router_resyncs_total",
    type: "counter",
    help: "Resynchronizations of a worker's index, by cause",
    labels: { kind: RESYNCS },
  },
  routerReplicas: {
    name: "hearth_router_replicas",
    type: "gauge",
    help: "Replicas of this router that are heard",
    labels: {},
  },
  routerReplicaNews: {
    name: "hearth_router_replica_news_total",
    type: "counter",
    help: "Messages between this router and its replicas, by event",
    labels: { kind: REPLICA_NEWS },
  },
  routerLocate: {
    name: "hearth_router_locate_total",
    type: "counter",
    help: "Block location queries of agents, by outcome",
    labels: { outcome: LOCATE_OUTCOMES },
  },
  routerSaves: {
    name: "hearth_router_saves_total",
    type: "counter",
    help: "Saves of the index for the next start, by outcome",
    labels: { outcome: SAVE_OUTCOMES },
  },
} as const satisfies Record<string, MetricSpec>;

/** Outcomes of a proxy request, as its client saw it. */
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

/** Outcomes of a policy's commands. */
const POLICY_OUTCOMES = ["sent", "receipt", "refused", "no_answer", "declined"] as const;

/** Metrics of a router's proxy and of its policies. */
export const PROXY_METRICS = {
  proxyRequests: {
    name: "hearth_router_proxy_requests_total",
    type: "counter",
    help: "Requests to the proxy, by outcome for the client",
    labels: { outcome: PROXY_OUTCOME_LABELS },
  },
  proxyActive: {
    name: "hearth_router_proxy_active_requests",
    type: "gauge",
    help: "Requests to the proxy in progress",
    labels: {},
  },
  proxyRetries: {
    name: "hearth_router_proxy_retries_total",
    type: "counter",
    help: "Requests to the proxy retried on another worker after a failure",
    labels: {},
  },
  proxyWorkersOut: {
    name: "hearth_router_proxy_workers_out",
    type: "gauge",
    help: "Workers that the proxy avoids because they fail health checks",
    labels: {},
  },
  proxyPulses: {
    name: "hearth_router_proxy_engine_pulses",
    type: "gauge",
    help: "Engine processes that answer pings on their KV event socket, counted per rank",
    labels: {},
  },
  proxyTimesOut: {
    name: "hearth_router_proxy_workers_left_out_total",
    type: "counter",
    help: "Times a worker was taken out because it failed a health check",
    labels: {},
  },
  proxyPrefills: {
    name: "hearth_router_proxy_prefills_total",
    type: "counter",
    help: "Prefills on a separate worker; failed prefills run on the decoding worker",
    labels: { outcome: ["done", "failed"] },
  },
  proxyOutputTokens: {
    name: "hearth_router_proxy_output_tokens_total",
    type: "counter",
    help: "Tokens of answers sent through the proxy",
    labels: {},
  },
  proxyPrompts: {
    name: "hearth_router_proxy_prompts_total",
    type: "counter",
    help: "Prompts to tokenize; failed and late ones were routed without tokens",
    labels: { outcome: ["done", "failed", "late"] },
  },
  proxyTokenChecks: {
    name: "hearth_router_proxy_token_checks_total",
    type: "counter",
    help:
      "Prompts whose tokens were counted by the proxy and by the engine, by result of the " +
      "comparison",
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
    help: "Commands decided by policies, including dry runs, by outcome",
    labels: { policy: POLICY_LABELS, outcome: POLICY_OUTCOMES },
  },
  policyInFlight: {
    name: "hearth_router_policy_commands_running",
    type: "gauge",
    help: "Commands of policies waiting for their receipts",
    labels: { policy: POLICY_LABELS },
  },
  policyBytes: {
    name: "hearth_router_policy_bytes_total",
    type: "counter",
    help: "Bytes moved or freed by commands of policies, according to their receipts",
    labels: { policy: POLICY_LABELS },
  },
} as const satisfies Record<string, MetricSpec>;
