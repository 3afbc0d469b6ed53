import { dirname } from "node:path";
import { HearthError } from "../../../core/index.ts";
import type { IndexOwner } from "../protocol.ts";

export type Owner = Pick<IndexOwner, "worker" | "machine">;

/** Throws INDEX_FOREIGN where a file is another worker's or machine's. */
export function mustBeOurs(path: string, owner: Owner, wanted: Owner): void {
  const { worker, machine } = owner;
  if (worker === wanted.worker && machine === wanted.machine) return;
  const folder = dirname(path);
  const whose = `worker "${worker}" on machine "${machine}"`;
  throw new HearthError("INDEX_FOREIGN", `the index in ${folder} belongs to ${whose}`, {
    fix: "name another index_dir, or remove that folder if its cache is no longer wanted",
  });
}
