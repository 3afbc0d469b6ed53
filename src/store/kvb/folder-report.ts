import type { Clock } from "../../core/index.ts";
import { checkFolder, emptyTally, type FolderCheck, type FolderTally } from "./check-folder.ts";
import { FINDING_KINDS, type Finding, type FindingKind } from "./findings.ts";
import { type Repair, repairFinding } from "./repair.ts";

export interface ReportOptions extends Omit<FolderCheck, "tally" | "onSlice"> {
  readonly clock: Clock;
  /** Null: change nothing. Else repair, and drop these rows of the index. */
  readonly repair: { dropRow(rowId: number): void } | null;
  /** What is known before the check begins. */
  readonly findings: readonly Finding[];
  /** How many findings to keep; all are counted. */
  readonly keepMax: number;
  onProgress(tally: FolderTally, problems: number): void;
}

export interface ReportedFinding extends Finding {
  /** Null: nothing was to be changed. */
  readonly repair: Repair | null;
}

export interface FolderReport {
  readonly tally: FolderTally;
  /** How often each kind was found; only those that were. */
  readonly counts: Partial<Record<FindingKind, number>>;
  /** How often each was done. */
  readonly repairs: Partial<Record<Repair["action"], number>>;
  readonly problems: number;
  /** Problems that neither this repair nor the next start of an agent ends. */
  readonly unsolved: number;
  readonly first: readonly ReportedFinding[];
}

/** Checks a folder, repairs it where asked to, and adds up. */
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
