import type { Clock, NodeId } from "../../core/index.ts";
import type { BlockDisk, Native, Region } from "../../native/index.ts";
import type { BlockTable } from "../blocks/index.ts";
import type { Departures } from "../departures.ts";
import type { BlockIndex } from "../index/index.ts";
import type { NamespaceMacs, Namespaces } from "../namespaces.ts";
import type { RamCheck } from "../ram-check.ts";
import type { BlockFiles } from "./block-files.ts";
import type { DiskSchedule } from "./io-slots.ts";

/** Conditions of the tier that people should hear of; `observability` has words for each. */
export type SsdCondition =
  | "KV_SSD_CSUM"
  | "KV_SSD_FULL"
  | "KV_SSD_READ_ONLY"
  | "KV_SSD_SLOW"
  | "KV_SSD_HUNG"
  | "KV_SSD_REPLACED"
  | "FD_LIMIT"
  | "KV_SSD_ERRORS";

/** Where conditions are raised and cleared; doing so again changes nothing. */
export interface HealthSink {
  raise(condition: SsdCondition, detail: string, options?: { readonly forMs?: number }): void;
  clear(condition: SsdCondition): void;
}

/** What the parts of the SSD tier share. */
export interface SsdParts {
  readonly disk: BlockDisk;
  readonly index: BlockIndex;
  readonly native: Pick<Native, "blockKeys">;
  readonly table: BlockTable;
  readonly region: Region;
  readonly namespaces: Namespaces;
  readonly macs: NamespaceMacs;
  readonly clock: Clock;
  readonly schedule: DiskSchedule;
  readonly files: BlockFiles;
  readonly stats: SsdStats;
  readonly health: HealthSink;
  /** Of this run of the agent, as headers carry it. */
  readonly incarnation: bigint;
  readonly departures: Departures;
  /** Looks at the copy in RAM before a file is written from it, and before the drive is blamed. */
  readonly checks: Pick<RamCheck, "check" | "placeDamaged">;
  /** Seconds since 1970, advancing with the monotonic clock. */
  nowSeconds(): number;
  /** Ends a soft pin that keeps blocks on SSD, for what `why` says; false where there is none. */
  relieve(why: string): boolean;
  /** The last copy of a block that is kept is gone, and nobody asked for that. */
  lost(node: NodeId, why: string): void;
  log(level: "info" | "warn" | "error", text: string, fields: Record<string, unknown>): void;
}

/** What the SSD tier counted since the start. Written by the tier alone. */
export interface SsdStats {
  writtenBlocks: number;
  writtenBytes: number;
  readBlocks: number;
  readBytes: number;
  /** Left the tier for want of room, or because nobody used them for so long. */
  evictedBlocks: number;
  evictedBytes: number;
  expiredBlocks: number;
  /** Not what they should be: moved to quarantine. */
  corruptBlocks: number;
  /** Files removed because they had what damaged RAM gave them. */
  ramDamagedFiles: number;
  /** Wanted on SSD, and not written: no room in the queue, or the tier takes nothing. */
  skippedBlocks: number;
  readErrors: number;
  writeErrors: number;
  /** Reads that were asked for while an equal one was under way. */
  sharedReads: number;
  /** Blocks whose reader did not wait for them any longer. */
  lateBlocks: number;
  scrubbedBlocks: number;
  scrubbedBytes: number;
  purgedBlocks: number;
}

export function emptySsdStats(): SsdStats {
  return {
    writtenBlocks: 0,
    writtenBytes: 0,
    readBlocks: 0,
    readBytes: 0,
    evictedBlocks: 0,
    evictedBytes: 0,
    expiredBlocks: 0,
    corruptBlocks: 0,
    ramDamagedFiles: 0,
    skippedBlocks: 0,
    readErrors: 0,
    writeErrors: 0,
    sharedReads: 0,
    lateBlocks: 0,
    scrubbedBlocks: 0,
    scrubbedBytes: 0,
    purgedBlocks: 0,
  };
}

/** What status and metrics show of the tier, beside what it counted. */
export interface SsdSnapshot {
  readonly blocks: number;
  readonly bytes: number;
  readonly usedBytes: number;
  readonly capacityBytes: number;
  readonly queuedBlocks: number;
  readonly queuedBytes: number;
  readonly reading: number;
  readonly quarantinedFiles: number;
  readonly method: string;
  readonly direct: boolean;
  readonly registered: boolean;
  /** Why nothing is written, or read; null where it is. */
  readonly writesStopped: string | null;
  readonly readsStopped: string | null;
}
