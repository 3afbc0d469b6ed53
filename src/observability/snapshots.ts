import type { RAM_FINDERS } from "./catalogue.ts";
import type { BUS_ANSWERS } from "./control-metrics.ts";
import type { LoopLag } from "./process-watch.ts";

type BusAnswer = (typeof BUS_ANSWERS)[number];

/**
 * Values that the agent's components report at scrape time. The shapes match the components' own
 * counters, so that each value is counted once.
 */

interface TierUse {
  readonly blocks: number;
  readonly bytes: number;
}

export interface StoreSnapshot {
  readonly ssd: SsdSnapshot | null;
  readonly tiers: { readonly ram: TierUse; readonly gpu: TierUse; readonly ssd: TierUse };
  readonly slots: { readonly used: number; readonly free: number; readonly quarantined: number };
  readonly arena: {
    readonly bytes: number;
    readonly readyBytes: number;
    readonly lockedBytes: number;
  };
  readonly table: { readonly blocks: number; readonly capacity: number };
  /** Checksum verifications of blocks in RAM since the start. */
  readonly checks: {
    readonly damaged: Readonly<Record<(typeof RAM_FINDERS)[number], number>>;
    readonly falseReports: number;
    readonly skippedReports: number;
    readonly unknownReports: number;
    readonly plantedBlocks: number;
    readonly scrubbedBlocks: number;
    readonly scrubbedBytes: number;
  };
  readonly sessions: number;
  /** Since the start. */
  readonly stats: {
    readonly matchBlocks: number;
    readonly acquireHits: number;
    readonly acquireMisses: number;
    readonly reservedBlocks: number;
    readonly presentBlocks: number;
    readonly fullBlocks: number;
    readonly committedBlocks: number;
    readonly committedBytes: number;
    readonly abortedBlocks: number;
    readonly corruptBlocks: number;
    readonly evictedBlocks: number;
    readonly evictedBytes: number;
    readonly evictionRuns: number;
  };
}

/** The SSD tier, if there is one. */
export interface SsdSnapshot {
  readonly usedBytes: number;
  readonly capacityBytes: number;
  readonly queuedBytes: number;
  readonly reading: number;
  readonly quarantinedFiles: number;
  /** Since the start. */
  readonly stats: {
    readonly writtenBlocks: number;
    readonly writtenBytes: number;
    readonly readBlocks: number;
    readonly readBytes: number;
    readonly evictedBlocks: number;
    readonly evictedBytes: number;
    readonly expiredBlocks: number;
    readonly corruptBlocks: number;
    readonly ramDamagedFiles: number;
    readonly skippedBlocks: number;
    readonly readErrors: number;
    readonly writeErrors: number;
    readonly sharedReads: number;
    readonly lateBlocks: number;
    readonly scrubbedBlocks: number;
    readonly scrubbedBytes: number;
    readonly purgedBlocks: number;
  };
}

export interface EngineSnapshot {
  readonly connections: number;
  readonly slotsHeld: number;
  readonly frames: readonly FrameCount[];
  readonly lookupsWaiting: number;
  readonly announcedBlocks: number;
  readonly reservations: {
    readonly bytes: number;
    /** Blocks since the start. */
    readonly takenBlocks: number;
    readonly unusedBlocks: number;
    readonly refusedBlocks: number;
  };
  /** Since the start. */
  readonly stats: {
    readonly connected: number;
    readonly refusedPeers: number;
    readonly cutOff: number;
    readonly quarantines: number;
    readonly faults: number;
  };
}

/** Number of frames with one operation and one status. */
export interface FrameCount {
  readonly operation: string;
  readonly status: string;
  readonly count: number;
}

export interface ProcessSnapshot {
  readonly loop: Pick<
    LoopLag,
    "longestSeconds" | "longestTurnSeconds" | "longestTurnCpuSeconds" | "longTurns"
  >;
  readonly logLinesDropped: number;
}

/** Pins, leases, commands and the bus. Counters since the start. */
export interface ControlSnapshot {
  readonly holds: Readonly<Record<"pin" | "retain" | "lease", HoldUse>> & {
    readonly relieved: number;
    readonly expired: number;
    readonly lost: number;
  };
  readonly keptBytes: number;
  readonly keptBytesMax: number;
  /** Carried out, by type and status of the receipt. */
  readonly commands: readonly {
    readonly type: string;
    readonly status: string;
    readonly count: number;
  }[];
  /** By the code at the start of the receipt's reason. */
  readonly refused: Readonly<Record<string, number>>;
  readonly duplicates: number;
  readonly running: number;
  readonly auditDropped: number;
  /** Null without an SSD tier. */
  readonly ledger: { readonly pending: number; readonly dropped: number } | null;
  /** Null without NATS. */
  readonly bus: {
    readonly status: string;
    readonly reconnects: number;
    readonly sentMessages: number;
    readonly receivedMessages: number;
    readonly ignoredMessages: number;
    readonly droppedMessages: number;
    readonly queuedMessages: number;
    readonly answers: Readonly<Record<BusAnswer, number>>;
    /** Null without a command stream. */
    readonly stream: {
      readonly status: string;
      readonly handled: number;
      readonly givenUp: number;
    } | null;
  } | null;
}

interface HoldUse {
  readonly holds: number;
  readonly blocks: number;
  readonly bytes: number;
}
