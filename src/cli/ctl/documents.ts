import { formatBytes } from "../../core/index.ts";

/** Members of an object in a reply. The reply's shape was not validated. */
export type Members = Readonly<Record<string, unknown>>;

export function membersOf(value: unknown): Members {
  const isObject = typeof value === "object" && value !== null && !Array.isArray(value);
  return isObject ? (value as Members) : {};
}

/** Returns the objects in the list `name` of a reply; empty if the list is missing. */
export function listOf(document: unknown, name: string): Members[] {
  const list = membersOf(document)[name];
  return Array.isArray(list) ? list.map(membersOf) : [];
}

export function textOf(value: unknown): string {
  if (value === null || value === undefined) return "-";
  if (Array.isArray(value)) return value.map(textOf).join(",");
  return plain(typeof value === "object" ? JSON.stringify(value) : String(value));
}

function numberOf(value: unknown): number | null {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

/** Formats a number of bytes: `1.5GiB`. */
export function bytesOf(value: unknown): string {
  const bytes = numberOf(value);
  return bytes === null ? "-" : formatBytes(bytes);
}

const UNITS = [
  ["d", 86_400],
  ["h", 3_600],
  ["m", 60],
] as const;

/** Formats a number of seconds in a readable unit: `59.1m`, `3s`. */
export function secondsOf(value: unknown): string {
  const seconds = numberOf(value);
  if (seconds === null) return "-";
  for (const [unit, length] of UNITS) {
    if (seconds >= 2 * length) return `${Number((seconds / length).toFixed(1))}${unit}`;
  }
  return `${Number(seconds.toPrecision(3))}s`;
}

const NAME_CHARACTERS = 20;

/** Formats a block's name for tables: numbers in full, long hex shortened in the middle. */
export function nameOf(value: unknown): string {
  const name = textOf(value);
  const [hex = "", layer] = name.split("/");
  if (hex.length <= NAME_CHARACTERS) return name;
  return `${hex.slice(0, 10)}…${hex.slice(-8)}${layer === undefined ? "" : `/${layer}`}`;
}

/**
 * Formats the list of pins, leases and sessions that protect a block: `pin of team-a, session 7`.
 */
export function holdersOf(holders: unknown): string {
  return listOf({ holders }, "holders")
    .map(({ kind, name, owner }) => [
      textOf(kind),
      ...(name === undefined || name === null ? [] : [textOf(name)]),
      ...(owner === undefined || owner === null ? [] : [`of ${textOf(owner)}`]),
    ])
    .map((words) => words.join(" "))
    .join(", ");
}

const CHARACTERS_MAX = 120;
/**
 * Characters that can control a terminal: control and format characters, including those that
 * change text direction.
 */
const STEERING = /[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]+/gu;

/**
 * Returns untrusted text on one line, without control characters, shortened to `max` characters.
 */
export function plain(text: string, max = CHARACTERS_MAX): string {
  const clean = text.replace(STEERING, " ");
  return clean.length > max ? `${clean.slice(0, max - 1)}…` : clean;
}
