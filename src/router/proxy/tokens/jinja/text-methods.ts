import {
  codePoints,
  iterate,
  type Kwargs,
  PythonError,
  SPACE,
  splitLines,
  strip,
  Tuple,
  typeName,
  type Value,
} from "../python/index.ts";
import { bind, text } from "./arguments.ts";
import type { Budget } from "./budget.ts";
import { formatText } from "./format.ts";
import { flag, wholeNumber } from "./operators.ts";

type TextMethod = (self: string, args: readonly Value[], kwargs: Kwargs, budget: Budget) => Value;

const BLANKS = new RegExp(`[${SPACE}]+`);
const BLANK = new RegExp(`[${SPACE}]`);

function stripper(side: "both" | "left" | "right"): TextMethod {
  return (self, [chars]) => strip(self, chars == null ? null : text("strip", chars), side);
}

/** Up to `limit` cuts; below 0 as many as there are. */
function split(self: string, args: readonly Value[], kwargs: Kwargs, isFromRight: boolean) {
  const [sep, max] = bind("split", ["sep", "maxsplit"], args, kwargs);
  const limit = max === undefined ? -1 : wholeNumber(max);
  if (sep == null) return splitBlanks(self, limit, isFromRight);
  const separator = text("split", sep);
  if (separator === "") throw new PythonError("empty separator");
  const parts = self.split(separator);
  if (limit < 0 || parts.length - 1 <= limit) return parts;
  if (!isFromRight) return [...parts.slice(0, limit), parts.slice(limit).join(separator)];
  const at = parts.length - limit;
  return [parts.slice(0, at).join(separator), ...parts.slice(at)];
}

function splitBlanks(self: string, limit: number, isFromRight: boolean): string[] {
  if (limit < 0) {
    const plain = strip(self, null, "both");
    return plain === "" ? [] : plain.split(BLANKS);
  }
  if (isFromRight) {
    const parts = splitBlanks(reversed(self), limit, false);
    return parts.map(reversed).reverse();
  }
  const parts: string[] = [];
  let rest = strip(self, null, "left");
  while (rest !== "" && parts.length < limit) {
    const at = rest.search(BLANK);
    parts.push(at < 0 ? rest : rest.slice(0, at));
    rest = at < 0 ? "" : strip(rest.slice(at), null, "left");
  }
  // What is not cut keeps the blanks at its end.
  return rest === "" ? parts : [...parts, rest];
}

function reversed(text: string): string {
  return codePoints(text).reverse().join("");
}

function replace(self: string, args: readonly Value[], kwargs: Kwargs, budget: Budget): string {
  const [from, to, count] = bind("replace", ["old", "new", "count"], args, kwargs);
  const limit = count == null ? -1 : wholeNumber(count);
  return replaced(self, text("replace", from), text("replace", to), limit, budget);
}

export function replaced(
  self: string,
  from: string,
  to: string,
  limit: number,
  budget: Budget,
): string {
  const parts = from === "" ? ["", ...codePoints(self), ""] : self.split(from);
  const cuts = limit < 0 ? parts.length - 1 : Math.min(limit, parts.length - 1);
  budget.made(self.length + cuts * to.length);
  const head = parts.slice(0, cuts + 1).join(to);
  return cuts === parts.length - 1 ? head : head + from + parts.slice(cuts + 1).join(from);
}

function affix(name: "startsWith" | "endsWith"): TextMethod {
  return (self, [given, from, to]) => {
    if (given === undefined) throw new PythonError("expected a prefix");
    const points = from === undefined && to === undefined ? null : codePoints(self);
    const start = from == null ? undefined : wholeNumber(from);
    const part = points?.slice(start, to == null ? undefined : wholeNumber(to)).join("") ?? self;
    const options = given instanceof Tuple ? given.items : [given];
    return options.some((one) => part[name](text(name, one)));
  };
}

function finder(name: "indexOf" | "lastIndexOf", isStrict: boolean): TextMethod {
  return (self, [given, from, to]) => {
    const points = codePoints(self);
    const length = points.length;
    const clamp = (at: number) => Math.min(Math.max(at < 0 ? at + length : at, 0), length);
    const start = from == null ? 0 : clamp(wholeNumber(from));
    const end = to == null ? length : clamp(wholeNumber(to));
    const part = points.slice(start, end).join("");
    const unit = part[name](text("find", given));
    if (unit < 0 && isStrict) throw new PythonError("substring not found");
    return unit < 0 ? -1n : BigInt(start + codePoints(part.slice(0, unit)).length);
  };
}

function count(self: string, [given]: readonly Value[]): bigint {
  const one = text("count", given);
  return BigInt(one === "" ? codePoints(self).length + 1 : self.split(one).length - 1);
}

function join(self: string, [items]: readonly Value[], _: Kwargs, budget: Budget): string {
  const texts = iterate(items ?? null).map((item, i) => {
    if (typeof item === "string") return item;
    throw new PythonError(`sequence item ${i}: expected str instance, ${typeName(item)} found`);
  });
  budget.made(texts.reduce((sum, one) => sum + one.length + self.length, 0));
  return texts.join(self);
}

function padder(side: "start" | "end" | "both"): TextMethod {
  return (self, [width, fill], _, budget) => {
    const missing = wholeNumber(width ?? null) - codePoints(self).length;
    if (missing <= 0) return self;
    budget.made(missing);
    const char = fill === undefined ? " " : text("center", fill);
    // Python puts the odd one to the left of a text of odd width.
    const both = Math.floor(missing / 2) + (missing & wholeNumber(width ?? null) & 1);
    const left = side === "start" ? missing : side === "end" ? 0 : both;
    return char.repeat(left) + self + char.repeat(missing - left);
  };
}

function partition(isLast: boolean): TextMethod {
  return (self, [given]) => {
    const separator = text("partition", given);
    if (separator === "") throw new PythonError("empty separator");
    const at = isLast ? self.lastIndexOf(separator) : self.indexOf(separator);
    if (at < 0) return new Tuple(isLast ? ["", "", self] : [self, "", ""]);
    return new Tuple([self.slice(0, at), separator, self.slice(at + separator.length)]);
  };
}

function every(pattern: RegExp): TextMethod {
  return (self) => self !== "" && codePoints(self).every((char) => pattern.test(char));
}

/** First letters of words up, the others down: `str.title`. */
function title(self: string): string {
  return self.replace(/\p{L}+/gu, (word) => {
    const [first = "", ...rest] = codePoints(word);
    return first.toUpperCase() + rest.join("").toLowerCase();
  });
}

export function capitalize(self: string): string {
  const [first = "", ...rest] = codePoints(self);
  return first.toUpperCase() + rest.join("").toLowerCase();
}

function swapCase(self: string): string {
  return codePoints(self)
    .map((char) => (char === char.toUpperCase() ? char.toLowerCase() : char.toUpperCase()))
    .join("");
}

function zfill(self: string, [width]: readonly Value[], _: Kwargs, budget: Budget): string {
  const size = wholeNumber(width ?? null);
  const sign = /^[-+]/.exec(self)?.[0] ?? "";
  budget.made(Math.max(0, size));
  return sign + self.slice(sign.length).padStart(size - sign.length, "0");
}

export const TEXT_METHODS: Readonly<Record<string, TextMethod>> = {
  strip: stripper("both"),
  lstrip: stripper("left"),
  rstrip: stripper("right"),
  split: (self, args, kwargs) => split(self, args, kwargs, false),
  rsplit: (self, args, kwargs) => split(self, args, kwargs, true),
  splitlines: (self, [keepends]) => splitLines(self, flag(keepends, false)),
  upper: (self) => self.toUpperCase(),
  lower: (self) => self.toLowerCase(),
  casefold: (self) => self.toLowerCase(),
  title,
  capitalize,
  swapcase: swapCase,
  replace,
  startswith: affix("startsWith"),
  endswith: affix("endsWith"),
  find: finder("indexOf", false),
  rfind: finder("lastIndexOf", false),
  index: finder("indexOf", true),
  rindex: finder("lastIndexOf", true),
  count,
  join,
  format: formatText,
  center: padder("both"),
  ljust: padder("end"),
  rjust: padder("start"),
  zfill,
  partition: partition(false),
  rpartition: partition(true),
  removeprefix: (self, [given]) => {
    const one = text("removeprefix", given);
    return self.startsWith(one) ? self.slice(one.length) : self;
  },
  removesuffix: (self, [given]) => {
    const one = text("removesuffix", given);
    return one !== "" && self.endsWith(one) ? self.slice(0, -one.length) : self;
  },
  isalpha: every(/^\p{L}$/u),
  isdigit: every(/^[\p{Nd}\u00b2\u00b3\u00b9\u2070-\u2079\u2080-\u2089]$/u),
  isdecimal: every(/^\p{Nd}$/u),
  isnumeric: every(/^\p{N}$/u),
  isalnum: every(/^[\p{L}\p{N}]$/u),
  isspace: every(new RegExp(`^[${SPACE}]$`)),
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the range of ASCII.
  isascii: (self) => /^[\x00-\x7f]*$/.test(self),
  isupper: (self) => self === self.toUpperCase() && self !== self.toLowerCase(),
  islower: (self) => self === self.toLowerCase() && self !== self.toUpperCase(),
};
