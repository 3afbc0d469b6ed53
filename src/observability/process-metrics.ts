import type { Clock } from "../core/index.ts";
import { HEALTH_CODE_NAMES, type Health } from "./health.ts";
import type { Logger } from "./logger.ts";
import { counter, gauge, type MetricTable } from "./metrics.ts";
import type { LoopLag } from "./process-watch.ts";

/** Codes of refusals of API callers, as in the responses. */
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

/** The objects from which the metrics of every Hearth process are read. */
export interface ProcessSources {
  readonly version: string;
  readonly commit: string;
  readonly clock: Pick<Clock, "monotonicMs">;
  /** Time at which the process started, in monotonic ms. */
  readonly startedMs: number;
  readonly health: Pick<Health, "counts">;
  readonly lag: Omit<LoopLag, typeof Symbol.dispose>;
  readonly logger: Pick<Logger, "dropped">;
  /** Number of refused API callers by code. Null before the API is served. */
  readonly refusals: ReadonlyMap<ApiRefusal, number> | null;
}

/** Declarations of the metrics of every Hearth process. */
export const PROCESS_METRICS = {
  hearth_api_refused_total: counter(
    "API requests refused before routing, by the code of the answer",
    ({ refusals }) => (refusals === null ? null : Object.fromEntries(refusals)),
    { code: API_REFUSALS },
  ),
  hearth_health: gauge(
    "Whether the problem is current: 1 or 0; see `hearth reference health`",
    ({ health }) => health.counts().map(({ code, isRaised }) => [code, isRaised ? 1 : 0]),
    { code: HEALTH_CODE_NAMES },
  ),
  hearth_health_raised_total: counter(
    "Times that the problem began",
    ({ health }) => health.counts().map(({ code, raised }) => [code, raised]),
    { code: HEALTH_CODE_NAMES },
  ),
  hearth_event_loop_lag_seconds: gauge(
    "Longest delay of the event loop in the last 15 s",
    ({ lag }) => lag.longestSeconds(),
  ),
  hearth_event_loop_turn_seconds: gauge(
    "Longest turn of the event loop in the last 15 s, including waits for a processor",
    ({ lag }) => lag.longestTurnSeconds(),
  ),
  hearth_event_loop_turn_cpu_seconds: gauge(
    "Most processor time in one turn of the event loop in the last 15 s",
    ({ lag }) => lag.longestTurnCpuSeconds(),
  ),
  hearth_event_loop_long_turns_total: counter(
    "Turns of the event loop with more than 5 ms of processor time",
    ({ lag }) => lag.longTurns,
  ),
  hearth_resident_bytes: gauge("Resident memory of the process, including the arena", () =>
    process.memoryUsage.rss(),
  ),
  hearth_cpu_seconds_total: counter("Processor time of the process", () => {
    const { user, system } = process.cpuUsage();
    return (user + system) / 1e6;
  }),
  hearth_log_lines_dropped_total: counter(
    "Log lines dropped by the flood limit",
    ({ logger }) => logger.dropped,
  ),
  hearth_uptime_seconds: gauge(
    "Seconds since the start",
    ({ clock, startedMs }) => (clock.monotonicMs() - startedMs) / 1_000,
  ),
  hearth_build_info: gauge(
    "Always 1; the labels describe the build",
    ({ version, commit }) => [[version, commit, 1]],
    { version: [], commit: [] },
  ),
} satisfies MetricTable<ProcessSources>;
