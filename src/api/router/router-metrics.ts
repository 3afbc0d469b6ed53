import type { WorkerId } from "../../core/index.ts";
import type { EngineIngest } from "../../events/index.ts";
import { RESIDENCY_TIERS } from "../../observability/activity/index.ts";
import {
  counter,
  gauge,
  histogram,
  Metrics,
  type MetricTable,
  metricsOfPart,
  PROCESS_METRICS,
  type ProcessSources,
} from "../../observability/index.ts";
import {
  DECIDED_BY,
  END_REASONS,
  FILTER_REASONS,
  type IndexSync,
  POLICY_NAMES,
  type PolicyCounts,
  type PrefixIndex,
  type ReplicaStats,
  ROUTE_OUTCOMES,
  type RouteCounts,
  type Target,
} from "../../router/index.ts";
import { PROXY_OUTCOMES, type ProxySnapshot } from "../../router/proxy/index.ts";
import { AGENT_METRICS, picked, sum } from "../agent-metrics.ts";

/** State of one engine whose events the router follows without an agent. */
export interface EngineReport {
  readonly worker: WorkerId;
  readonly rank: number;
  readonly endpoint: string;
  readonly isReached: boolean;
  /** True if the router has reached the engine since it began to follow it. */
  readonly wasReached: boolean;
  /** True if no event is missing since the router began to follow the engine. */
  readonly isCurrent: boolean;
  readonly hasReplay: boolean;
  /**
   * Block size in tokens: from the configuration (null if not set), and from the engine's events
   * (null before the first event).
   */
  readonly configuredBlockTokens: number | null;
  readonly blockTokens: number | null;
  /** Blocks that are not indexed yet, because their parent block is unknown. */
  readonly orphanBlocks: number;
  readonly counts: EngineIngest["counts"];
}

/** The objects from which a router's metrics are read. */
export interface RouterSources extends ProcessSources {
  readonly counts: RouteCounts;
  readonly activeRequests: number;
  readonly targets: readonly Target[];
  readonly index: Pick<PrefixIndex, "stats" | "digests">;
  readonly ingest: ReturnType<IndexSync["ingest"]["stats"]>;
  /** State of exchanging requests with other routers. Null without replicas. */
  readonly replicas: ReplicaStats | null;
  /** Number of index snapshots taken over from other routers. */
  readonly snapshotsTaken: number;
  readonly locate: Readonly<Record<"answered" | "refused" | "dropped", number>> | null;
  /** Counters of saving the index. Null if the index is not saved. */
  readonly saves: NonNullable<IndexSync["snapshots"]>["stats"] | null;
  /** Workers with a `url`, and whether the router reaches each. */
  readonly reached: readonly { readonly worker: WorkerId; readonly isReached: boolean }[];
  /** Engines that the router follows without an agent. */
  readonly engines: readonly EngineReport[];
  /** Counters of the policies that are not off. */
  readonly policies: readonly PolicyCounts[];
  readonly proxy: ProxySnapshot | null;
}

const WORKER_STATES = ["live", "stale", "draining"] as const;
const POLICY_ON = { off: 0, "dry-run": 0.5, on: 1 } as const;

/** Kinds of received residency messages, as label values, each with its counter. */
const INGEST_EVENTS = {
  batch: "batches",
  change: "changes",
  heartbeat: "heartbeats",
  duplicate: "duplicates",
  early: "early",
  stale: "stale",
  unannounced: "unannounced",
  refused: "refused",
  overfull: "overfull",
  pending_dropped: "pendingDropped",
} as const satisfies Record<string, keyof RouterSources["ingest"]>;

/**
 * Causes and steps of resynchronizations with publishers, as label values, each with its counter.
 */
const RESYNCS = {
  gap: "gaps",
  incarnation: "incarnations",
  range: "ranges",
  picture: "snapshots",
  picture_failed: "snapshotsFailed",
  mismatch: "mismatches",
  doubt: "doubts",
} as const satisfies Record<string, keyof RouterSources["ingest"]>;

/** Messages between this router and its replicas, as label values, each with its counter. */
const REPLICA_NEWS = {
  sent: "sent",
  received: "received",
  dropped: "dropped",
  refused: "refused",
  list: "lists",
  orphan_ended: "orphansEnded",
  unknown_worker: "unknownWorkers",
  picture_given: "snapshotsServed",
} as const satisfies Record<string, keyof ReplicaStats>;

/**
 * Bucket limits in seconds. A decision takes tens of microseconds; one that waits for a worker
 * takes seconds.
 */
const DECISION_BUCKETS = [2e-5, 5e-5, 1e-4, 1.5e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 1e-2, 0.1, 1, 10];

/** Returns one series per followed engine and per value of one more label. */
function ofEngines(
  engines: RouterSources["engines"],
  pick: (counts: EngineReport["counts"]) => Readonly<Record<string, number>>,
) {
  return engines.flatMap(({ worker, rank, counts }) =>
    Object.entries(pick(counts)).map(
      ([label, count]) => [worker, `${rank}`, label, count] as const,
    ),
  );
}

const PROXY_METRICS = {
  hearth_router_proxy_requests_total: counter(
    "Requests to the proxy, by outcome for the client",
    ({ outcomes }) => outcomes,
    { outcome: PROXY_OUTCOMES },
  ),
  hearth_router_proxy_active_requests: gauge(
    "Requests to the proxy in progress",
    ({ active }) => active,
  ),
  hearth_router_proxy_retries_total: counter(
    "Requests to the proxy retried on another worker after a failure",
    ({ retries }) => retries,
  ),
  hearth_router_proxy_workers_out: gauge(
    "Workers that the proxy avoids because they fail health checks",
    ({ workersOut }) => workersOut,
  ),
  hearth_router_proxy_engine_pulses: gauge(
    "Engine processes that answer pings on their KV event socket, counted per rank",
    ({ pulses }) => pulses,
  ),
  hearth_router_proxy_workers_left_out_total: counter(
    "Times a worker was taken out because it failed a health check",
    ({ timesOut }) => timesOut,
  ),
  hearth_router_proxy_prefills_total: counter(
    "Prefills on a separate worker; failed prefills run on the decoding worker",
    ({ prefills, prefillsFailed }) => ({ done: prefills, failed: prefillsFailed }),
    { outcome: ["done", "failed"] },
  ),
  hearth_router_proxy_output_tokens_total: counter(
    "Tokens of answers sent through the proxy",
    ({ outputTokens }) => outputTokens,
  ),
  hearth_router_proxy_prompts_total: counter(
    "Prompts to tokenize; failed and late ones were routed without tokens",
    ({ tokens: { prompts, failed, late } }) => ({ done: prompts - failed - late, failed, late }),
    { outcome: ["done", "failed", "late"] },
  ),
  hearth_router_proxy_token_checks_total: counter(
    "Prompts whose tokens were counted by the proxy and by the engine, by result of the comparison",
    ({ checks: { equal, different } }) => ({ equal, different }),
    { outcome: ["equal", "different"] },
  ),
} satisfies MetricTable<ProxySnapshot>;

/** Declarations of a router's metrics. */
export const ROUTER_METRICS = {
  cgn_router_cache_hit_ratio: gauge(
    "Share of the prompt tokens of the last five minutes that the chosen worker had",
    ({ counts }) => counts.hitRatio,
  ),
  hearth_router_requests_total: counter(
    "Routing requests, by outcome",
    ({ counts }) => counts.outcomes,
    { outcome: ROUTE_OUTCOMES },
  ),
  hearth_router_decisions_total: counter(
    "Decisions with a request id, by deciding rule",
    ({ counts }) => counts.decidedBy,
    { by: DECIDED_BY },
  ),
  hearth_router_decision_seconds: histogram(
    "Time from a routing request to its answer, including the queue",
    DECISION_BUCKETS,
  ),
  hearth_router_filtered_total: counter(
    "Workers filtered out of a decision, by reason",
    ({ counts }) => counts.filtered,
    { reason: FILTER_REASONS },
  ),
  hearth_router_prompt_tokens_total: counter(
    "Prompt tokens routed with a request id",
    ({ counts }) => counts.promptTokens,
  ),
  hearth_router_cached_tokens_total: counter(
    "Routed prompt tokens that the chosen worker had cached, by tier",
    ({ counts }) => counts.cachedTokens,
    { tier: RESIDENCY_TIERS },
  ),
  hearth_router_waiting_requests: gauge(
    "Requests queued because all workers are busy",
    ({ counts }) => counts.waitingRequests,
  ),
  hearth_router_active_requests: gauge(
    "Requests routed and not yet freed",
    ({ activeRequests }) => activeRequests,
  ),
  hearth_router_ended_total: counter(
    "Requests ended, by reason: freed, expired, worker left",
    ({ counts }) => counts.endings,
    { why: END_REASONS },
  ),
  hearth_router_workers: gauge(
    "Workers, counted per data-parallel rank, by state",
    ({ targets }) =>
      WORKER_STATES.map((name) => [name, targets.filter(({ state }) => state === name).length]),
    { state: WORKER_STATES },
  ),
  hearth_router_workers_known: gauge(
    "Workers with known blocks",
    ({ targets }) => targets.filter(({ isKnown }) => isKnown).length,
  ),
  hearth_router_worker_known: gauge(
    "Whether all blocks of the worker are known",
    ({ targets }) =>
      targets.map(({ worker, rank, isKnown }) => [worker, `${rank}`, isKnown ? 1 : 0]),
    { worker: [], rank: [] },
  ),
  hearth_router_worker_blocks: gauge(
    "Known blocks of the worker, by tier",
    ({ targets, index }) =>
      targets.flatMap(({ id, worker, rank }) =>
        (index.digests(id) ?? []).map(({ blocks }, tier) => {
          return [worker, `${rank}`, RESIDENCY_TIERS[tier], blocks] as const;
        }),
      ),
    { worker: [], rank: [], tier: RESIDENCY_TIERS },
  ),
  hearth_router_worker_reached: gauge(
    "Whether the worker's API has answered since the worker is known; only workers with a url",
    ({ reached }) => reached.map(({ worker, isReached }) => [worker, isReached ? 1 : 0]),
    { worker: [] },
  ),
  hearth_router_engine_reached: gauge(
    "Whether the KV events of the worker's engine are received; only workers without an agent",
    ({ engines }) =>
      engines.map(({ worker, rank, isReached }) => [worker, `${rank}`, isReached ? 1 : 0]),
    { worker: [], rank: [] },
  ),
  hearth_router_engine_block_tokens: gauge(
    "Tokens per block of the worker's engine, from its events and from the configuration",
    ({ engines }) =>
      engines.flatMap(({ worker, rank, blockTokens, configuredBlockTokens }) => {
        const sizes = { engine: blockTokens, configured: configuredBlockTokens };
        return Object.entries(sizes).flatMap(([source, size]) => {
          return size === null ? [] : [[worker, `${rank}`, source, size] as const];
        });
      }),
    { worker: [], rank: [], source: ["engine", "configured"] },
  ),
  hearth_router_engine_events_total: counter(
    "KV events received from the worker's engine",
    ({ engines }) => engines.map(({ worker, rank, counts }) => [worker, `${rank}`, counts.events]),
    { worker: [], rank: [] },
  ),
  hearth_router_engine_blocks_total: counter(
    "Blocks in the applied events of the worker's engine",
    ({ engines }) =>
      ofEngines(engines, ({ stored, reannounced, removed }) => ({ stored, reannounced, removed })),
    { worker: [], rank: [], kind: ["stored", "reannounced", "removed"] },
  ),
  hearth_router_engine_dropped_total: counter(
    "Events of the worker's engine that were skipped, by reason; for removals, blocks",
    ({ engines }) => ofEngines(engines, ({ dropped }) => dropped),
    { worker: [], rank: [], reason: [] },
  ),
  hearth_router_engine_resyncs_total: counter(
    "Gaps, replays, restarts and lost batches in the events of the worker's engine",
    ({ engines }) =>
      ofEngines(engines, ({ gaps, replays, restarts, lostBatches }) => {
        return { gap: gaps, replay: replays, restart: restarts, lost_batch: lostBatches };
      }),
    { worker: [], rank: [], kind: ["gap", "replay", "restart", "lost_batch"] },
  ),
  hearth_router_index_blocks: gauge(
    "Distinct blocks of all workers",
    ({ index }) => index.stats.blocks,
  ),
  hearth_router_index_held_blocks: gauge(
    "Blocks of all workers, counted per worker and tier",
    ({ index }) => index.stats.heldBlocks,
  ),
  hearth_router_index_bytes: gauge(
    "Memory of the index of workers' blocks",
    ({ index }) => index.stats.bytes,
  ),
  hearth_router_index_forgotten_total: counter(
    "Blocks evicted from the index because it was full",
    ({ index }) => index.stats.forgotten,
  ),
  hearth_router_events_total: counter(
    "Residency messages and the changes in them, by kind",
    ({ ingest }) => picked(ingest, INGEST_EVENTS),
    { kind: Object.keys(INGEST_EVENTS) },
  ),
  hearth_router_resyncs_total: counter(
    "Resynchronizations of a worker's index, by cause",
    ({ ingest }) => picked(ingest, RESYNCS),
    { kind: Object.keys(RESYNCS) },
  ),
  hearth_router_replicas: gauge(
    "Replicas of this router that are heard",
    ({ replicas }) => replicas?.replicas ?? null,
  ),
  hearth_router_replica_news_total: counter(
    "Messages between this router and its replicas, by event",
    ({ replicas, snapshotsTaken }) =>
      replicas && { ...picked(replicas, REPLICA_NEWS), picture_taken: snapshotsTaken },
    { kind: [...Object.keys(REPLICA_NEWS), "picture_taken"] },
  ),
  hearth_router_locate_total: counter(
    "Block location queries of agents, by outcome",
    ({ locate }) =>
      locate && { answered: locate.answered, refused: locate.refused, dropped: locate.dropped },
    { outcome: ["answered", "refused", "dropped"] },
  ),
  hearth_router_saves_total: counter(
    "Saves of the index for the next start, by outcome",
    ({ saves }) => saves && { saved: saves.saves, failed: saves.failures },
    { outcome: ["saved", "failed"] },
  ),
  ...metricsOfPart(({ proxy }: RouterSources) => proxy, PROXY_METRICS),
  hearth_router_policy_on: gauge(
    "Whether a policy is on: 1, in a dry run: 0.5, off: 0",
    ({ policies }) => {
      const modes = new Map(policies.map(({ policy, mode }) => [policy, mode]));
      return POLICY_NAMES.map((policy) => [policy, POLICY_ON[modes.get(policy) ?? "off"]]);
    },
    { policy: POLICY_NAMES },
  ),
  hearth_router_policy_commands_total: counter(
    "Commands decided by policies, including dry runs, by outcome",
    ({ policies }) =>
      policies.flatMap(({ policy, ...counts }) => [
        [policy, "sent", counts.commands],
        [policy, "receipt", counts.receipts],
        [policy, "refused", counts.refused],
        [policy, "no_answer", counts.noAnswer],
        [policy, "declined", sum(Object.values(counts.declined), (count) => count)],
      ]),
    { policy: POLICY_NAMES, outcome: ["sent", "receipt", "refused", "no_answer", "declined"] },
  ),
  hearth_router_policy_commands_running: gauge(
    "Commands of policies waiting for their receipts",
    ({ policies }) => policies.map(({ policy, inFlight }) => [policy, inFlight]),
    { policy: POLICY_NAMES },
  ),
  hearth_router_policy_bytes_total: counter(
    "Bytes moved or freed by commands of policies, according to their receipts",
    ({ policies }) => policies.map(({ policy, bytes }) => [policy, bytes]),
    { policy: POLICY_NAMES },
  ),
  ...PROCESS_METRICS,
} satisfies MetricTable<RouterSources>;

/** A router's registered metrics. */
export class RouterMetrics extends Metrics<RouterSources> {
  readonly observeSeconds = this.observer("hearth_router_decision_seconds");

  constructor() {
    super(ROUTER_METRICS);
  }
}

/** Declarations of all metrics of Hearth, for the reference page. */
export const METRICS: MetricTable<never> = { ...AGENT_METRICS, ...ROUTER_METRICS };
