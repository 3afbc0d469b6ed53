import { readdirSync, readFileSync, type Stats, statSync } from "node:fs";
import { join } from "node:path";

/** Result of one check. `absent`: the thing is not present and not needed, or was not checked. */
export type CheckStatus = "ok" | "warn" | "fail" | "absent";

export interface Check {
  readonly name: string;
  readonly status: CheckStatus;
  /** The finding on one line. */
  readonly found: string;
  /** For a device: how blocks are transferred to or from it. */
  readonly path?: string;
  /** The suggested fix; always set for `warn` and `fail`. */
  readonly advice?: string;
}

export interface DoctorReport {
  /** True if no check failed. */
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

/** Returns the check of a device with a description of how blocks are transferred. */
export function withPath(check: Check, path: string): Check {
  return { ...check, path };
}

/** Replaces line breaks and control characters, which would break the table's layout. */
function oneLine(text: string): string {
  return text.replace(/[^\x20-\x7e]+/g, " ").trim();
}

/**
 * Formats the report as an aligned table: status, name and finding; path and advice on lines below.
 * Ends with a line feed.
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
 * Reads the host's files below a root folder, so that a test can simulate a host in a temporary
 * folder. An unreadable file is null, because many of these files exist only on some hosts.
 */
export interface HostFiles {
  /** Returns the path below the root folder of a path of the host. */
  at(path: string): string;
  /** Returns the file's text without its last line feed; null if it is unreadable. */
  text(path: string): string | null;
  /** Returns the sorted names in a folder; empty if the folder is unreadable. */
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
 * Returns the selected word of a file such as `always [madvise] never`; the whole text if no word
 * is marked.
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

/**
 * Returns whether the dynamic linker can find a library, in its cache or in its default folders.
 */
export function hasLibrary(files: HostFiles, name: string): boolean {
  if (files.text("/etc/ld.so.cache")?.includes(`${name}\0`) === true) return true;
  return LIBRARY_FOLDERS.some((folder) => files.stat(`${folder}/${name}`) !== null);
}
