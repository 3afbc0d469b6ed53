import {
  formatBytes,
  formatDuration,
  type Parsed,
  parseBytes,
  parseDuration,
} from "../core/index.ts";
import { quoteText } from "./problems.ts";

/** A TOML value of a key: a string, a number or a boolean. */
export type TomlLiteral = string | number | boolean;

export type Read<Value> =
  | { readonly ok: true; readonly value: Value }
  | { readonly ok: false; readonly what: string; readonly instead: string };

/** A kind of value: how it is read from TOML, written back, and described in the reference. */
export interface Kind<Value> {
  /** Name in the reference: "size", "duration". */
  readonly name: string;
  /** Description of the allowed values. */
  readonly range: string;
  /** Never throws, whatever TOML held. */
  read(raw: unknown): Read<Value>;
  /** Exact: `read(write(value))` gives the same value. */
  write(value: Value): TomlLiteral;
  /** As `write`, for logs; only for values that may hold a secret. */
  show?(value: Value): TomlLiteral;
}

const GIB = 2 ** 30;
/** Bytes of a page of the RAM arena. */
const PAGE_BYTES = 4096;

function refuse(what: string, instead: string): { ok: false; what: string; instead: string } {
  return { ok: false, what, instead };
}

/** The type of a TOML value, with its article, for messages. */
export function typeName(raw: unknown): string {
  if (typeof raw === "string") return `the string ${quoteText(raw)}`;
  if (typeof raw === "number") return `the number ${raw}`;
  // Printing an integer of a million digits takes longer than reading the rest of the file.
  if (typeof raw === "bigint") return "a number beyond 2^53";
  if (typeof raw === "boolean") return `the boolean ${raw}`;
  if (Array.isArray(raw)) return "an array";
  return raw instanceof Date ? "a date" : "a table";
}

interface Limits {
  readonly min: number;
  readonly max: number;
  /** Only multiples of this are allowed. */
  readonly multiple?: number;
}

function inLimits(value: number, limits: Limits, print: (n: number) => string): Read<number> {
  const allowed = `use ${print(limits.min)} to ${print(limits.max)}`;
  if (value < limits.min) return refuse(`is ${print(value)}, which is too small`, allowed);
  if (value > limits.max) return refuse(`is ${print(value)}, which is too large`, allowed);
  const { multiple } = limits;
  if (multiple !== undefined && value % multiple !== 0) {
    return refuse(
      `is not a multiple of ${print(multiple)}`,
      `use ${print(nearestMultiple(value, limits))}`,
    );
  }
  return { ok: true, value };
}

function nearestMultiple(value: number, limits: Limits): number {
  const step = limits.multiple ?? 1;
  return Math.min(limits.max, Math.max(limits.min, Math.ceil(value / step) * step));
}

function withUnit(raw: unknown, parse: (text: string) => Parsed, example: string): Read<number> {
  const instead = `write a number and its unit in quotes, as in "${example}"`;
  if (typeof raw !== "string") return refuse(`is ${typeName(raw)}`, instead);
  const parsed = parse(raw);
  if (parsed.ok) return parsed;
  return refuse(`is ${quoteText(raw)}: ${parsed.why}`, instead);
}

/**
 * Bytes as text in the largest unit that divides them, so that the text parses to the same value.
 */
export function exactBytes(bytes: number): string {
  for (const [unit, size] of [
    ["TiB", 2 ** 40],
    ["GiB", GIB],
    ["MiB", 2 ** 20],
    ["KiB", 1024],
  ] as const) {
    if (bytes >= size && bytes % size === 0) return `${bytes / size}${unit}`;
  }
  return `${bytes}B`;
}

/** `"64GiB"` → bytes. */
export function sizeKind(limits: Limits & { example: string }): Kind<number> {
  return {
    name: "size",
    range: span(limits, exactBytes),
    read(raw) {
      const parsed = withUnit(raw, parseBytes, limits.example);
      return parsed.ok ? inLimits(parsed.value, limits, exactBytes) : parsed;
    },
    write: exactBytes,
  };
}

/** Description of the allowed values. */
function span(limits: Limits, print: (n: number) => string): string {
  const step = limits.multiple === undefined ? "" : `, a multiple of ${print(limits.multiple)}`;
  return `${print(limits.min)} to ${print(limits.max)}${step}`;
}

/** A number of GiB (`64`, `0.5`) → bytes, rounded down to whole pages. */
export function gibKind(limits: Limits): Kind<number> {
  return {
    name: "number of GiB",
    range: span(limits, exactBytes),
    read(raw) {
      const instead = "write a number without unit and quotes, as in 64 or 0.5";
      if (typeof raw !== "number" || !Number.isFinite(raw)) {
        return refuse(`is ${typeName(raw)}, not a number of GiB`, instead);
      }
      const read = inLimits(raw * GIB, limits, formatBytes);
      return read.ok ? { ok: true, value: read.value - (read.value % PAGE_BYTES) } : read;
    },
    write: (bytes) => bytes / GIB,
  };
}

/** `"30s"` → milliseconds. */
export function durationKind(limits: Limits & { example: string }): Kind<number> {
  return {
    name: "duration",
    range: span(limits, formatDuration),
    read(raw) {
      const parsed = withUnit(raw, parseDuration, limits.example);
      return parsed.ok ? inLimits(parsed.value, limits, formatDuration) : parsed;
    },
    write: formatDuration,
  };
}

export function integerKind(limits: Limits): Kind<number> {
  return {
    name: "integer",
    range: span(limits, String),
    read(raw) {
      if (typeof raw === "bigint") {
        return refuse("is a number beyond 2^53", `use ${limits.min} to ${limits.max}`);
      }
      if (typeof raw !== "number" || !Number.isInteger(raw)) {
        const instead = `write a whole number without quotes, ${limits.min} to ${limits.max}`;
        return refuse(`is ${typeName(raw)}, not a whole number`, instead);
      }
      return inLimits(raw, limits, String);
    },
    write: (value) => value,
  };
}

/** A share between 0 and 1. */
export function ratioKind(limits: Limits): Kind<number> {
  return {
    name: "ratio",
    range: span(limits, String),
    read(raw) {
      if (typeof raw === "number" && !Number.isNaN(raw)) return inLimits(raw, limits, String);
      const instead = `write a share without quotes or %, ${limits.min} to ${limits.max}`;
      return refuse(`is ${typeName(raw)}, not a number`, instead);
    },
    write: (value) => value,
  };
}

/** `true` or `false`. */
export const booleanKind: Kind<boolean> = {
  name: "boolean",
  range: "true or false",
  read(raw) {
    if (typeof raw === "boolean") return { ok: true, value: raw };
    return refuse(`is ${typeName(raw)}, not a boolean`, "write true or false without quotes");
  },
  write: (value) => value,
};

/** A size or duration that `"off"` turns off: it is then 0. */
export function orOff(kind: Kind<number>): Kind<number> {
  return {
    name: `${kind.name} or off`,
    range: `"off", or ${kind.range}`,
    read(raw) {
      if (raw === "off" || raw === 0) return { ok: true, value: 0 };
      const read = kind.read(raw);
      return read.ok ? read : { ...read, instead: `${read.instead}; or "off"` };
    },
    write: (value) => (value === 0 ? "off" : kind.write(value)),
  };
}

/** One of `words`. */
export function choiceKind<const Word extends string>(words: readonly Word[]): Kind<Word> {
  const list = words.map((word) => `"${word}"`).join(", ");
  return {
    name: "word",
    range: list,
    read(raw) {
      const found = words.find((word) => word === raw);
      if (found !== undefined) return { ok: true, value: found };
      return refuse(
        `is ${typeName(raw)}`,
        words.length === 1 ? `use ${list}` : `use one of ${list}`,
      );
    },
    write: (value) => value,
  };
}

/** Some of `words`, separated by commas, or `none`; each once, in the given order. */
export function namesKind(words: readonly string[]): Kind<readonly string[]> {
  const instead = `use some of ${words.join(", ")} separated by commas, or "none"`;
  return {
    name: "list of words",
    range: `${words.join(", ")} separated by commas, or none`,
    read(raw) {
      if (typeof raw !== "string") return refuse(`is ${typeName(raw)}, not a string`, instead);
      if (raw.trim() === "none") return { ok: true, value: [] };
      const names = raw.split(",").map((name) => name.trim());
      const unknown = names.find((name) => !words.includes(name));
      if (unknown !== undefined) return refuse(`names ${quoteText(unknown)}`, instead);
      return { ok: true, value: [...new Set(names)] };
    },
    write: (names) => (names.length === 0 ? "none" : names.join(",")),
  };
}

/** A string that matches a pattern. */
export function patternKind<Value extends string>(options: {
  readonly name: string;
  readonly pattern: RegExp;
  readonly words: string;
  readonly example: string;
}): Kind<Value> {
  return {
    name: options.name,
    range: options.words,
    read(raw) {
      const instead = `write ${options.words}, as in "${options.example}"`;
      if (typeof raw !== "string") return refuse(`is ${typeName(raw)}, not a string`, instead);
      if (options.pattern.test(raw)) return { ok: true, value: raw as Value };
      return refuse(`is ${quoteText(raw)}, which is not a valid ${options.name}`, instead);
    },
    write: (value) => value,
  };
}

function hasControlCharacter(text: string): boolean {
  return [...text].some((character) => character < " " || character === "\x7f");
}

/** An absolute path, because the current directory of a service is not meaningful. */
export function pathKind(options: {
  readonly bytesMax: number;
  readonly example: string;
}): Kind<string> {
  return {
    name: "path",
    range: `an absolute path of at most ${options.bytesMax} bytes`,
    read(raw) {
      const instead = `write an absolute path, as in "${options.example}"`;
      if (typeof raw !== "string") return refuse(`is ${typeName(raw)}, not a path`, instead);
      if (!raw.startsWith("/"))
        return refuse(`is ${quoteText(raw)}, not an absolute path`, instead);
      if (hasControlCharacter(raw)) return refuse("holds a control character", instead);
      if (raw.endsWith("/")) return refuse(`is ${quoteText(raw)}, a folder`, instead);
      const bytes = Buffer.byteLength(raw);
      if (bytes <= options.bytesMax) return { ok: true, value: raw };
      return refuse(`is ${bytes} bytes long`, `use a path of at most ${options.bytesMax} bytes`);
    },
    write: (value) => value,
  };
}
