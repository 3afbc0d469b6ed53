import {
  formatBytes,
  formatDuration,
  type Parsed,
  parseBytes,
  parseDuration,
} from "../core/index.ts";

export type Read<T> =
  | { readonly ok: true; readonly value: T }
  | { readonly ok: false; readonly why: string };

/** A kind of command line value: how it is parsed, and shown in help. */
export interface Kind<T> {
  /** Placeholder of the value in usage lines: `BYTES`. */
  readonly placeholder: string;
  /** `why` completes a sentence about the flag: "must be a whole number". */
  read(text: string): Read<T>;
  show(value: T): string;
}

interface Range {
  readonly min?: number;
  readonly max?: number;
}

const TEXT_CHARACTERS_MAX = 4096;

/** `placeholder` says what the text is: FILE, NAME, URL. */
export function text(placeholder: string): Kind<string> {
  return {
    placeholder,
    read(given) {
      if (given === "") return { ok: false, why: "is empty" };
      if (given.length > TEXT_CHARACTERS_MAX || given.includes("\0")) {
        return { ok: false, why: `is not a text of at most ${TEXT_CHARACTERS_MAX} characters` };
      }
      return { ok: true, value: given };
    },
    show: (value) => value,
  };
}

export function choice<const Name extends string>(names: readonly Name[]): Kind<Name> {
  const find = (given: string) => names.find((name) => name === given);
  return {
    placeholder: names.join("|"),
    read(given) {
      const value = find(given);
      if (value !== undefined) return { ok: true, value };
      return { ok: false, why: `is not one of ${names.join(", ")}` };
    },
    show: (value) => value,
  };
}

function within(value: number, range: Range, show: (value: number) => string): Read<number> {
  const { min, max } = range;
  if (min !== undefined && value < min) return { ok: false, why: `is below ${show(min)}` };
  if (max !== undefined && value > max) return { ok: false, why: `is above ${show(max)}` };
  return { ok: true, value };
}

function unitKind(
  placeholder: string,
  range: Range,
  parse: (given: string) => Parsed,
  show: (value: number) => string,
): Kind<number> {
  return {
    placeholder,
    read(given) {
      const parsed = parse(given);
      return parsed.ok ? within(parsed.value, range, show) : parsed;
    },
    show,
  };
}

/** Bytes with their unit: `256KiB`. */
export function bytes(range: Range = {}): Kind<number> {
  return unitKind("BYTES", range, parseBytes, formatBytes);
}

/** A duration with its unit, in milliseconds: `30s`. */
export function duration(range: Range = {}): Kind<number> {
  return unitKind("DURATION", range, parseDuration, formatDuration);
}

/** A whole number, by default 0 or more. */
export function integer(range: Range = { min: 0 }): Kind<number> {
  const parse = (given: string): Parsed => {
    const value = Number(given);
    const isWhole = /^-?[0-9]+$/.test(given) && Number.isSafeInteger(value);
    return isWhole ? { ok: true, value } : { ok: false, why: "must be a whole number, as in 1000" };
  };
  return unitKind("N", range, parse, String);
}

/** A decimal number. */
export function decimal(range: Range = {}): Kind<number> {
  const parse = (given: string): Parsed => {
    const isNumber = /^-?[0-9]+(\.[0-9]+)?$/.test(given);
    if (isNumber) return { ok: true, value: Number(given) };
    return { ok: false, why: "must be a number, as in 0.5" };
  };
  return unitKind("X", range, parse, String);
}

/** A share as a fraction or a decimal number: `1/64`, `0.5`. */
export function fraction(range: Range = {}): Kind<number> {
  const parse = (given: string): Parsed => {
    const match = /^([0-9]+(?:\.[0-9]+)?)(?:\/([1-9][0-9]*))?$/.exec(given);
    if (match === null) return { ok: false, why: "must be a fraction, as in 1/64" };
    return { ok: true, value: Number(match[1]) / Number(match[2] ?? 1) };
  };
  return unitKind("FRACTION", range, parse, showFraction);
}

function showFraction(value: number): string {
  const inverse = 1 / value;
  return value < 1 && Number.isInteger(inverse) ? `1/${inverse}` : String(value);
}

const LIST_ITEMS_MAX = 1000;

/** Values separated by commas: `1000,3000`. At least one. */
export function list<T>(kind: Kind<T>): Kind<readonly T[]> {
  return {
    placeholder: `${kind.placeholder},…`,
    read(given) {
      const parts = given.split(",");
      if (parts.length > LIST_ITEMS_MAX) return { ok: false, why: "is too long a list" };
      const values: T[] = [];
      for (const part of parts) {
        const read = kind.read(part.trim());
        if (!read.ok) return { ok: false, why: `has "${part.trim()}", which ${read.why}` };
        values.push(read.value);
      }
      return { ok: true, value: values };
    },
    show: (values) => values.map((value) => kind.show(value)).join(","),
  };
}
