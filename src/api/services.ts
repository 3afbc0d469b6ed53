import type { ControlPlane, Sender } from "../control/index.ts";
import type { BlockName } from "../core/index.ts";
import type { EventLog } from "../observability/activity/index.ts";
import type { HealthProblem } from "../observability/index.ts";
import type { Inspector, TieredStore } from "../store/index.ts";
import type { Holds } from "../store/pins/index.ts";
import type { PeersReport, PullsReport } from "./peer-routes.ts";
import type { SessionReport, SessionsReport } from "./session-routes.ts";
import type { StatusReport } from "./status-report.ts";

/** Whether the agent accepts work now. If not, the reasons, one line each. */
export interface Readiness {
  readonly ready: boolean;
  readonly reasons: readonly string[];
}

/** Health and metrics functions that every Hearth process provides. */
export interface HealthServices {
  readiness(): Readiness;
  /** Returns the current problems, worst first. */
  health(): readonly HealthProblem[];
  metricsText(): Promise<string>;
  /** Content type of `metricsText`. */
  readonly metricsContentType: string;
}

export interface PurgeRequest {
  /** Digest of the block, 32 bytes in hex. */
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
 * The parts of the control plane that HTTP handlers use. `submit` and `flush` check authorization
 * and limits, never throw because of a command's content, and resolve when the command has ended.
 * The inspector runs in slices and changes nothing. All other functions return immediately from
 * memory.
 */
export interface ControlServices {
  readonly plane: Pick<ControlPlane, "submit" | "find" | "flush" | "unfence">;
  readonly holds: Pick<Holds, "list" | "figures">;
  readonly inspector: Pick<Inspector, "tree" | "explain">;
  readonly events: Pick<EventLog, "page">;
  /** The store's clock in seconds, by which the times of its removal records are given. */
  readonly store: Pick<TieredStore, "nowSeconds">;
}

/** The functions of peer exchange that HTTP handlers use. They return immediately from memory. */
export interface PeerServices {
  report(): PeersReport;
  /** Returns the latest fetches of a block, at most `max`. `name` null: of all blocks. */
  pulls(name: BlockName | null, max: number): PullsReport;
}

/**
 * The agent's functions that HTTP handlers use. Each handler translates a request and calls one
 * function. `purge` and `persist` change blocks, wait for the disk, and write an audit entry with
 * the sender. All others change nothing and do not wait.
 */
export interface ApiServices extends HealthServices {
  status(): StatusReport;
  /**
   * Returns at most `limit` sessions, the longest idle first. `after` is `next` of the previous
   * page; 0 for the first page.
   */
  sessions(after: number, limit: number): SessionsReport;
  /** Returns the sessions with this number, one per namespace that has it. */
  session(id: bigint): SessionReport[];
  /** Removes blocks from every tier of this host. Returns one outcome per block. */
  purge(blocks: readonly PurgeRequest[], sender: Sender): Promise<PurgeOutcome[]>;
  /** Writes the blocks in RAM to SSD. Throws UNSUPPORTED without an SSD tier. */
  persist(sender: Sender): Promise<PersistReport>;
  readonly control: ControlServices;
  readonly peers: PeerServices;
}
