import type { WorkerId } from "../../core/index.ts";

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
