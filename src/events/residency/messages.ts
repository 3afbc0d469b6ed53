import type { WorkerId } from "../../core/index.ts";
import type { ResidencyChange } from "../../observability/activity/index.ts";

/** Limits on one message, checked by sender and receiver. */
export const RESIDENCY_LIMITS = {
  /** Maximum bytes of a message. Brokers usually accept 1 MiB, at most 64 MiB. */
  messageBytesMax: 8 * 1024 * 1024,
  /** Maximum changes in a live batch, the same as in Dynamo's own publishers. */
  changesMax: 128,
  blocksMax: 8_192,
  /** Maximum changes in the reply to a range query, or in a part of a snapshot. */
  packedChangesMax: 65_536,
  spacesMax: 16,
  textBytesMax: 512,
  blockTokensMax: 1_048_576,
  rankMax: 65_535,
  everyMsMin: 50,
  everyMsMax: 300_000,
  retryMsMax: 60_000,
} as const;

/** Returns the number of blocks in a change; 0 for `cleared`. */
export function blocksIn(change: ResidencyChange): number {
  return change.kind === "cleared" ? 0 : change.hashes.length;
}

/** Identifies one rank of one worker, or contains wildcards. */
export interface SubjectOf {
  readonly worker: WorkerId | "*";
  readonly rank: number | "*";
}

/** Wildcards for all ranks of all workers. */
export const ANY: SubjectOf = { worker: "*", rank: "*" };

/**
 * Returns the subject of a rank's batches and heartbeats: `kv-events-<cluster>.<worker>.<rank>`.
 */
export function eventsSubject(cluster: string, { worker, rank }: SubjectOf): string {
  return `kv-events-${cluster.replaceAll(".", "_")}.${worker}.${rank}`;
}

/** Returns the subject of queries to a rank for a range of changes or a snapshot. */
export function queriesSubject(cluster: string, { worker, rank }: SubjectOf): string {
  return `kv-events-ask-${cluster.replaceAll(".", "_")}.${worker}.${rank}`;
}
