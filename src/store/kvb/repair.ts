import { existsSync, mkdirSync, renameSync, unlinkSync } from "node:fs";
import { join } from "node:path";
import { type Clock, messageOf } from "../../core/index.ts";
import { FINDING_KINDS, type Finding } from "./findings.ts";
import { QUARANTINE_FOLDER, quarantinePath } from "./folder.ts";
import { giveFolderToOwner } from "./give-to-owner.ts";

export type Repair =
  | { readonly action: "quarantined"; readonly to: string }
  | { readonly action: "removed" | "row_dropped" | "next_start" | "left" }
  | { readonly action: "failed"; readonly why: string };

export interface RepairTools {
  readonly dir: string;
  readonly clock: Clock;
  dropRow(rowId: number): void;
}

/**
 * Deals with one finding as its kind says. What holds a block, or may hold one, is moved to the
 * quarantine and never removed. Throws nothing: what could not be done is `failed`.
 */
export function repairFinding(tools: RepairTools, finding: Finding): Repair {
  try {
    const repair = repairFile(tools, finding);
    if (finding.rowId !== null) tools.dropRow(finding.rowId);
    return repair;
  } catch (thrown) {
    return { action: "failed", why: messageOf(thrown) };
  }
}

function repairFile({ dir, clock }: RepairTools, { kind, path }: Finding): Repair {
  const { remedy } = FINDING_KINDS[kind];
  switch (remedy) {
    case "quarantine":
      // A shard that cannot be read is a matter for the file system's own fsck.
      if (!path.includes("/")) return { action: "left" };
      return { action: "quarantined", to: moveAway(dir, path, clock.wallMs()) };
    case "remove":
      unlinkSync(join(dir, path));
      return { action: "removed" };
    case "drop_row":
      return { action: "row_dropped" };
    case "next_start":
      return { action: "next_start" };
    case "none":
      return { action: "left" };
    default:
      return remedy satisfies never;
  }
}

function moveAway(dir: string, path: string, wallMs: number): string {
  const quarantine = join(dir, QUARANTINE_FOLDER);
  const made = mkdirSync(quarantine, { recursive: true, mode: 0o700 });
  if (made !== undefined) giveFolderToOwner(dir, quarantine);
  let to = quarantinePath(path, wallMs);
  while (existsSync(join(dir, to))) to = quarantinePath(path, ++wallMs);
  renameSync(join(dir, path), join(dir, to));
  return to;
}
