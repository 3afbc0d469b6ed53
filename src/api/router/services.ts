import type { ListedWorker } from "../../config/index.ts";
import type { WorkerId } from "../../core/index.ts";
import type {
  ActiveLoad,
  PolicyMarks,
  PrefixIndex,
  Router,
  Target,
  WorkerTable,
} from "../../router/index.ts";
import type { HealthServices } from "../common-routes.ts";

/** How far the KV events of an engine are followed. */
export interface EngineState {
  readonly endpoint: string;
  readonly isReached: boolean;
  readonly wasReached: boolean;
  readonly configuredBlockTokens: number | null;
  /** As its events say. */
  readonly blockTokens: number | null;
  /** Blocks whose prefixes are not known. */
  readonly orphanBlocks: number;
  readonly counts: {
    readonly events: number;
    /** Blocks in events that were applied. */
    readonly stored: number;
    readonly reannounced: number;
    readonly removed: number;
    readonly gaps: number;
    readonly restarts: number;
    readonly lostBatches: number;
    /** Events, of removals blocks, by reason. */
    readonly dropped: Readonly<Record<string, number>>;
  };
}

/** What HTTP asks of a router. Every handler translates and calls one of these. */
export interface RouterServices extends HealthServices {
  readonly router: Router;
  readonly table: WorkerTable;
  readonly load: Pick<ActiveLoad, "of">;
  readonly index: Pick<PrefixIndex, "stats" | "digests">;
  /** Workers of which no model is known, because their APIs have not said it. */
  pending(): readonly ListedWorker[];
  /** The engine of a worker without an agent; null: it is not followed. */
  engine(worker: WorkerId, rank: number): EngineState | null;
  /** What is told to policies. */
  readonly marks: PolicyMarks;
  /** A worker as a file has it: adds it, or changes what is known. Throws ROUTER_FULL. */
  register(worker: ListedWorker): readonly Target[];
  /** Forgets all ranks of it; how many there were. */
  unregister(worker: WorkerId): number;
}
