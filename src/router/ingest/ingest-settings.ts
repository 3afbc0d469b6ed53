import type { PendingLimits } from "./pending.ts";
import type { RecoveryLimits } from "./recovery-queue.ts";

export interface IntakeSettings {
  /** Sources that are followed at most; what others say is counted. */
  readonly targetsMax: number;
  /** So many heartbeats may be missing before a source counts as stale, and as gone. */
  readonly staleBeats: number;
  readonly goneBeats: number;
  /** A hole in the numbers may close by itself for so long. */
  readonly reorderMs: number;
  readonly pending: PendingLimits;
  readonly recovery: RecoveryLimits;
  /** How long one answer to a question may take. */
  readonly answerMs: number;
  /** Blocks in one picture; a larger one is refused. */
  readonly pictureBlocksMax: number;
}

export const INTAKE_DEFAULTS: IntakeSettings = {
  targetsMax: 4_096,
  staleBeats: 3,
  goneBeats: 15,
  reorderMs: 20,
  pending: { hashesMax: 4 * 2 ** 20, batchesPerSourceMax: 1_024 },
  recovery: { atOnceMax: 8, retryMinMs: 200, retryMaxMs: 30_000 },
  answerMs: 2_000,
  pictureBlocksMax: 2 ** 25,
};

/** Sums since the start, for metrics. */
export interface IntakeCounts {
  batches: number;
  changes: number;
  heartbeats: number;
  /** Batches that were there already. */
  duplicates: number;
  /** Batches that came before one they follow. */
  early: number;
  /** Of an earlier run than the one that is followed. */
  stale: number;
  /** Of sources of which no heartbeat came yet. */
  unannounced: number;
  incarnations: number;
  gaps: number;
  ranges: number;
  pictures: number;
  picturesFailed: number;
  /** Digests that differed from those of the source. */
  mismatches: number;
  /** Digests that differed from those of another router. */
  doubts: number;
  /** Messages that cannot be read, or say they are another's. */
  refused: number;
  /** Sources beyond what may be followed. */
  overfull: number;
}

export function noCounts(): IntakeCounts {
  return {
    ...{ batches: 0, changes: 0, heartbeats: 0, duplicates: 0, early: 0, stale: 0 },
    ...{ unannounced: 0, incarnations: 0, gaps: 0, ranges: 0, pictures: 0, picturesFailed: 0 },
    ...{ mismatches: 0, doubts: 0, refused: 0, overfull: 0 },
  };
}

export interface IntakeStats extends IntakeCounts {
  readonly sources: number;
  readonly known: number;
  readonly stalled: number;
  /** Batches that wait for those before them found no room. */
  readonly pendingDropped: number;
  readonly pendingHashes: number;
  readonly recoveriesRunning: number;
  readonly recoveriesWaiting: number;
}
