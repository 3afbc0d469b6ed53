import type { HealthProblem } from "../observability/index.ts";
import type { SessionReport, SessionsReport } from "./session-report.ts";
import type { StatusReport } from "./status-report.ts";

/** Whether the agent takes work now, and if not why: one line a reason, for people. */
export interface Readiness {
  readonly ready: boolean;
  readonly reasons: readonly string[];
}

export interface PurgeRequest {
  /** 32 bytes in hex. */
  readonly digest: string;
  readonly layer?: number | undefined;
}

export type PurgeOutcome = "done" | "missing" | "held" | "failed";

export interface PersistReport {
  readonly written: number;
  readonly skipped: number;
  readonly durable: boolean;
}

/**
 * What HTTP asks of the agent. Every handler translates and calls one of these. Promises: `purge`
 * and `persist` change blocks and wait for the disk; nothing else changes anything or waits.
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
  /** Removes blocks from every tier of this host; one outcome each. */
  purge(blocks: readonly PurgeRequest[]): Promise<PurgeOutcome[]>;
  /** Throws UNSUPPORTED without an SSD tier. */
  persist(): Promise<PersistReport>;
  metricsText(): Promise<string>;
  /** Content type that belongs to `metricsText`. */
  readonly metricsContentType: string;
}
