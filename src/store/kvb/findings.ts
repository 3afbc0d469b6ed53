import { existsSync, mkdirSync, renameSync, unlinkSync } from "node:fs";
import { join } from "node:path";
import { type Clock, messageOf } from "../../core/index.ts";
import { checkFolder, emptyTally, type FolderCheck, type FolderTally } from "./check-folder.ts";
import { giveFolderToOwner } from "./claim-folder.ts";
import { QUARANTINE_FOLDER, quarantinePath } from "./folder-layout.ts";

/** How a repair deals with a finding; `next_start`: the agent does, when it starts. */
export type Remedy = "quarantine" | "remove" | "drop_row" | "next_start" | "none";

interface Kind {
  readonly meaning: string;
  readonly remedy: Remedy;
  /** False: worth a line, and no reason to call the folder damaged. */
  readonly isProblem: boolean;
}

const damaged = (meaning: string): Kind => ({ meaning, remedy: "quarantine", isProblem: true });

/** What a check of an SSD folder can find; `docs/on-disk-format.md` shows the same table. */
export const FINDING_KINDS = {
  header: damaged("the header is damaged, or of an unknown version"),
  size: damaged("the file is longer or shorter than its header says"),
  payload: damaged("the payload is not what its checksum says"),
  padding: damaged("bytes behind the payload are not zero"),
  unreadable: damaged("the system cannot read the file"),
  misplaced: damaged("the block of this file belongs under another name"),
  duplicate: damaged("another file holds the same block"),
  row_differs: damaged("the index has the block with another length, checksum or namespace"),
  leftover: {
    meaning: "a file that was being written when its writer died",
    remedy: "remove",
    isProblem: true,
  },
  no_row: {
    meaning: "the index does not know the block: the next start keeps or removes it",
    remedy: "next_start",
    isProblem: true,
  },
  no_file: {
    meaning: "the index knows a block whose file is not there",
    remedy: "drop_row",
    isProblem: true,
  },
  row_of_damaged: {
    meaning: "the index knows a block whose file is damaged",
    remedy: "drop_row",
    isProblem: false,
  },
  index: {
    meaning: "the index cannot be read: the next start makes a new one from the headers",
    remedy: "next_start",
    isProblem: true,
  },
  owner: { meaning: "owner.json is damaged", remedy: "none", isProblem: true },
  no_owner: {
    meaning: "there is no owner.json: the next start takes the folder for its own",
    remedy: "next_start",
    isProblem: false,
  },
  foreign: { meaning: "not of Hearth, left alone", remedy: "none", isProblem: false },
} as const satisfies Record<string, Kind>;

export type FindingKind = keyof typeof FINDING_KINDS;

export interface Finding {
  readonly kind: FindingKind;
  /** Below the SSD folder. */
  readonly path: string;
  /** What is wrong, so that "PATH: WHY" reads well. */
  readonly why: string;
  /** Of the index, where a row is to blame or goes with the file. */
  readonly rowId: number | null;
}

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
