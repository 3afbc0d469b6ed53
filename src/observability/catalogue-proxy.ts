import type { MetricSpec } from "./catalogue.ts";

/** How a request to the proxy ended, as its client saw it. */
export const PROXY_OUTCOME_LABELS = [
  "done",
  "client_left",
  "refused",
  "busy",
  "no_worker",
  "worker_failed",
] as const;

export const POLICY_LABELS = [
  "cold_worker",
  "idle_session",
  "cache_control",
  "reasoning",
  "context_rewrite",
] as const;

/** What became of a policy's commands. */
export const POLICY_OUTCOMES = ["sent", "receipt", "refused", "no_answer", "declined"] as const;

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
