import type { Clock, NodeId } from "../../core/index.ts";
import type { BlockDisk, Native, Region } from "../../native/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { Departures } from "../departures.ts";
import type { BlockIndex } from "../index/index.ts";
import type { NamespaceMacs, Namespaces } from "../namespaces.ts";
import type { RamCheck } from "../ram-check.ts";
import type { BlockFiles } from "./block-files.ts";
import type { IoSlots } from "./io-slots.ts";

/** Names of the health conditions of the SSD tier. Their texts are in `observability`. */
export type SsdCondition =
  | "KV_SSD_CSUM"
  | "KV_SSD_FULL"
  | "KV_SSD_READ_ONLY"
  | "KV_SSD_SLOW"
  | "KV_SSD_HUNG"
  | "KV_SSD_REPLACED"
  | "FD_LIMIT"
  | "KV_SSD_ERRORS";

/** Raises and clears health conditions. Raising or clearing a condition again has no effect. */
export interface HealthSink {
  raise(condition: SsdCondition, detail: string, options?: { readonly forMs?: number }): void;
  clear(condition: SsdCondition): void;
}

/** Dependencies shared by the parts of the SSD tier. */
export interface SsdParts {
  readonly disk: BlockDisk;
  readonly index: BlockIndex;
  readonly native: Pick<Native, "blockKeys">;
  readonly table: BlockTable;
  readonly region: Region;
  readonly namespaces: Namespaces;
  readonly macs: NamespaceMacs;
  readonly clock: Clock;
  readonly ioSlots: IoSlots;
  readonly files: BlockFiles;
  readonly stats: SsdStats;
  readonly health: HealthSink;
  /** Number that identifies this run of the agent in file headers. */
  readonly incarnation: bigint;
  readonly departures: Departures;
  /**
   * Checks the copy in RAM before it is written to a file, and before damage is attributed to the
   * drive.
   */
  readonly checks: Pick<RamCheck, "check" | "placeDamaged">;
  /** Unix time in seconds. Advances with the monotonic clock. */
  nowSeconds(): number;
  /** Ends a soft pin of blocks on SSD and logs `why`. Returns false if there is none. */
  evictPins(why: string): boolean;
  /** Reports that the last copy of a pinned or leased block was lost without a command. */
  lost(node: NodeId, why: string): void;
  log(level: "info" | "warn" | "error", text: string, fields: Record<string, unknown>): void;
}

/** Counters of the SSD tier since the agent started. Only the tier writes them. */
export class SsdStats {
  writtenBlocks = 0;
  writtenBytes = 0;
  readBlocks = 0;
  readBytes = 0;
  /**
   * Blocks evicted to make room (`evicted`), or because they were unused for the configured time
   * (`expired`).
   */
  evictedBlocks = 0;
  evictedBytes = 0;
  expiredBlocks = 0;
  /** Damaged blocks whose files were moved to quarantine. */
  corruptBlocks = 0;
  /** Files removed because they contain bytes that were damaged in RAM. */
  ramDamagedFiles = 0;
  /** Blocks not written because the queue was full or writing was suspended. */
  skippedBlocks = 0;
  readErrors = 0;
  writeErrors = 0;
  /** Reads that joined a read of the same block in progress. */
  sharedReads = 0;
  /** Blocks that arrived after their reader's deadline, or not at all. */
  lateBlocks = 0;
  scrubbedBlocks = 0;
  scrubbedBytes = 0;
  purgedBlocks = 0;
}
