import type { WorkerId } from "../../core/index.ts";
import type {
  ResidencyBatch,
  ResidencyChange,
  ResidencyHeartbeat,
  ResidencySource,
  ResidencyTier,
} from "../../observability/activity/index.ts";

/** What publishers say on the subject of their events. */
export type ResidencyMessage =
  | { readonly kind: "batch"; readonly publishedAtMs: number; readonly batch: ResidencyBatch }
  | {
      readonly kind: "heartbeat";
      readonly publishedAtMs: number;
      readonly heartbeat: ResidencyHeartbeat;
    };

/**
 * What is asked of a publisher, on the subject for questions. `incarnation` is the run that the
 * asker believes in; null: whichever there is.
 */
export type ResidencyQuestion =
  /** Changes from number `from` to `to`, both included; `to` null: to the latest. */
  | {
      readonly kind: "range";
      readonly incarnation: bigint | null;
      readonly from: number;
      readonly to: number | null;
    }
  /**
   * Part `part`, from 0, of all that is held. `snapshot` null begins a new one and is answered with
   * part 0; its number is then named in the questions for the others.
   */
  | {
      readonly kind: "snapshot";
      readonly incarnation: bigint | null;
      readonly snapshot: bigint | null;
      readonly part: number;
    };

/** Consecutive blocks that are held in one tier, parents before children. */
export interface ResidencyRun {
  readonly tier: ResidencyTier;
  readonly parent: bigint | null;
  readonly hashes: BigUint64Array;
}

export type ResidencyAnswer =
  /**
   * Changes from the number asked for on: as many as fit. `lastSequence`: the latest there is. Ask
   * again for what is behind the last one that came.
   */
  | {
      readonly kind: "range";
      readonly batch: ResidencyBatch;
      readonly lastSequence: number;
    }
  /** The ring no longer has the first one asked for: take a snapshot. */
  | {
      readonly kind: "evicted";
      readonly source: ResidencySource;
      readonly firstSequence: number;
      readonly lastSequence: number;
    }
  /** Nothing has that number yet. */
  | { readonly kind: "too_new"; readonly source: ResidencySource; readonly lastSequence: number }
  | ResidencySnapshotPart
  /** That snapshot is not kept, or has no such part: begin another. */
  | { readonly kind: "no_snapshot"; readonly source: ResidencySource }
  /** The publisher is in another run than the asker believes: its own is in `source`. */
  | { readonly kind: "other_incarnation"; readonly source: ResidencySource }
  /** Not now: as many snapshots are being read as may. */
  | { readonly kind: "busy"; readonly source: ResidencySource; readonly retryMs: number }
  | { readonly kind: "refused"; readonly why: string };

/** A part of all that was held when the change `sequence` had just happened. */
export interface ResidencySnapshotPart {
  readonly kind: "snapshot";
  readonly source: ResidencySource;
  readonly snapshot: bigint;
  readonly sequence: number;
  readonly part: number;
  readonly isLast: boolean;
  /** As of a heartbeat. */
  readonly isDeviceKnown: boolean;
  readonly runs: readonly ResidencyRun[];
}

/** Caps of one message, on both sides. */
export const RESIDENCY_LIMITS = {
  /** A broker's usual limit is 1 MiB, and 64 MiB at most. */
  messageBytesMax: 8 * 1024 * 1024,
  /** Of a live batch: what Dynamo's own publishers keep to. */
  changesMax: 128,
  blocksMax: 8_192,
  /** Of a range or of a part of a snapshot. */
  packedChangesMax: 65_536,
  spacesMax: 16,
  textBytesMax: 512,
  blockTokensMax: 1_048_576,
  rankMax: 65_535,
  everyMsMin: 50,
  everyMsMax: 300_000,
  retryMsMax: 60_000,
} as const;

/** Where a change or a run has so many blocks: none for `cleared`. */
export function blocksIn(change: ResidencyChange): number {
  return change.kind === "cleared" ? 0 : change.hashes.length;
}

/** One rank of one worker, or any of them. */
export interface SubjectOf {
  readonly worker: WorkerId | "*";
  readonly rank: number | "*";
}

/** Every one there is. */
export const ANY: SubjectOf = { worker: "*", rank: "*" };

/** Where ranks publish batches and heartbeats: `kv-events-<cluster>.<worker>.<rank>`. */
export function eventsSubject(cluster: string, { worker, rank }: SubjectOf): string {
  return `kv-events-${cluster.replaceAll(".", "_")}.${worker}.${rank}`;
}

/** Where a rank is asked for a range or a snapshot. */
export function questionsSubject(cluster: string, { worker, rank }: SubjectOf): string {
  return `kv-events-ask-${cluster.replaceAll(".", "_")}.${worker}.${rank}`;
}
