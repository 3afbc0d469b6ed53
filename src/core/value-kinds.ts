/** Kinds of values in configuration files and on the command line. */
import { formatBytes, formatDuration, type Parsed, parseBytes, parseDuration } from "./units.ts";

const TEXT_MAX = 60;

/**
 * Returns `text` in quotes, truncated and escaped, so that the contents of a file cannot forge a
 * line of output or control a terminal.
 */
export function quoteText(text: string): string {
  const cut = text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}...` : text;
  return JSON.stringify(cut).replace(
    /[^\x20-\x7e]/g,
    (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** A TOML value: a string, a number or a boolean. */
export type TomlLiteral = string | number | boolean;

export interface Refused {
  readonly ok: false;
  /**
   * Describes the fault of the value, as the end of a sentence about its key or flag: "is 3, which
   * is too small".
   */
  readonly what: string;
  readonly instead: string;
}

export type Read<Value> = { readonly ok: true; readonly value: Value } | Refused;

/** A kind of value: how it is read and written, and how reference and help describe it. */
export interface Kind<Value> {
  /** Name of the kind in the reference: "size", "duration". */
  readonly name: string;
  /** The allowed values as text, for reference and messages. */
  readonly range: string;
  /** Placeholder for the value in a command's usage line: `BYTES`. */
  readonly placeholder?: string;
  /** True if the values are TOML numbers. A word on the command line is then read as a number. */
  readonly isNumber?: boolean;
  /** Reads a TOML value of any type. Never throws. */
  read(raw: unknown): Read<Value>;
  /**
   * Converts a value back to TOML. The conversion is exact: `read(write(value))` gives the same
   * value.
   */
  write(value: Value): TomlLiteral;
  /**
   * Converts a value to TOML for logs. Present only for kinds whose values may contain a secret.
   */
  show?(value: Value): TomlLiteral;
}

const GIB = 2 ** 30;
/** Bytes of one page of the RAM arena, to which sizes are rounded. */
const PAGE_BYTES = 4096;
const TEXT_CHARACTERS_MAX = 4096;
const LIST_ITEMS_MAX = 1_024;

export function refuse(what: string, instead: string): Refused {
  return { ok: false, what, instead };
}

/** Reads a value from a word of a command line. */
export function readWord<Value>(kind: Kind<Value>, word: string): Read<Value> {
  const isNumber = kind.isNumber === true && /^-?[0-9]+(?:\.[0-9]+)?$/.test(word);
  return kind.read(isNumber ? Number(word) : word);
}

/** Returns the placeholder of a value in usage lines. */
export function placeholderOf(kind: Kind<unknown>): string {
  return kind.placeholder ?? kind.name.toUpperCase();
}

/** Returns the type of a TOML value with its article, for messages. */
export function typeName(raw: unknown): string {
  if (typeof raw === "string") return `the string ${quoteText(raw)}`;
  if (typeof raw === "number") return `the number ${raw}`;
  // The number itself is not printed: printing an integer of a million digits takes longer than
  // reading the rest of the file.
  if (typeof raw === "bigint") return "a number beyond 2^53";
  if (typeof raw === "boolean") return `the boolean ${raw}`;
  if (Array.isArray(raw)) return "an array";
  return raw instanceof Date ? "a date" : "a table";
}

interface Limits {
  readonly min?: number;
  readonly max?: number;
  /** If set, only multiples of this value are allowed. */
  readonly multiple?: number;
}

/** Describes the allowed values. */
function span({ min, max, multiple }: Limits, print: (n: number) => string): string {
  const step = multiple === undefined ? "" : `, a multiple of ${print(multiple)}`;
  if (min === undefined) return max === undefined ? "any" : `at most ${print(max)}${step}`;
  return max === undefined
    ? `at least ${print(min)}${step}`
    : `${print(min)} to ${print(max)}${step}`;
}

function inLimits(value: number, limits: Limits, print: (n: number) => string): Read<number> {
  const { min = -Infinity, max = Infinity, multiple } = limits;
  const { multiple: _, ...ends } = limits;
  const allowed = `use ${span(ends, print)}`;
  if (value < min) return refuse(`is ${print(value)}, which is too small`, allowed);
  if (value > max) return refuse(`is ${print(value)}, which is too large`, allowed);
  if (multiple === undefined || value % multiple === 0) return { ok: true, value };
  const nearest = Math.min(max, Math.max(min, Math.ceil(value / multiple) * multiple));
  return refuse(`is not a multiple of ${print(multiple)}`, `use ${print(nearest)}`);
}

/**
 * Formats bytes in the largest unit that divides them, so that parsing the text gives the same
 * value.
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

function unitKind(
  { example, ...limits }: Limits & { example: string },
  kind: { name: string; placeholder: string },
  parse: (text: string) => Parsed,
  print: (value: number) => string,
): Kind<number> {
  return {
    ...kind,
    range: span(limits, print),
    read(raw) {
      const instead = `write a number and its unit in quotes, as in "${example}"`;
      if (typeof raw !== "string") return refuse(`is ${typeName(raw)}`, instead);
      const parsed = parse(raw);
      if (!parsed.ok) return refuse(`is ${quoteText(raw)}: ${parsed.why}`, instead);
      return inLimits(parsed.value, limits, print);
    },
    write: print,
  };
}

/** Returns a kind of sizes: `"64GiB"` is read as bytes. */
export function sizeKind(limits: Limits & { example?: string } = {}): Kind<number> {
  const kind = { name: "size", placeholder: "BYTES" };
  return unitKind({ example: "64GiB", ...limits }, kind, parseBytes, exactBytes);
}

/** Returns a kind of durations: `"30s"` is read as milliseconds. */
export function durationKind(limits: Limits & { example?: string } = {}): Kind<number> {
  const kind = { name: "duration", placeholder: "DURATION" };
  return unitKind({ example: "30s", ...limits }, kind, parseDuration, formatDuration);
}

/**
 * Returns a kind of sizes in GiB without a unit: `64` or `0.5` is read as bytes, rounded down to
 * whole pages.
 */
export function gibKind(limits: Limits): Kind<number> {
  return {
    name: "number of GiB",
    range: span(limits, exactBytes),
    isNumber: true,
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

/** Returns a kind of whole numbers, by default from 0. */
export function integerKind(limits: Limits = { min: 0 }): Kind<number> {
  const range = span(limits, String);
  return {
    name: "integer",
    range,
    placeholder: "N",
    isNumber: true,
    read(raw) {
      if (typeof raw === "bigint") return refuse("is a number beyond 2^53", `use ${range}`);
      if (typeof raw !== "number" || !Number.isSafeInteger(raw)) {
        const instead = `write a whole number without quotes, ${range}`;
        return refuse(`is ${typeName(raw)}, not a whole number`, instead);
      }
      return inLimits(raw, limits, String);
    },
    write: (value) => value,
  };
}

/** Returns a kind of numbers without a unit. Use the name "ratio" for fractions between 0 and 1. */
export function numberKind(limits: Limits, name = "number"): Kind<number> {
  const range = span(limits, String);
  return {
    name,
    range,
    placeholder: "X",
    isNumber: true,
    read(raw) {
      if (typeof raw === "number" && !Number.isNaN(raw)) return inLimits(raw, limits, String);
      const instead = `write a number without quotes or %, ${range}`;
      return refuse(`is ${typeName(raw)}, not a number`, instead);
    },
    write: (value) => value,
  };
}

/** The kind of `true` or `false`. */
export const booleanKind: Kind<boolean> = {
  name: "boolean",
  range: "true or false",
  read(raw) {
    if (typeof raw === "boolean") return { ok: true, value: raw };
    return refuse(`is ${typeName(raw)}, not a boolean`, "write true or false without quotes");
  },
  write: (value) => value,
};

/** Returns a kind that accepts the values of `kind`, and `word`, which is read as `value`. */
export function orWord<Value, Special extends string | number | null>(
  word: string,
  value: Special,
  kind: Kind<Value>,
): Kind<Value | Special> {
  return {
    name: `${kind.name} or ${word}`,
    range: `"${word}", or ${kind.range}`,
    read(raw) {
      if (raw === word || raw === value) return { ok: true, value };
      const read = kind.read(raw);
      return read.ok ? read : refuse(read.what, `${read.instead}; or "${word}"`);
    },
    write: (given) => (given === value ? word : kind.write(given as Value)),
  };
}

/** Returns a kind of sizes or durations that also accepts `"off"`, which is read as 0. */
export function orOff(kind: Kind<number>): Kind<number> {
  return orWord("off", 0, kind);
}

/** Returns a kind that accepts one of `words`. */
export function choiceKind<const Word extends string>(words: readonly Word[]): Kind<Word> {
  const list = words.map((word) => `"${word}"`).join(", ");
  return {
    name: "word",
    range: list,
    placeholder: words.join("|"),
    read(raw) {
      const found = words.find((word) => word === raw);
      if (found !== undefined) return { ok: true, value: found };
      const allowed = words.length === 1 ? `use ${list}` : `use one of ${list}`;
      return refuse(`is ${typeName(raw)}`, allowed);
    },
    write: (value) => value,
  };
}

interface ListOptions<Item> {
  /** Plural noun for the items, in messages: "peers". */
  readonly items?: string;
  /** Maximum number of items. */
  readonly most?: number;
  /** Text of an empty list. If it is not set, a list must have at least one item. */
  readonly empty?: string;
  /**
   * Returns the part of an item that must be unique in the list. If it is not set, duplicates of an
   * item are ignored.
   */
  id?(item: Item): string;
}

/** Returns a kind of lists, written as items separated by commas. */
export function listKind<Item>(
  item: Kind<Item>,
  { items = "values", most = LIST_ITEMS_MAX, empty, id }: ListOptions<Item> = {},
): Kind<readonly Item[]> {
  const none = empty === undefined ? "" : `, or "${empty}"`;
  return {
    name: `list of ${items}`,
    range: `${items} separated by commas${none}: ${item.range}`,
    placeholder: `${placeholderOf(item)},…`,
    read(raw) {
      const instead = `write ${items} separated by commas${none}`;
      if (typeof raw !== "string") return refuse(`is ${typeName(raw)}, not a string`, instead);
      if (raw.trim() === empty) return { ok: true, value: Object.freeze([]) };
      const parts = raw.split(",").map((part) => part.trim());
      if (parts.length > most) return refuse(`names more than ${most} ${items}`, instead);
      const found = new Map<unknown, Item>();
      for (const part of parts) {
        const read = readWord(item, part);
        if (!read.ok) return refuse(`has a part that ${read.what}`, read.instead);
        const key = id === undefined ? item.write(read.value) : id(read.value);
        if (id !== undefined && found.has(key)) return refuse(`names ${key} twice`, instead);
        found.set(key, read.value);
      }
      return { ok: true, value: Object.freeze([...found.values()]) };
    },
    write: (list) => (list.length === 0 ? (empty ?? "") : list.map(item.write).join(",")),
  };
}

/** Returns a kind of strings that match a pattern. */
export function patternKind<Value extends string>(options: {
  readonly name: string;
  readonly pattern: RegExp;
  readonly words: string;
  readonly example: string;
  readonly placeholder?: string;
}): Kind<Value> {
  const { name, placeholder = name.toUpperCase() } = options;
  return {
    name,
    placeholder,
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

/** Returns a kind of any text. `placeholder` names its content in usage lines: FILE, NAME, URL. */
export function textKind(placeholder: string): Kind<string> {
  const range = `a text of at most ${TEXT_CHARACTERS_MAX} characters`;
  return {
    name: "text",
    range,
    placeholder,
    read(raw) {
      if (raw === "") return refuse("is empty", `give ${range}`);
      const isText = typeof raw === "string" && raw.length <= TEXT_CHARACTERS_MAX;
      if (isText && !raw.includes("\0")) return { ok: true, value: raw };
      return refuse(`is not ${range}`, "give a shorter one");
    },
    write: (value) => value,
  };
}

function hasControlCharacter(text: string): boolean {
  return [...text].some((character) => character < " " || character === "\x7f");
}

/**
 * Returns a kind of absolute paths. Relative ones are refused, because the current directory of a
 * service is arbitrary.
 */
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
