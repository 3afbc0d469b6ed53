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
