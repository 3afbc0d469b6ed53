import type { WorkerId } from "../../core/index.ts";
import type {
  ResidencyBatch,
  ResidencyChange,
  ResidencyHeartbeat,
  ResidencySource,
  ResidencyTier,
} from "../../observability/activity/index.ts";

/** Messages of publishers on the events subject. */
export type ResidencyMessage =
  | { readonly kind: "batch"; readonly publishedAtMs: number; readonly batch: ResidencyBatch }
  | {
      readonly kind: "heartbeat";
      readonly publishedAtMs: number;
      readonly heartbeat: ResidencyHeartbeat;
    };

/**
 * A query to a publisher on the queries subject. `incarnation`: the run expected by the consumer;
 * null: any.
 */
export type ResidencyQuery =
  /** Changes from number `from` to `to`, inclusive; `to` null: to the latest. */
  | {
      readonly kind: "range";
      readonly incarnation: bigint | null;
      readonly from: number;
      readonly to: number | null;
    }
  /**
   * Part `part`, from 0, of a snapshot. `snapshot` null requests a new one and is answered with
   * part 0, whose number is then used in the queries for the other parts.
   */
  | {
      readonly kind: "snapshot";
      readonly incarnation: bigint | null;
      readonly snapshot: bigint | null;
      readonly part: number;
    };

/** Consecutive blocks in one tier, parents before children. */
export interface ResidencyRun {
  readonly tier: ResidencyTier;
  readonly parent: bigint | null;
  readonly hashes: BigUint64Array;
}

export type ResidencyAnswer =
  /**
   * As many changes from the requested number as fit. `lastSequence`: the latest change. Query
   * again for the rest.
   */
  | {
      readonly kind: "range";
      readonly batch: ResidencyBatch;
      readonly lastSequence: number;
    }
  /** The ring no longer has the first requested change: take a snapshot. */
  | {
      readonly kind: "evicted";
      readonly source: ResidencySource;
      readonly firstSequence: number;
      readonly lastSequence: number;
    }
  /** The number has not been assigned yet. */
  | { readonly kind: "too_new"; readonly source: ResidencySource; readonly lastSequence: number }
  | ResidencySnapshotPart
  /** The snapshot is not kept or has no such part: request another one. */
  | { readonly kind: "no_snapshot"; readonly source: ResidencySource }
  /** The publisher is in another run than the expected one: `source` has its own. */
  | { readonly kind: "other_incarnation"; readonly source: ResidencySource }
  /** The limit of concurrent snapshots is reached: try later. */
  | { readonly kind: "busy"; readonly source: ResidencySource; readonly retryMs: number }
  | { readonly kind: "refused"; readonly why: string };

/** A part of the state right after the change `sequence`. */
export interface ResidencySnapshotPart {
  readonly kind: "snapshot";
  readonly source: ResidencySource;
  readonly snapshot: bigint;
  readonly sequence: number;
  readonly part: number;
  readonly isLast: boolean;
  /** As in a heartbeat. */
  readonly isDeviceKnown: boolean;
  readonly runs: readonly ResidencyRun[];
}

/** Limits of one message, for both sides. */
export const RESIDENCY_LIMITS = {
  /** The usual limit of a broker is 1 MiB, the maximum 64 MiB. */
  messageBytesMax: 8 * 1024 * 1024,
  /** For a live batch, as in Dynamo's own publishers. */
  changesMax: 128,
  blocksMax: 8_192,
  /** For a range or a part of a snapshot. */
  packedChangesMax: 65_536,
  spacesMax: 16,
  textBytesMax: 512,
  blockTokensMax: 1_048_576,
  rankMax: 65_535,
  everyMsMin: 50,
  everyMsMax: 300_000,
  retryMsMax: 60_000,
} as const;

/** Number of blocks in a change; 0 for `cleared`. */
export function blocksIn(change: ResidencyChange): number {
  return change.kind === "cleared" ? 0 : change.hashes.length;
}

/** One rank of one worker, or a wildcard. */
export interface SubjectOf {
  readonly worker: WorkerId | "*";
  readonly rank: number | "*";
}

/** All ranks of all workers. */
export const ANY: SubjectOf = { worker: "*", rank: "*" };

/** Subject of a rank's batches and heartbeats: `kv-events-<cluster>.<worker>.<rank>`. */
export function eventsSubject(cluster: string, { worker, rank }: SubjectOf): string {
  return `kv-events-${cluster.replaceAll(".", "_")}.${worker}.${rank}`;
}

/** Subject of queries to a rank for a range or a snapshot. */
export function queriesSubject(cluster: string, { worker, rank }: SubjectOf): string {
  return `kv-events-ask-${cluster.replaceAll(".", "_")}.${worker}.${rank}`;
}
