import { PROXY_METRICS, ROUTER_METRICS } from "./catalogue-router.ts";
import { CONTROL_METRICS } from "./control-metrics.ts";
import { DEVICE_METRICS } from "./device-metrics.ts";
import { ENGINE_METRICS } from "./engine-metrics.ts";
import { HEALTH_CODE_NAMES, HEALTH_CODES } from "./health.ts";
import { PEER_METRICS } from "./peer-metrics.ts";
import { FEED_METRICS } from "./publisher-metrics.ts";

/** One metric as it is registered, documented and bounded. */
export interface MetricSpec {
  readonly name: string;
  readonly type: "counter" | "gauge" | "histogram";
  readonly help: string;
  /** Each label with every value it may have: the number of series is known in advance. */
  readonly labels: Readonly<Record<string, readonly string[]>>;
  /** Upper bounds of a histogram's buckets. */
  readonly buckets?: readonly number[];
}

/** Tiers that exist in this release. */
export const TIERS = ["gpu", "ram", "ssd"] as const;
export type TierName = (typeof TIERS)[number];

/** Where the blocks of a request come from. */
export const LOOKUP_TIERS = [...TIERS, "peer"] as const;
export type LookupTier = (typeof LOOKUP_TIERS)[number];

/** All blocks asked for were there, the first few, or none. */
export const LOOKUP_OUTCOMES = ["hit", "partial", "miss"] as const;
export type LookupOutcome = (typeof LOOKUP_OUTCOMES)[number];

/** What happens to a block on SSD. */
export const SSD_EVENTS = [
  "written",
  "read",
  "shared_read",
  "late",
  "skipped",
  "expired",
  "corrupt",
  "ram_damaged",
  "scrubbed",
  "purged",
] as const;

/** What found that a block in RAM was damaged. */
export const RAM_FINDERS = ["report", "write", "scrub", "file", "read", "peer", "gpu"] as const;

export const SLOT_STATES = ["used", "free", "quarantined"] as const;

/**
 * Seconds: a lookup in memory takes microseconds, one that waits for a slower tier milliseconds.
 */
const LOOKUP_BUCKETS = [
  2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 1,
] as const;

/** Why a caller of the API is not let in, as its answer says. */
export const API_REFUSALS = [
  "UNAUTHORIZED",
  "FORBIDDEN",
  "HOST_REFUSED",
  "ORIGIN_REFUSED",
  "CONNECTION_LIMIT",
  "BODY_LIMIT",
  "BODY_TIMEOUT",
] as const;
export type ApiRefusal = (typeof API_REFUSALS)[number];

/** Metrics of the agent. */
const AGENT_METRICS = {
  blocks: {
    name: "cgn_kvcached_blocks",
    type: "gauge",
    help: "Blocks known on a tier; on gpu those that engines said they hold",
    labels: { tier: TIERS },
  },
  bytes: {
    name: "cgn_kvcached_bytes",
    type: "gauge",
    help: "Bytes of the blocks on a tier",
    labels: { tier: TIERS },
  },
  lookupSeconds: {
    name: "cgn_kvcached_lookup_seconds",
    type: "histogram",
    help: "Time to look up the blocks of one request, by the tier that answered",
    labels: { tier: LOOKUP_TIERS, outcome: LOOKUP_OUTCOMES },
    buckets: LOOKUP_BUCKETS,
  },
  evictions: {
    name: "cgn_kvcached_evictions_total",
    type: "counter",
    help: "Blocks evicted from a tier",
    labels: { tier: ["ram", "ssd"] },
  },
  evictedBytes: {
    name: "hearth_evicted_bytes_total",
    type: "counter",
    help: "Bytes of the blocks evicted from a tier",
    labels: { tier: ["ram", "ssd"] },
  },
  evictionRuns: {
    name: "hearth_eviction_runs_total",
    type: "counter",
    help: "Times the background walk evicted something",
    labels: {},
  },
  blockOutcomes: {
    name: "hearth_block_outcomes_total",
    type: "counter",
    help: "What engines were answered for single blocks",
    labels: {
      operation: ["acquire", "reserve", "commit", "abort"],
      outcome: ["ok", "miss", "present", "full", "corrupt"],
    },
  },
  matchedBlocks: {
    name: "hearth_match_blocks_total",
    type: "counter",
    help: "Blocks asked for by MATCH",
    labels: {},
  },
  fullAnswers: {
    name: "hearth_full_answers_total",
    type: "counter",
    help: "Blocks that could not be stored because no slot was free",
    labels: {},
  },
  corruptBlocks: {
    name: "hearth_corrupt_blocks_total",
    type: "counter",
    help: "Blocks refused because their bytes do not have the checksum",
    labels: {},
  },
  ramCorrupt: {
    name: "hearth_ram_corrupt_total",
    type: "counter",
    help: "Blocks whose bytes in RAM were damaged, by what found it; they were dropped",
    labels: { by: RAM_FINDERS },
  },
  ramReports: {
    name: "hearth_ram_reports_total",
    type: "counter",
    help: "Blocks that readers reported, by what RAM had; unverified: without the key",
    labels: { outcome: ["damaged", "right", "skipped", "planted", "unverified"] },
  },
  ramScrubbedBytes: {
    name: "hearth_ram_scrubbed_bytes_total",
    type: "counter",
    help: "Bytes of blocks in RAM that were hashed in the background",
    labels: {},
  },
  committedBytes: {
    name: "hearth_committed_bytes_total",
    type: "counter",
    help: "Bytes of the blocks that engines stored",
    labels: {},
  },
  ssdUsedBytes: {
    name: "hearth_ssd_used_bytes",
    type: "gauge",
    help: "Bytes that count against the cap of the SSD tier, as the file system allocates them",
    labels: {},
  },
  ssdCapacityBytes: {
    name: "hearth_ssd_capacity_bytes",
    type: "gauge",
    help: "The cap of the SSD tier; 0 without one",
    labels: {},
  },
  ssdQueuedBytes: {
    name: "hearth_ssd_queued_bytes",
    type: "gauge",
    help: "Bytes of blocks on their way to SSD",
    labels: {},
  },
  ssdReading: {
    name: "hearth_ssd_reading_blocks",
    type: "gauge",
    help: "Blocks on their way from SSD",
    labels: {},
  },
  ssdQuarantined: {
    name: "hearth_ssd_quarantined_files",
    type: "gauge",
    help: "Damaged files set aside",
    labels: {},
  },
  ssdBlocks: {
    name: "hearth_ssd_blocks_total",
    type: "counter",
    help: "Blocks of the SSD tier by what happened to them",
    labels: { event: SSD_EVENTS },
  },
  ssdBytes: {
    name: "hearth_ssd_bytes_total",
    type: "counter",
    help: "Bytes of blocks that went to and came from SSD",
    labels: { direction: ["written", "read", "scrubbed"] },
  },
  ssdErrors: {
    name: "hearth_ssd_errors_total",
    type: "counter",
    help: "Operations on the SSD that failed",
    labels: { operation: ["read", "write"] },
  },
  slots: {
    name: "hearth_slots",
    type: "gauge",
    help: "Slots of the block sizes in use; quarantined ones wait for the death of their process",
    labels: { state: SLOT_STATES },
  },
  arenaBytes: {
    name: "hearth_arena_bytes",
    type: "gauge",
    help: "Size of the RAM arena",
    labels: {},
  },
  arenaReadyBytes: {
    name: "hearth_arena_ready_bytes",
    type: "gauge",
    help: "Bytes of the arena that are backed by memory; grows to its size after the start",
    labels: {},
  },
  arenaLockedBytes: {
    name: "hearth_arena_locked_bytes",
    type: "gauge",
    help: "Bytes of the arena that cannot be swapped out",
    labels: {},
  },
  tableBlocks: {
    name: "hearth_table_blocks",
    type: "gauge",
    help: "Blocks in the table, all tiers together",
    labels: {},
  },
  sessions: {
    name: "hearth_sessions",
    type: "gauge",
    help: "Conversations that hold their last block",
    labels: {},
  },
  tableCapacity: {
    name: "hearth_table_capacity_blocks",
    type: "gauge",
    help: "Blocks the table has room for",
    labels: {},
  },
  ...ENGINE_METRICS,
  ...CONTROL_METRICS,
  ...PEER_METRICS,
  ...FEED_METRICS,
  ...DEVICE_METRICS,
} as const satisfies Record<string, MetricSpec>;

/** Metrics of every process of Hearth. */
const PROCESS_METRICS = {
  apiRefused: {
    name: "hearth_api_refused_total",
    type: "counter",
    help: "Requests to the API whose sender was not let in, by the code it was told",
    labels: { code: API_REFUSALS },
  },
  health: {
    name: "hearth_health",
    type: "gauge",
    help: "Whether this is the matter now: 1 or 0; see `hearth reference health`",
    labels: { code: HEALTH_CODE_NAMES },
  },
  healthRaised: {
    name: "hearth_health_raised_total",
    type: "counter",
    help: "Times that this began to be the matter",
    labels: { code: HEALTH_CODE_NAMES },
  },
  eventLoopLag: {
    name: "hearth_event_loop_lag_seconds",
    type: "gauge",
    help: "Longest time in the last 15 s for which the event loop was late",
    labels: {},
  },
  eventLoopTurn: {
    name: "hearth_event_loop_turn_seconds",
    type: "gauge",
    help: "Longest turn of the event loop in the last 15 s, waits for a processor included",
    labels: {},
  },
  eventLoopLongTurns: {
    name: "hearth_event_loop_long_turns_total",
    type: "counter",
    help: "Turns of the event loop that took longer than 5 ms",
    labels: {},
  },
  residentBytes: {
    name: "hearth_resident_bytes",
    type: "gauge",
    help: "Memory of the process, the arena included",
    labels: {},
  },
  cpuSeconds: {
    name: "hearth_cpu_seconds_total",
    type: "counter",
    help: "Processor time of the process",
    labels: {},
  },
  logLinesDropped: {
    name: "hearth_log_lines_dropped_total",
    type: "counter",
    help: "Log lines left out because there were too many of their kind",
    labels: {},
  },
  uptime: {
    name: "hearth_uptime_seconds",
    type: "gauge",
    help: "Seconds since the start",
    labels: {},
  },
  buildInfo: {
    name: "hearth_build_info",
    type: "gauge",
    help: "Always 1; what runs here is in the labels, one value each",
    labels: { version: [], commit: [] },
  },
} as const satisfies Record<string, MetricSpec>;

/** Every metric of Hearth. `hearth reference metrics` prints this table. */
export const METRICS = {
  ...AGENT_METRICS,
  ...ROUTER_METRICS,
  ...PROXY_METRICS,
  ...PROCESS_METRICS,
};

export type MetricName = keyof typeof METRICS;

/** What a process of this kind tells. */
export const METRICS_OF: Readonly<Record<"agent" | "router", readonly MetricName[]>> = {
  agent: Object.keys({ ...AGENT_METRICS, ...PROCESS_METRICS }) as MetricName[],
  router: Object.keys({ ...ROUTER_METRICS, ...PROXY_METRICS, ...PROCESS_METRICS }) as MetricName[],
};

function labelsOf({ labels }: MetricSpec): string {
  return Object.entries(labels)
    .map(([label, values]) => {
      const shown = values.map((value) => `\`${value}\``).join(" ");
      return `\`${label}\`: ${shown === "" ? "one value" : shown}`;
    })
    .join("; ");
}

/** The reference page of health codes, in Markdown. */
export function renderHealthReference(): string {
  const lines = [
    "# Health",
    "",
    "What can be the matter with an agent that runs. `GET /v1/status` lists what is the matter now",
    "with the details of the case, `GET /healthz` the codes alone; `hearth_health{code}` is 1",
    "meanwhile, and the log says when it began and ended. The codes are stable. None of them makes",
    "`/readyz` say no: engines are served all the same.",
    "",
    "| code | severity | meaning | what to do |",
    "|---|---|---|---|",
    ...HEALTH_CODE_NAMES.map((code) => {
      const { severity, meaning, fix } = HEALTH_CODES[code];
      return `| \`${code}\` | ${severity} | ${meaning} | ${fix} |`;
    }),
  ];
  return `${lines.join("\n")}\n`;
}

/** The reference page of metrics, in Markdown. */
export function renderMetricsReference(): string {
  const specs: MetricSpec[] = Object.values(METRICS);
  const lines = [
    "# Metrics",
    "",
    "`GET /metrics` answers in the Prometheus text format. Labels have these values and no",
    "others, so the number of series is bounded.",
    "",
    "| name | type | meaning | labels |",
    "|---|---|---|---|",
    ...specs.map(
      (spec) => `| \`${spec.name}\` | ${spec.type} | ${spec.help} | ${labelsOf(spec)} |`,
    ),
    "",
    "## Histograms",
    "",
    ...specs
      .filter(({ buckets }) => buckets !== undefined)
      .map(({ name, buckets }) => `- \`${name}\`: buckets up to ${buckets!.join(", ")}`),
  ];
  return `${lines.join("\n")}\n`;
}
