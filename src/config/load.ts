import { constants, existsSync, readFileSync, statfsSync } from "node:fs";
import { open } from "node:fs/promises";
import { hostname } from "node:os";
import { dirname, join } from "node:path";
import { messageOf } from "../core/index.ts";
import {
  CONFIG_BYTES_MAX,
  type ConfigResult,
  type Overrides,
  parseBook,
  TOO_LARGE,
} from "./parse.ts";
import { AGENT_BOOK, type Config } from "./schema.ts";
import {
  type ConfigBook,
  keysOf,
  type NamedTable,
  type SchemaKey,
  tablesOf,
  valueAt,
} from "./spec.ts";
import { positionAt } from "./toml-positions.ts";

/**
 * Reads and validates the file at `path`. Never throws: an unreadable file is reported as a
 * problem.
 */
export function loadConfig(path: string, facts: MachineFacts): Promise<ConfigResult> {
  return loadBook<Config>(AGENT_BOOK, path, facts);
}

/**
 * Like the function for agents, for any kind of file. `C` is the configuration that `book`
 * describes.
 */
export async function loadBook<C>(
  book: ConfigBook,
  path: string,
  facts: MachineFacts,
  overrides: Overrides = {},
): Promise<ConfigResult<C>> {
  const read = await readBounded(path);
  if (!read.ok) return refused(path, read.what, "name a TOML file that the agent's user may read");
  const text = new TextDecoder().decode(read.bytes);
  const broken = firstBadByte(read.bytes, text);
  if (broken !== null) {
    const { line, column } = positionAt(text, broken);
    return refused(path, "holds bytes that are not UTF-8", "save the file as UTF-8", line, column);
  }
  return parseBook<C>(book, text, path, facts, overrides);
}

function refused(
  file: string,
  what: string,
  instead: string,
  line = 0,
  column = 0,
): ConfigResult<never> {
  return { ok: false, problems: [{ file, line, column, key: "", what, instead }] };
}

type Bounded = { ok: true; bytes: Uint8Array } | { ok: false; what: string };

/**
 * Reads at most the allowed size, and regular files only: reading a device or pipe may never end.
 */
async function readBounded(path: string): Promise<Bounded> {
  try {
    // Without O_NONBLOCK, opening a pipe without a writer would block forever.
    await using file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
    const stat = await file.stat();
    if (!stat.isFile()) return { ok: false, what: "is not a regular file" };
    const buffer = new Uint8Array(CONFIG_BYTES_MAX + 1);
    let filled = 0;
    while (filled < buffer.length) {
      const { bytesRead } = await file.read(buffer, filled, buffer.length - filled, filled);
      if (bytesRead === 0) return { ok: true, bytes: buffer.subarray(0, filled) };
      filled += bytesRead;
    }
    return { ok: false, what: TOO_LARGE };
  } catch (thrown) {
    return { ok: false, what: `cannot be read: ${messageOf(thrown)}` };
  }
}

/** Offset in `text` of the first character that replaces invalid UTF-8. */
function firstBadByte(bytes: Uint8Array, text: string): number | null {
  try {
    new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    return null;
  } catch {
    return Math.max(0, text.indexOf("\ufffd"));
  }
}

/** Facts about the machine that validation uses. Null: unknown, and not checked. */
export interface MachineFacts {
  readonly hostname: string | null;
  /**
   * Memory limit of the process: the machine's memory or its control group's limit, whichever is
   * lower.
   */
  readonly memoryBytes: number | null;
  /**
   * Size in bytes of the file system of `path`, or of its nearest existing parent folder; null if
   * unknown. If left out, the size is not checked.
   */
  fileSystemBytes?(path: string): number | null;
}

export interface MemoryFacts {
  readonly totalBytes: number | null;
  readonly availableBytes: number | null;
  /** Lowest limit of the process's control group and its ancestors; null if there is none. */
  readonly cgroupBytes: number | null;
}

/** The text of a file of /proc, /sys or /etc, or null if it cannot be read. */
function readText(path: string): string | null {
  try {
    return readFileSync(path, "utf8");
  } catch {
    return null;
  }
}

/** One value of /proc/meminfo, in bytes. */
function meminfoBytes(text: string | null, name: string): number | null {
  const match = new RegExp(`^${name}:\\s+([0-9]+) kB$`, "m").exec(text ?? "");
  return match === null ? null : Number(match[1]) * 1024;
}

/** The limit in one file; null for "max" and for version 1's huge number, which mean no limit. */
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

/** Reads the facts about this machine. */
export function readMachineFacts(root = "/"): MachineFacts {
  const memory = readMemoryFacts(root);
  const limits = [memory.totalBytes, memory.cgroupBytes].filter((bytes) => bytes !== null);
  return {
    hostname: hostname(),
    memoryBytes: limits.length === 0 ? null : Math.min(...limits),
    fileSystemBytes: (path) => fileSystemBytes(join(root, path)),
  };
}

/** One key whose value differs, with both values in TOML notation. */
export interface KeyChange {
  /** Dotted, as in `kv.high_water`. */
  readonly key: string;
  readonly from: string;
  readonly to: string;
}

export interface ReloadDiff<C = Config> {
  /** Changes that take effect at once. */
  readonly changed: readonly KeyChange[];
  /** Changes that need a restart; until then the old values apply. */
  readonly needsRestart: readonly KeyChange[];
  /** `old` with the changes that take effect at once. */
  readonly effective: C;
}

/** The value of a key as TOML, without secrets; "unset" if it has none. */
function literalOf({ spec: { kind } }: SchemaKey, value: unknown): string {
  return value === null ? "unset" : JSON.stringify((kind.show ?? kind.write)(value));
}

function isSame({ spec: { kind } }: SchemaKey, a: unknown, b: unknown): boolean {
  return a === null || b === null ? a === b : kind.write(a) === kind.write(b);
}

/**
 * Compares two configurations of an agent: changes that SIGHUP applies, and those that need a
 * restart.
 */
export function diffReload(old: Config, next: Config): ReloadDiff {
  return diffBook(AGENT_BOOK, old, next);
}

/** Like `diffReload`, for any kind of file. Named tables take effect at once. */
export function diffBook<C extends object>(book: ConfigBook, old: C, next: C): ReloadDiff<C> {
  const changed: KeyChange[] = [];
  const needsRestart: KeyChange[] = [];
  const effective: Record<string, Record<string, unknown>> = {};
  for (const key of book.keys) {
    const [before, after] = [valueAt(old, key), valueAt(next, key)];
    if (!isSame(key, before, after)) {
      const change = { key: key.name, from: literalOf(key, before), to: literalOf(key, after) };
      (key.spec.reload ? changed : needsRestart).push(change);
    }
    effective[key.section] ??= {};
    effective[key.section][key.field] = valueAt(key.spec.reload ? next : old, key);
  }
  for (const section of Object.values(effective)) Object.freeze(section);
  const named: Record<string, readonly NamedTable[]> = {};
  for (const section of Object.keys(book.named)) {
    changed.push(...namedChanges(book, section, tablesOf(old, section), tablesOf(next, section)));
    named[section] = tablesOf(next, section);
  }
  const whole = Object.freeze({ ...effective, ...named }) as C;
  return { changed, needsRestart, effective: whole };
}

function namedChanges(
  book: ConfigBook,
  section: string,
  old: readonly NamedTable[],
  next: readonly NamedTable[],
): KeyChange[] {
  const keys = keysOf([section], book.named[section]);
  const shown = (table: NamedTable | undefined) => {
    if (table === undefined) return "unset";
    const pairs = keys.map((key) => `${key.spec.key} = ${literalOf(key, table[key.field])}`);
    return `{ ${pairs.filter((pair) => !pair.endsWith(" = unset")).join(", ")} }`;
  };
  const names = new Set([...old, ...next].map(({ name }) => name));
  return [...names].flatMap((name) => {
    const [from, to] = [old, next].map((list) => shown(list.find((one) => one.name === name)));
    return from === to ? [] : [{ key: `${section}.${name}`, from: from!, to: to! }];
  });
}
