/** The file cannot be used and never will be: it is set aside, and a new one takes its place. */
export class DamagedIndex extends Error {
  override readonly name = "DamagedIndex";
}

/**
 * SQLite's codes for a disk that does not do it now and may do it later. All others that come up
 * while a file is opened speak of the file: not a database, corrupt, a bad sector, not our tables.
 */
const PASSING = [
  "SQLITE_FULL",
  "SQLITE_READONLY",
  "SQLITE_CANTOPEN",
  "SQLITE_PERM",
  "SQLITE_NOMEM",
];

function codeOf(thrown: unknown): string {
  return String((thrown as { code?: unknown } | null)?.code ?? "");
}

export function isBusy(thrown: unknown): boolean {
  return codeOf(thrown).startsWith("SQLITE_BUSY");
}

/** Whether what SQLite threw speaks of the file, not of the disk below it. */
export function isAboutFile(thrown: unknown): boolean {
  if (thrown instanceof DamagedIndex) return true;
  const code = codeOf(thrown);
  return code.startsWith("SQLITE_") && !PASSING.some((passing) => code.startsWith(passing));
}

/** For people: SQLite's words with its code. */
export function wordsOf(thrown: unknown): string {
  const code = codeOf(thrown);
  const message = thrown instanceof Error ? thrown.message : String(thrown);
  return code === "" ? message : `${message} (${code})`;
}
