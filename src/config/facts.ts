import { existsSync, readFileSync, statfsSync } from "node:fs";
import { hostname } from "node:os";
import { dirname, join } from "node:path";

/** What validation needs to know of the machine. Null: not known, and then not checked. */
export interface MachineFacts {
  readonly hostname: string | null;
  /** What the process may use at most: the machine's memory or its control group's limit. */
  readonly memoryBytes: number | null;
  /**
   * Size of the file system that `path`, or the nearest folder above it that exists, lies on; null
   * where it cannot be told. Left out: not asked.
   */
  fileSystemBytes?(path: string): number | null;
}

export interface MemoryFacts {
  readonly totalBytes: number | null;
  readonly availableBytes: number | null;
  /** The lowest limit on the way up from the process's control group; null without one. */
  readonly cgroupBytes: number | null;
}

/** The text of a file of /proc, /sys or /etc, or null where it cannot be read. */
function readText(path: string): string | null {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return null;
  }
}

/** A line of /proc/meminfo in bytes. */
function meminfoBytes(text: string | null, name: string): number | null {
  const match = new RegExp(`^${name}:\\s+([0-9]+) kB$`, "m").exec(text ?? "");
  return match === null ? null : Number(match[1]) * 1024;
}

/** The limit in one file; null where it says "max" or version 1's huge number for none. */
function limitIn(path: string): number | null {
  const text = readText(path)?.trim() ?? "max";
  const value = /^[0-9]+$/.test(text) ? Number(text) : Number.POSITIVE_INFINITY;
  return Number.isSafeInteger(value) ? value : null;
}

/** The lowest limit from `group` up to the top of the hierarchy mounted at `mount`. */
function lowestLimit(mount: string, group: string, file: string): number | null {
  let lowest: number | null = null;
  for (let at = group; ; at = dirname(at)) {
    const limit = limitIn(join(mount, at, file));
    if (limit !== null && (lowest === null || limit < lowest)) lowest = limit;
    if (at === "/" || at === ".") return lowest;
  }
}

function cgroupBytes(root: string): number | null {
  const limits: number[] = [];
  for (const line of (readText(join(root, "proc/self/cgroup")) ?? "").split("\n")) {
    const match = /^[0-9]+:([^:]*):(\/.*)$/.exec(line);
    if (match === null) continue;
    const [, controllers, group] = match;
    const limit =
      controllers === ""
        ? lowestLimit(join(root, "sys/fs/cgroup"), group!, "memory.max")
        : controllers!.split(",").includes("memory")
          ? lowestLimit(join(root, "sys/fs/cgroup/memory"), group!, "memory.limit_in_bytes")
          : null;
    if (limit !== null) limits.push(limit);
  }
  return limits.length === 0 ? null : Math.min(...limits);
}

/** Reads /proc/meminfo and the control group limits (version 2 and 1) under `root`. */
export function readMemoryFacts(root = "/"): MemoryFacts {
  const meminfo = readText(join(root, "proc/meminfo"));
  return {
    totalBytes: meminfoBytes(meminfo, "MemTotal"),
    availableBytes: meminfoBytes(meminfo, "MemAvailable"),
    cgroupBytes: cgroupBytes(root),
  };
}

function fileSystemBytes(path: string): number | null {
  let at = path;
  while (!existsSync(at) && dirname(at) !== at) at = dirname(at);
  try {
    const { blocks, bsize } = statfsSync(at);
    return blocks * bsize;
  } catch {
    return null;
  }
}

/** The facts of the machine this runs on. */
export function readMachineFacts(root = "/"): MachineFacts {
  const memory = readMemoryFacts(root);
  const limits = [memory.totalBytes, memory.cgroupBytes].filter((bytes) => bytes !== null);
  return {
    hostname: hostname(),
    memoryBytes: limits.length === 0 ? null : Math.min(...limits),
    fileSystemBytes: (path) => fileSystemBytes(join(root, path)),
  };
}
