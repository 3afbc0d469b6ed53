import type { WorkerId } from "../../core/index.ts";
import type { ResidencyChange } from "../../observability/activity/index.ts";

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
