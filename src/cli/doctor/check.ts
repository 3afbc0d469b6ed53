import { readdirSync, readFileSync, type Stats, statSync } from "node:fs";
import { join } from "node:path";

/** Result of one check. `absent`: not present and not needed, or not checked. */
export type CheckStatus = "ok" | "warn" | "fail" | "absent";

export interface Check {
  readonly name: string;
  readonly status: CheckStatus;
  /** The finding, in one line. */
  readonly found: string;
  /** For a device: the resulting path of blocks. */
  readonly path?: string;
  /** The suggested fix. Always set for `warn` and `fail`. */
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

/** The check of a device with the resulting path of blocks. */
export function withPath(check: Check, path: string): Check {
  return { ...check, path };
}

/** Replaces line breaks and control characters, which would break the table. */
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
  const verdict = report.ok ? "The host is ready" : "The host is not ready";
  lines.push("", `${verdict}: ${count("fail")} failed, ${count("warn")} to look at.`);
  return `${lines.join("\n")}\n`;
}

/**
 * The host's files, read below a root folder, so that a test can simulate a host in a temporary
 * folder. Unreadable files are null, because many of these files exist only on some hosts.
 */
export interface HostFiles {
  /** The real path of a path of the host. */
  at(path: string): string;
  /** The file's text without its last line feed. */
  text(path: string): string | null;
  /** Names in a folder, sorted; empty if there is no folder. */
  list(path: string): string[];
  stat(path: string): Stats | null;
}

function orNull<T>(read: () => T): T | null {
  try {
    return read();
  } catch {
    return null;
  }
}

export function hostFiles(root: string): HostFiles {
  const at = (path: string) => join(root, path);
  return {
    at,
    text: (path) => orNull(() => readFileSync(at(path), "latin1").replace(/\n$/, "")),
    list: (path) => orNull(() => readdirSync(at(path)).sort()) ?? [],
    stat: (path) => orNull(() => statSync(at(path))),
  };
}

/**
 * The selected word of a file such as `always [madvise] never`; the whole text if none is marked.
 */
export function chosenWord(text: string | null): string | null {
  if (text === null) return null;
  return /\[([^\]]+)\]/.exec(text)?.[1] ?? text.trim();
}

const LIBRARY_FOLDERS = [
  "/usr/lib/x86_64-linux-gnu",
  "/usr/lib/aarch64-linux-gnu",
  "/usr/lib64",
  "/usr/lib",
  "/usr/local/cuda/compat",
  "/usr/local/nvidia/lib64",
];

/** Whether the dynamic linker can find a library: in its cache or in a folder of its own. */
export function hasLibrary(files: HostFiles, name: string): boolean {
  if (files.text("/etc/ld.so.cache")?.includes(`${name}\0`) === true) return true;
  return LIBRARY_FOLDERS.some((folder) => files.stat(`${folder}/${name}`) !== null);
}
