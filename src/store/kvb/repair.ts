import { existsSync, mkdirSync, renameSync, unlinkSync } from "node:fs";
import { join } from "node:path";
import { type Clock, messageOf } from "../../core/index.ts";
import {
  checkFolder,
  emptyTally,
  FINDING_KINDS,
  type Finding,
  type FindingKind,
  type FolderCheck,
  type FolderTally,
} from "./check-folder.ts";
import { giveFolderToOwner } from "./claim-folder.ts";
import { QUARANTINE_FOLDER, quarantinePath } from "./folder-layout.ts";

export interface ReportOptions extends Omit<FolderCheck, "tally" | "onSlice"> {
  readonly clock: Clock;
  /**
   * Null: change nothing. Otherwise repair the findings, and drop their index rows with `dropRow`.
   */
  readonly repair: { dropRow(rowId: number): void } | null;
  /** Findings that were made before the check. */
  readonly findings: readonly Finding[];
  /** Maximum number of findings to return. All are counted. */
  readonly keepMax: number;
  onProgress(tally: FolderTally, problems: number): void;
}

export interface ReportedFinding extends Finding {
  /** The repair and its result; null if no repair was requested. */
  readonly repair: Repair | null;
}

export interface FolderReport {
  readonly tally: FolderTally;
  /** Number of findings per kind; kinds without findings are absent. */
  readonly counts: Partial<Record<FindingKind, number>>;
  /** Number of repairs per action. */
  readonly repairs: Partial<Record<Repair["action"], number>>;
  readonly problems: number;
  /** Number of problems that neither this repair nor the next start of the agent solves. */
  readonly unsolved: number;
  readonly first: readonly ReportedFinding[];
}

/** Checks a folder, repairs it if requested, and returns the counts and the first findings. */
export async function reportFolder(options: ReportOptions): Promise<FolderReport> {
  const { dir, clock, repair, keepMax, onProgress } = options;
  const tally = emptyTally();
  const counts: FolderReport["counts"] = {};
  const repairs: FolderReport["repairs"] = {};
  const first: ReportedFinding[] = [];
  let [problems, unsolved] = [0, 0];
  const take = (finding: Finding) => {
    const done = repair && repairFinding({ dir, clock, dropRow: repair.dropRow }, finding);
    counts[finding.kind] = (counts[finding.kind] ?? 0) + 1;
    if (done !== null) repairs[done.action] = (repairs[done.action] ?? 0) + 1;
    if (FINDING_KINDS[finding.kind].isProblem) {
      problems++;
      if (done === null || done.action === "failed" || done.action === "left") unsolved++;
    }
    if (first.length < keepMax) first.push({ ...finding, repair: done });
  };
  for (const finding of options.findings) take(finding);
  const onSlice = () => onProgress(tally, problems);
  for await (const finding of checkFolder({ ...options, tally, onSlice })) take(finding);
  return { tally, counts, repairs, problems, unsolved, first };
}

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
 * Repairs one finding as its kind prescribes. A file that contains or may contain a block is moved
 * to quarantine, never removed. Does not throw: an error becomes the action `failed`.
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
      // Leave a shard folder that cannot be read: it needs a check of the file system.
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
