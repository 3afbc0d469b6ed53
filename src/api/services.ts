import type { HealthProblem } from "../observability/index.ts";
import type { SessionReport, SessionsReport } from "./session-report.ts";
import type { StatusReport } from "./status-report.ts";

/** Whether the agent takes work now, and if not why: one line a reason, for people. */
export interface Readiness {
  readonly ready: boolean;
  readonly reasons: readonly string[];
}

/**
 * What HTTP asks of the agent. Every handler translates and calls one of these. Promises: none of
 * them changes anything, and none waits for an engine, a disk or a peer.
 */
export interface ApiServices {
  status(): StatusReport;
  readiness(): Readiness;
  /** What is the matter now, the worst first. */
  health(): readonly HealthProblem[];
  /** At most `limit` conversations behind `after`, the one committed to longest ago first. */
  sessions(after: number, limit: number): SessionsReport;
  /** The conversation with this number, in each namespace that has one. */
  session(id: bigint): SessionReport[];
  metricsText(): Promise<string>;
  /** Content type that belongs to `metricsText`. */
  readonly metricsContentType: string;
}
