/** How one aspect of the host is. `absent`: not there and not needed, or not asked about. */
export type CheckStatus = "ok" | "warn" | "fail" | "absent";

export interface Check {
  readonly name: string;
  readonly status: CheckStatus;
  /** What was found, in one line. */
  readonly found: string;
  /** Of a device: the way that blocks take because of it. */
  readonly path?: string;
  /** What to do about it. Always there for `warn` and `fail`. */
  readonly advice?: string;
}

export interface DoctorReport {
  /** Whether no check failed. */
  readonly ok: boolean;
  readonly checks: readonly Check[];
}

export function ok(name: string, found: string, advice?: string): Check {
  return advice === undefined
    ? { name, status: "ok", found }
    : { name, status: "ok", found, advice };
}

export function warn(name: string, found: string, advice: string): Check {
  return { name, status: "warn", found, advice };
}

export function fail(name: string, found: string, advice: string): Check {
  return { name, status: "fail", found, advice };
}

export function absent(name: string, found: string, advice?: string): Check {
  return advice === undefined
    ? { name, status: "absent", found }
    : { name, status: "absent", found, advice };
}

/** The same check of a device, with the way that blocks take. */
export function withPath(check: Check, path: string): Check {
  return { ...check, path };
}

/** Line breaks and control characters of what a host says would break the table. */
function oneLine(text: string): string {
  return text.replace(/[^\x20-\x7e]+/g, " ").trim();
}

/**
 * An aligned table: status, name, what was found; path and advice below their line. Ends with a
 * line feed.
 */
export function formatDoctor(report: DoctorReport): string {
  const width = Math.max(...report.checks.map(({ name }) => name.length));
  const lines: string[] = [];
  for (const { name, status, found, path, advice } of report.checks) {
    lines.push(`${status.padEnd(6)}  ${name.padEnd(width)}  ${oneLine(found)}`);
    if (path !== undefined) lines.push(`${" ".repeat(6 + 2 + width + 2)}by ${oneLine(path)}`);
    if (advice !== undefined) lines.push(`${" ".repeat(6 + 2 + width + 2)}-> ${oneLine(advice)}`);
  }
  const count = (status: CheckStatus) =>
    report.checks.filter((check) => check.status === status).length;
  const verdict = report.ok ? "Nothing stands in the way" : "Something must be mended first";
  lines.push("", `${verdict}: ${count("fail")} failed, ${count("warn")} to look at.`);
  return `${lines.join("\n")}\n`;
}
