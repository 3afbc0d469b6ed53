import type { Receipt, Sender, SubmitOptions } from "../control/index.ts";
import type { BlockName } from "../core/index.ts";
import type { EventPage } from "../observability/activity/index.ts";
import type { HealthProblem } from "../observability/index.ts";
import type { ExplainQuery, Explanation, TreePage, TreeQuery } from "../store/index.ts";
import type { BudgetFigures, PinKind, PinPage } from "../store/pins/index.ts";
import type { PeersReport, PullsReport } from "./peer-routes.ts";
import type { SessionReport, SessionsReport } from "./session-routes.ts";
import type { StatusReport } from "./status-report.ts";

/** Whether the agent accepts work now. If not, one line per reason. */
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
 * Control plane functions used by HTTP.
 * `submit` and `flush` never throw because of a command's content, enforce limits and
 * authorization, and resolve when everything is done. `tree` and `explain` run in slices and change
 * nothing. All others answer at once from memory.
 */
export interface ControlServices {
  /** Executes a command. `contentType` describes the body. */
  submit(
    body: Uint8Array,
    contentType: string | null,
    sender: Sender,
    options?: Pick<SubmitOptions, "signature" | "source">,
  ): Promise<Receipt>;
  /** Finds a receipt by id and issuer. Null: any issuer. */
  find(id: string, issuer: string | null, account?: string): Receipt | null;
  flush(sender: Sender): Promise<Receipt>;
  /** Returns the number of scopes that the issuer had. */
  unfence(issuer: string, sender: Sender): number;
  /** At most `max` entries with an id above `after`. Kind and owner filter unless null. */
  holds(options: {
    readonly kind: PinKind | null;
    readonly owner: string | null;
    readonly after: number;
    readonly max: number;
  }): PinPage;
  /** Budget of the host, and of this owner unless null. */
  figures(owner: string | null): BudgetFigures;
  tree(query: TreeQuery): Promise<TreePage>;
  explain(query: ExplainQuery): Promise<Explanation>;
  /** Clock of departures, in seconds. */
  storeSeconds(): number;
  /** At most `max` events after number `after`. */
  events(after: number, max: number): EventPage;
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
export interface ApiServices {
  status(): StatusReport;
  readiness(): Readiness;
  /** Current problems, worst first. */
  health(): readonly HealthProblem[];
  /** At most `limit` sessions after `after`, the longest idle first. */
  sessions(after: number, limit: number): SessionsReport;
  /** The session with this number, in each namespace that has one. */
  session(id: bigint): SessionReport[];
  /** Removes blocks from every tier of this host. Returns one outcome per block. */
  purge(blocks: readonly PurgeRequest[], sender: Sender): Promise<PurgeOutcome[]>;
  /** Throws UNSUPPORTED without an SSD tier. */
  persist(sender: Sender): Promise<PersistReport>;
  metricsText(): Promise<string>;
  /** Content type of `metricsText`. */
  readonly metricsContentType: string;
  readonly control: ControlServices;
  readonly peers: PeerServices;
}
