import { existsSync } from "node:fs";
import { join, resolve } from "node:path";
import { formatBytes, HearthError, integerKind } from "../../core/index.ts";
import { loadNative, type Native, NativeError } from "../../native/index.ts";
import { type InspectedIndex, inspectIndex } from "../../store/index/index.ts";
import {
  type Finding,
  type FolderReport,
  INDEX_FOLDER,
  isSsdFolder,
  LOCK_FILE,
  lockFolder,
  type OwnerFile,
  type ReportedFinding,
  readOwner,
  reportFolder,
} from "../../store/kvb/index.ts";
import {
  defineCommand,
  folderKind,
  jsonFlag,
  optional,
  requiredArgument,
  toggle,
  withDefault,
} from "../command.ts";
import type { Io } from "../terminal.ts";
import { createProgress, printJson } from "../terminal.ts";

export const command = defineCommand({
  description: [
    "Walks an SSD folder (`ssd_dir`) and compares names, headers, sizes and the index with each " +
      "other; with --deep it reads every payload and compares its checksum. Nothing is changed " +
      "without --repair. No agent may use the folder, and none can start on it meanwhile.",
    "--repair moves files that are damaged, misplaced or of a generation that differs from the " +
      "index to DIR/quarantine, removes leftovers of interrupted writes and drops rows without a " +
      "file. It never removes a file that holds a block, and ignores foreign files.",
    "The exit code is 0 if there are no problems, or if all problems were repaired or will be " +
      "resolved by the next start of an agent; else 1. After a crash, rows and files may differ " +
      "and leftovers may exist. This is not damage: the next start resolves it.",
  ],
  arguments: { dir: requiredArgument(folderKind, "the ssd_dir of an agent") },
  flags: {
    deep: toggle("read payloads too, and compare their checksums"),
    repair: toggle("repair what can be repaired"),
    index: optional(folderKind, "the index_dir of the agent, if it is not DIR/index"),
    show: withDefault(
      integerKind({ min: 0, max: 1_000_000 }),
      20,
      "problems to list; all are counted",
    ),
    json: jsonFlag,
  },
  examples: [
    { words: "fsck /var/cache/hearth", what: "names, headers and sizes against the index" },
    { words: "fsck --deep /var/cache/hearth", what: "the same, and every payload is read" },
    { words: "fsck --deep --repair /var/cache/hearth", what: "damaged files go to quarantine" },
    { words: "fsck --json --show 1000 /var/cache/hearth", what: "a report for scripts" },
  ],
  exits: ["interrupted"],
  async run({ flags, arguments: { dir: given }, io, clock, interrupt }) {
    const { deep, repair, show: keepMax, json } = flags;
    const dir = resolve(given);
    requireSsdFolder(dir);
    const native = loadNative();
    using _lock = lockForCheck(native, dir, repair);
    const owner = readOwner(dir);
    const path = resolve(flags.index ?? join(dir, INDEX_FOLDER));
    using index = new CheckedIndex(path);
    const progress = createProgress({ io, clock, json });
    const startMs = clock.monotonicMs();
    const report = await reportFolder({
      dir,
      native,
      clock,
      deep,
      index: index.rows,
      findings: index.findings,
      repair: repair ? { dropRow: (rowId) => index.dropRow(rowId) } : null,
      keepMax,
      signal: interrupt(),
      onProgress: ({ files, fileBytes }, problems) =>
        progress.update(`${files} files, ${formatBytes(fileBytes)}, ${problems} problems`),
    });
    index.finish();
    progress.end();
    const seconds = (clock.monotonicMs() - startMs) / 1_000;
    const shown = { dir, owner, deep, indexed: index.rows !== null, seconds, report };
    if (json) printJson(io, jsonOf(shown));
    else printReport(io, shown);
    return report.unsolved === 0 ? "ok" : "failed";
  },
});

interface Shown {
  readonly dir: string;
  readonly owner: OwnerFile;
  readonly deep: boolean;
  /** True if the rows of the index were compared with the files. */
  readonly indexed: boolean;
  readonly seconds: number;
  readonly report: FolderReport;
}

function requireSsdFolder(dir: string): void {
  if (existsSync(dir) && isSsdFolder(dir)) return;
  throw new HearthError("USAGE", `${dir} is not an SSD folder of Hearth`, {
    fix: "give the ssd_dir of its configuration",
  });
}

/**
 * Locks the folder so that no agent uses it while files and index rows are compared. A check
 * without repair writes nothing, so it locks nothing without a lock file (no agent uses the
 * folder) or if the file system is read-only (no agent can).
 */
function lockForCheck(native: Native, dir: string, repair: boolean): Disposable {
  const none = { [Symbol.dispose]: () => undefined };
  if (!repair && !existsSync(join(dir, LOCK_FILE))) return none;
  try {
    return lockFolder(native, dir);
  } catch (thrown) {
    if (!repair && thrown instanceof NativeError && thrown.status === "read_only") return none;
    throw thrown;
  }
}

function ownerLine({ dir, owner }: Shown): string {
  if (owner.kind === "none") return `${dir}: no owner`;
  if (owner.kind === "damaged") return `${dir}: owner.json ${owner.why}`;
  const { worker, created } = owner.owner;
  return `${dir}: worker ${worker}, since ${created.slice(0, 10)}`;
}

function findingLine({ path, why, repair }: ReportedFinding): string {
  if (repair === null || repair.action === "left") return `  ${path}: ${why}`;
  const done = {
    quarantined: () => `moved to ${"to" in repair ? repair.to : ""}`,
    removed: () => "removed",
    row_dropped: () => "row dropped",
    next_start: () => "left to the next start",
    failed: () => `not repaired: ${"why" in repair ? repair.why : ""}`,
  };
  return `  ${path}: ${why}; ${done[repair.action]()}`;
}

function counted(counts: Readonly<Record<string, number>>): string {
  const parts = Object.entries(counts).map(([name, count]) => `${name} ${count}`);
  return parts.length === 0 ? "none" : parts.join(", ");
}

function printReport(io: Io, shown: Shown): void {
  const { report, deep, indexed, seconds } = shown;
  const { tally, counts, repairs, first } = report;
  const found = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const lines = [ownerLine(shown), ...first.map(findingLine)];
  if (found > first.length) lines.push(`  and ${found - first.length} more`);
  lines.push(
    `files       ${tally.files}, ${formatBytes(tally.allocatedBytes)} on disk`,
    `sound       ${tally.sound} blocks, ${formatBytes(tally.payloadBytes)}`,
    `rows        ${indexed ? tally.rows : "no index was read: only files were checked"}`,
    `findings    ${counted(counts)}`,
  );
  if (tally.quarantined > 0) lines.push(`quarantine  ${tally.quarantined} files from before`);
  if (Object.keys(repairs).length > 0) lines.push(`repairs     ${counted(repairs)}`);
  if (!deep) lines.push("payloads were not read: --deep reads them");
  lines.push(`${verdict(report)} (${seconds.toFixed(1)} s)`);
  io.out.write(`${lines.join("\n")}\n`);
}

function verdict({ problems, unsolved, repairs }: FolderReport): string {
  if (problems === 0) return "clean";
  if (unsolved === 0) return "repaired";
  const wasRepaired = Object.keys(repairs).length > 0;
  const count = wasRepaired ? unsolved : problems;
  return `${count === 1 ? "1 problem" : `${count} problems`}${wasRepaired ? " left" : ""}`;
}

function jsonOf({ dir, owner, deep, indexed, seconds, report }: Shown): object {
  const { tally, counts, repairs, problems, unsolved, first } = report;
  return {
    dir,
    owner: owner.kind === "owned" ? owner.owner : null,
    deep,
    indexed,
    files: tally.files,
    file_bytes: tally.fileBytes,
    allocated_bytes: tally.allocatedBytes,
    sound_blocks: tally.sound,
    payload_bytes: tally.payloadBytes,
    rows: indexed ? tally.rows : null,
    quarantined_before: tally.quarantined,
    problems,
    unsolved,
    counts,
    repairs,
    findings: first.map(({ kind, path, why, repair }) => ({ kind, path, why, repair })),
    seconds: Number(seconds.toFixed(3)),
  };
}

/** The readable part of the index, and the list of rows to remove from it. */
class CheckedIndex implements Disposable {
  readonly rows: InspectedIndex | null;
  readonly findings: readonly Finding[];
  readonly #dropped = new Set<number>();

  constructor(dir: string) {
    const found = inspectIndex(dir);
    this.rows = found.kind === "sound" ? found.index : null;
    const isDamaged = found.kind === "damaged";
    this.findings = isDamaged ? [{ kind: "index", path: dir, why: found.why, rowId: null }] : [];
  }

  dropRow(rowId: number): void {
    this.#dropped.add(rowId);
  }

  /** Removes the listed rows. Call only after the index was read to its end. */
  finish(): void {
    this.rows?.drop([...this.#dropped]);
  }

  [Symbol.dispose](): void {
    this.rows?.[Symbol.dispose]();
  }
}
