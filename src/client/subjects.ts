import { HearthError } from "../core/index.ts";

/** Where a worker listens. Throws USAGE for a name that would be several subjects, or none. */
export function commandSubject(worker: string): string {
  // Spaces end a subject, stars and angles stand for many, and this one worker is everybody.
  if (/^[^\s*>\0]+$/.test(worker) && worker !== "broadcast") return `kv-control-${worker}`;
  throw new HearthError("USAGE", `"${worker}" is no worker's name`);
}
