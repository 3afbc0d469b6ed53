import type { ControlPlane, Sender } from "../control/index.ts";
import type { BlockName } from "../core/index.ts";
import type { EventLog } from "../observability/activity/index.ts";
import type { HealthProblem } from "../observability/index.ts";
import type { Inspector, TieredStore } from "../store/index.ts";
import type { Holds } from "../store/pins/index.ts";
import type { PeersReport, PullsReport } from "./peer-routes.ts";
import type { SessionReport, SessionsReport } from "./session-routes.ts";
import type { StatusReport } from "./status-report.ts";

/** Whether the agent accepts work now. If not, one line per reason. */
export interface Readiness {
  readonly ready: boolean;
  readonly reasons: readonly string[];
}

/** Health and metrics services that every Hearth process has. */
export interface HealthServices {
  readiness(): Readiness;
  /** Current problems, worst first. */
  health(): readonly HealthProblem[];
  metricsText(): Promise<string>;
  /** Content type of `metricsText`. */
  readonly metricsContentType: string;
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
 * Parts of the control plane used by HTTP. `submit` and `flush` never throw because of a command's
 * content, enforce limits and authorization, and resolve when everything is done. The inspector
 * runs in slices and changes nothing. All others answer at once from memory.
 */
export interface ControlServices {
  readonly plane: Pick<ControlPlane, "submit" | "find" | "flush" | "unfence">;
  readonly holds: Pick<Holds, "list" | "figures">;
  readonly inspector: Pick<Inspector, "tree" | "explain">;
  readonly events: Pick<EventLog, "page">;
  /** Clock of departures. */
  readonly store: Pick<TieredStore, "nowSeconds">;
}

/** Peer functions used by HTTP. They answer at once from memory. */
export interface PeerServices {
  report(): PeersReport;
  /** The latest fetches of a block, at most `max`. Null: of all blocks. */
  pulls(name: BlockName | null, max: number): PullsReport;
}

/**
 * Agent functions used by HTTP. Each handler translates a request and calls one function.
 * `purge` and `persist` change blocks, wait for the disk, and write an audit entry with the sender.
 * All others change nothing and do not wait.
 */
export interface ApiServices extends HealthServices {
  status(): StatusReport;
  /** At most `limit` sessions after `after`, the longest idle first. */
  sessions(after: number, limit: number): SessionsReport;
  /** The session with this number, in each namespace that has one. */
  session(id: bigint): SessionReport[];
  /** Removes blocks from every tier of this host. Returns one outcome per block. */
  purge(blocks: readonly PurgeRequest[], sender: Sender): Promise<PurgeOutcome[]>;
  /** Throws UNSUPPORTED without an SSD tier. */
  persist(sender: Sender): Promise<PersistReport>;
  readonly control: ControlServices;
  readonly peers: PeerServices;
}
