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
