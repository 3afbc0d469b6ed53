import type { Receipt, Sender, SubmitOptions } from "../control/index.ts";
import type { BlockName } from "../core/index.ts";
import type { EventPage } from "../observability/activity/index.ts";
import type { HealthProblem } from "../observability/index.ts";
import type { ExplainQuery, Explanation, TreePage, TreeQuery } from "../store/index.ts";
import type { BudgetFigures, HoldKind, HoldPage } from "../store/pins/index.ts";
import type { PeersReport, PullsReport } from "./peer-routes.ts";
import type { SessionReport, SessionsReport } from "./session-routes.ts";
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
 * What HTTP asks of the control plane. Promises: `submit` and `flush` never throw for what a
 * command holds, limit and authorise by themselves, and answer when all is done; `tree` and
 * `explain` walk in slices and change nothing; the others answer at once from memory.
 */
export interface ControlServices {
  /** `contentType` is that of the body. */
  submit(
    body: Uint8Array,
    contentType: string | null,
    sender: Sender,
    options?: Pick<SubmitOptions, "signature" | "source">,
  ): Promise<Receipt>;
  /** Of this issuer, unless null. */
  find(id: string, issuer: string | null, account?: string): Receipt | null;
  flush(sender: Sender): Promise<Receipt>;
  /** How many scopes it had. */
  unfence(issuer: string, sender: Sender): number;
  /** At most `max` with an id above `after`, of one kind and owner unless null. */
  holds(options: {
    readonly kind: HoldKind | null;
    readonly owner: string | null;
    readonly after: number;
    readonly max: number;
  }): HoldPage;
  /** Of the host, and of this owner unless null. */
  figures(owner: string | null): BudgetFigures;
  tree(query: TreeQuery): Promise<TreePage>;
  explain(query: ExplainQuery): Promise<Explanation>;
  /** The clock of departures, in seconds. */
  storeSeconds(): number;
  /** At most `max` behind number `after`. */
  events(after: number, max: number): EventPage;
}

/** What HTTP asks about other hosts; at once, from memory. */
export interface PeerServices {
  report(): PeersReport;
  /** The latest pulls of what the name means, at most `max`; of all blocks where null. */
  pulls(name: BlockName | null, max: number): PullsReport;
}

/**
 * What HTTP asks of the agent. Every handler translates and calls one of these. Promises: `purge`
 * and `persist` change blocks, wait for the disk, and are in the audit log with who asked; nothing
 * else here changes anything or waits.
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
  purge(blocks: readonly PurgeRequest[], sender: Sender): Promise<PurgeOutcome[]>;
  /** Throws UNSUPPORTED without an SSD tier. */
  persist(sender: Sender): Promise<PersistReport>;
  metricsText(): Promise<string>;
  /** Content type that belongs to `metricsText`. */
  readonly metricsContentType: string;
  readonly control: ControlServices;
  readonly peers: PeerServices;
}
