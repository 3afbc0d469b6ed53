import { PROXY_METRICS, ROUTER_METRICS } from "./catalogue-router.ts";
import { CONTROL_METRICS } from "./control-metrics.ts";
import { DEVICE_METRICS } from "./device-metrics.ts";
import { ENGINE_METRICS } from "./engine-metrics.ts";
import { HEALTH_CODE_NAMES, HEALTH_CODES } from "./health.ts";
import { PEER_METRICS } from "./peer-metrics.ts";
import { PUBLISHER_METRICS } from "./publisher-metrics.ts";

/** A metric as registered, documented and bounded. */
export interface MetricSpec {
  readonly name: string;
  readonly type: "counter" | "gauge" | "histogram";
  readonly help: string;
  /** Each label with all its values, which bound the number of series. */
  readonly labels: Readonly<Record<string, readonly string[]>>;
  /** Upper bounds of a histogram's buckets. */
  readonly buckets?: readonly number[];
}

/** Tiers of this host. */
export const TIERS = ["gpu", "ram", "ssd"] as const;
export type TierName = (typeof TIERS)[number];

/** Sources of a request's blocks. */
export const LOOKUP_TIERS = [...TIERS, "peer"] as const;
export type LookupTier = (typeof LOOKUP_TIERS)[number];

/** All requested blocks were present, only the first ones, or none. */
export const LOOKUP_OUTCOMES = ["hit", "partial", "miss"] as const;
export type LookupOutcome = (typeof LOOKUP_OUTCOMES)[number];

/** Fates of a block on SSD. */
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

/** Components that find damaged blocks in RAM. */
export const RAM_FINDERS = ["report", "write", "scrub", "file", "read", "peer", "gpu"] as const;

export const SLOT_STATES = ["used", "free", "quarantined"] as const;

/**
 * Seconds. A lookup in memory takes microseconds; one that waits for a slower tier takes
 * milliseconds.
 */
const LOOKUP_BUCKETS = [
  2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3, 2.5e-2, 0.1, 1,
] as const;

/** Codes of refused API callers, as in the answer. */
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
    help: "Blocks resident on a tier; on gpu, those reported by engines",
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
    help: "Passes of the background eviction that evicted a block",
    labels: {},
  },
  blockOutcomes: {
    name: "hearth_block_outcomes_total",
    type: "counter",
    help: "Answers to engines for single blocks",
    labels: {
      operation: ["acquire", "reserve", "commit", "abort"],
      outcome: ["ok", "miss", "present", "full", "corrupt"],
    },
  },
  matchedBlocks: {
    name: "hearth_match_blocks_total",
    type: "counter",
    help: "Blocks requested by MATCH",
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
    help: "Blocks rejected because of a checksum mismatch",
    labels: {},
  },
  ramCorrupt: {
    name: "hearth_ram_corrupt_total",
    type: "counter",
    help: "Damaged blocks in RAM, which were dropped, by the component that found them",
    labels: { by: RAM_FINDERS },
  },
  ramReports: {
    name: "hearth_ram_reports_total",
    type: "counter",
    help:
      "Blocks reported as damaged by readers, by the state of the copy in RAM; unverified: " +
      "the key is missing",
    labels: { outcome: ["damaged", "right", "skipped", "planted", "unverified"] },
  },
  ramScrubbedBytes: {
    name: "hearth_ram_scrubbed_bytes_total",
    type: "counter",
    help: "Bytes of blocks in RAM verified in the background",
    labels: {},
  },
  committedBytes: {
    name: "hearth_committed_bytes_total",
    type: "counter",
    help: "Bytes of blocks stored by engines",
    labels: {},
  },
  ssdUsedBytes: {
    name: "hearth_ssd_used_bytes",
    type: "gauge",
    help: "Bytes counted against the cap of the SSD tier, as allocated by the file system",
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
    help: "Bytes of blocks being written to SSD",
    labels: {},
  },
  ssdReading: {
    name: "hearth_ssd_reading_blocks",
    type: "gauge",
    help: "Blocks being read from SSD",
    labels: {},
  },
  ssdQuarantined: {
    name: "hearth_ssd_quarantined_files",
    type: "gauge",
    help: "Damaged files in quarantine",
    labels: {},
  },
  ssdBlocks: {
    name: "hearth_ssd_blocks_total",
    type: "counter",
    help: "Blocks of the SSD tier, by event",
    labels: { event: SSD_EVENTS },
  },
  ssdBytes: {
    name: "hearth_ssd_bytes_total",
    type: "counter",
    help: "Bytes of blocks written to, read from and verified on SSD",
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
    help:
      "Slots of the block sizes in use; quarantined slots are released when their process " +
      "exits",
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
    help: "Bytes of the arena backed by memory; grows to the arena size after the start",
    labels: {},
  },
  arenaLockedBytes: {
    name: "hearth_arena_locked_bytes",
    type: "gauge",
    help: "Bytes of the arena locked in memory",
    labels: {},
  },
  tableBlocks: {
    name: "hearth_table_blocks",
    type: "gauge",
    help: "Blocks in the table, over all tiers",
    labels: {},
  },
  sessions: {
    name: "hearth_sessions",
    type: "gauge",
    help: "Conversations whose last block is retained",
    labels: {},
  },
  tableCapacity: {
    name: "hearth_table_capacity_blocks",
    type: "gauge",
    help: "Capacity of the block table",
    labels: {},
  },
  ...ENGINE_METRICS,
  ...CONTROL_METRICS,
  ...PEER_METRICS,
  ...PUBLISHER_METRICS,
  ...DEVICE_METRICS,
} as const satisfies Record<string, MetricSpec>;

/** Metrics of every Hearth process. */
const PROCESS_METRICS = {
  apiRefused: {
    name: "hearth_api_refused_total",
    type: "counter",
    help: "API requests refused before routing, by the code of the answer",
    labels: { code: API_REFUSALS },
  },
  health: {
    name: "hearth_health",
    type: "gauge",
    help: "Whether the problem is current: 1 or 0; see `hearth reference health`",
    labels: { code: HEALTH_CODE_NAMES },
  },
  healthRaised: {
    name: "hearth_health_raised_total",
    type: "counter",
    help: "Times that the problem began",
    labels: { code: HEALTH_CODE_NAMES },
  },
  eventLoopLag: {
    name: "hearth_event_loop_lag_seconds",
    type: "gauge",
    help: "Longest delay of the event loop in the last 15 s",
    labels: {},
  },
  eventLoopTurn: {
    name: "hearth_event_loop_turn_seconds",
    type: "gauge",
    help: "Longest turn of the event loop in the last 15 s, including waits for a processor",
    labels: {},
  },
  eventLoopTurnCpu: {
    name: "hearth_event_loop_turn_cpu_seconds",
    type: "gauge",
    help: "Most processor time in one turn of the event loop in the last 15 s",
    labels: {},
  },
  eventLoopLongTurns: {
    name: "hearth_event_loop_long_turns_total",
    type: "counter",
    help: "Turns of the event loop with more than 5 ms of processor time",
    labels: {},
  },
  residentBytes: {
    name: "hearth_resident_bytes",
    type: "gauge",
    help: "Resident memory of the process, including the arena",
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
    help: "Log lines dropped by the flood limit",
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
    help: "Always 1; the labels describe the build",
    labels: { version: [], commit: [] },
  },
} as const satisfies Record<string, MetricSpec>;

/** All metrics of Hearth. `hearth reference metrics` prints this table. */
export const METRICS = {
  ...AGENT_METRICS,
  ...ROUTER_METRICS,
  ...PROXY_METRICS,
  ...PROCESS_METRICS,
};

export type MetricName = keyof typeof METRICS;

/** Metrics exported by each kind of process. */
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

/** Renders the reference page of health codes in Markdown. */
export function renderHealthReference(): string {
  const lines = [
    "# Health",
    "",
    "Problems that a running process can have. `GET /v1/status` lists the current ones",
    "with their details, `GET /healthz` only the codes; `hearth_health{code}` is 1",
    "while a problem lasts, and the log records its start and end. Codes are stable. None of them",
    "makes `/readyz` fail: engines are still served.",
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

/** Renders the reference page of metrics in Markdown. */
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
