import * as py from "../python/index.ts";
import {
  type Dict,
  type Kwargs,
  PythonError,
  Thing,
  Tuple,
  Undefined,
  type Value,
  View,
} from "../python/index.ts";
import { type Budget, bind, flag, placeOf, text, wholeNumber } from "./operators.ts";

type Method = (args: readonly Value[], kwargs: Kwargs) => Value;

/** Methods that Jinja's immutable sandbox does not allow, because they change a dictionary. */
const DICT_MUTATING = ["pop", "popitem", "update", "setdefault", "clear"];
const LIST_MUTATING = ["append", "extend", "insert", "remove", "reverse", "sort", ...DICT_MUTATING];
const DICT_METHODS: Readonly<Record<string, (dict: Dict) => Method>> = {
  get: (dict) => (args, kwargs) => {
    const [key, otherwise] = bind("get", ["key", "default"], args, kwargs);
    return dict.get(py.keyOf(key ?? null)) ?? otherwise ?? null;
  },
  items: (dict) => () => new View("dict_items", pairsOf(dict)),
  keys: (dict) => () => new View("dict_keys", [...dict.keys()]),
  values: (dict) => () => new View("dict_values", [...dict.values()]),
  copy: (dict) => () => new Map(dict),
};
const TUPLE_METHODS: Readonly<Record<string, (items: readonly Value[]) => Method>> = {
  index:
    (items) =>
    ([one, from]) => {
      const start = from === undefined ? 0 : wholeNumber(from);
      const at = items.findIndex((item, i) => i >= start && py.equals(item, one ?? null));
      if (at < 0) throw new PythonError("the value is not in the list");
      return BigInt(at);
    },
  count:
    (items) =>
    ([one]) =>
      BigInt(items.filter((item) => py.equals(item, one ?? null)).length),
};
const LIST_METHODS: typeof TUPLE_METHODS = {
  ...TUPLE_METHODS,
  copy: (items) => () => [...items],
};

export function pairsOf(dict: Dict): Tuple[] {
  return [...dict].map((pair) => new Tuple(pair));
}

/**
 * Returns a method of a value as a callable value. Returns JavaScript's undefined if Python has no
 * method of this name.
 */
export function methodOf(value: Value, name: string, budget: Budget): Value | undefined {
  const call = find(value, name, budget);
  if (call !== undefined) return new Thing("builtin_function_or_method", { call });
  const hidden = value instanceof Map ? DICT_MUTATING : Array.isArray(value) ? LIST_MUTATING : [];
  if (!hidden.includes(name)) return undefined;
  return new Undefined(`access to attribute '${name}' of a value is unsafe.`);
}

function find(value: Value, name: string, budget: Budget): Method | undefined {
  if (typeof value === "string") {
    const method = own(TEXT_METHODS, name);
    return method && ((args, kwargs) => method(value, args, kwargs, budget));
  }
  if (value instanceof Map) return own(DICT_METHODS, name)?.(value);
  if (Array.isArray(value)) return own(LIST_METHODS, name)?.(value);
  return value instanceof Tuple ? own(TUPLE_METHODS, name)?.(value.items) : undefined;
}

function own<T>(table: Readonly<Record<string, T>>, name: string): T | undefined {
  return Object.hasOwn(table, name) ? table[name] : undefined;
}

/** Implements the function `dict(...)` of templates. */
export function makeDict(args: readonly Value[], kwargs: Kwargs): Dict {
  const dict: Dict = new Map();
  const [from] = args;
  if (from instanceof Map) for (const [key, value] of from) dict.set(key, value);
  else if (from !== undefined) {
    for (const pair of py.iterate(from)) {
      const [key, value] = py.iterate(pair);
      if (key === undefined || value === undefined) throw new PythonError("expected pairs");
      dict.set(py.keyOf(key), value);
    }
  }
  for (const [key, value] of kwargs) dict.set(key, value);
  return dict;
}

type TextMethod = (self: string, args: readonly Value[], kwargs: Kwargs, budget: Budget) => Value;

const BLANKS = new RegExp(`[${py.SPACE}]+`);
const BLANK = new RegExp(`[${py.SPACE}]`);

function stripper(side: "both" | "left" | "right"): TextMethod {
  return (self, [chars]) => py.strip(self, chars == null ? null : text("py.strip", chars), side);
}

/**
 * Implements `str.split` and `str.rsplit`. Splits at most `limit` times; a negative limit means any
 * number of times.
 */
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
    const plain = py.strip(self, null, "both");
    return plain === "" ? [] : plain.split(BLANKS);
  }
  if (isFromRight) {
    const parts = splitBlanks(reversed(self), limit, false);
    return parts.map(reversed).reverse();
  }
  const parts: string[] = [];
  let rest = py.strip(self, null, "left");
  while (rest !== "" && parts.length < limit) {
    const at = rest.search(BLANK);
    parts.push(at < 0 ? rest : rest.slice(0, at));
    rest = at < 0 ? "" : py.strip(rest.slice(at), null, "left");
  }
  // The rest after the last split keeps its trailing blanks.
  return rest === "" ? parts : [...parts, rest];
}

function reversed(text: string): string {
  return py.codePoints(text).reverse().join("");
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
  const parts = from === "" ? ["", ...py.codePoints(self), ""] : self.split(from);
  const cuts = limit < 0 ? parts.length - 1 : Math.min(limit, parts.length - 1);
  budget.made(self.length + cuts * to.length);
  const head = parts.slice(0, cuts + 1).join(to);
  return cuts === parts.length - 1 ? head : head + from + parts.slice(cuts + 1).join(from);
}

function affix(name: "startsWith" | "endsWith"): TextMethod {
  return (self, [given, from, to]) => {
    if (given === undefined) throw new PythonError("expected a prefix");
    const points = from === undefined && to === undefined ? null : py.codePoints(self);
    const start = from == null ? undefined : wholeNumber(from);
    const part = points?.slice(start, to == null ? undefined : wholeNumber(to)).join("") ?? self;
    const options = given instanceof Tuple ? given.items : [given];
    return options.some((one) => part[name](text(name, one)));
  };
}

function finder(name: "indexOf" | "lastIndexOf", isStrict: boolean): TextMethod {
  return (self, [given, from, to]) => {
    const points = py.codePoints(self);
    const length = points.length;
    const clamp = (at: number) => Math.min(Math.max(at < 0 ? at + length : at, 0), length);
    const start = from == null ? 0 : clamp(wholeNumber(from));
    const end = to == null ? length : clamp(wholeNumber(to));
    const part = points.slice(start, end).join("");
    const unit = part[name](text("find", given));
    if (unit < 0 && isStrict) throw new PythonError("substring not found");
    return unit < 0 ? -1n : BigInt(start + py.codePoints(part.slice(0, unit)).length);
  };
}

function count(self: string, [given]: readonly Value[]): bigint {
  const one = text("count", given);
  return BigInt(one === "" ? py.codePoints(self).length + 1 : self.split(one).length - 1);
}

function join(self: string, [items]: readonly Value[], _: Kwargs, budget: Budget): string {
  const texts = py.iterate(items ?? null).map((item, i) => {
    if (typeof item === "string") return item;
    throw new PythonError(`sequence item ${i}: expected str instance, ${py.typeName(item)} found`);
  });
  budget.made(texts.reduce((sum, one) => sum + one.length + self.length, 0));
  return texts.join(self);
}

function padder(side: "start" | "end" | "both"): TextMethod {
  return (self, [width, fill], _, budget) => {
    const missing = wholeNumber(width ?? null) - py.codePoints(self).length;
    if (missing <= 0) return self;
    budget.made(missing);
    const char = fill === undefined ? " " : text("center", fill);
    // If the number of blanks is odd, Python puts the additional one on the left only if the width
    // is odd.
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
  return (self) => self !== "" && py.codePoints(self).every((char) => pattern.test(char));
}

/**
 * Implements `str.title`: converts the first letter of each word to upper case and the others to
 * lower case.
 */
function title(self: string): string {
  return self.replace(/\p{L}+/gu, (word) => {
    const [first = "", ...rest] = py.codePoints(word);
    return first.toUpperCase() + rest.join("").toLowerCase();
  });
}

export function capitalize(self: string): string {
  const [first = "", ...rest] = py.codePoints(self);
  return first.toUpperCase() + rest.join("").toLowerCase();
}

function swapCase(self: string): string {
  return py
    .codePoints(self)
    .map((char) => (char === char.toUpperCase() ? char.toLowerCase() : char.toUpperCase()))
    .join("");
}

function zfill(self: string, [width]: readonly Value[], _: Kwargs, budget: Budget): string {
  const size = wholeNumber(width ?? null);
  const sign = /^[-+]/.exec(self)?.[0] ?? "";
  budget.made(Math.max(0, size));
  return sign + self.slice(sign.length).padStart(size - sign.length, "0");
}

const TEXT_METHODS: Readonly<Record<string, TextMethod>> = {
  strip: stripper("both"),
  lstrip: stripper("left"),
  rstrip: stripper("right"),
  split: (self, args, kwargs) => split(self, args, kwargs, false),
  rsplit: (self, args, kwargs) => split(self, args, kwargs, true),
  splitlines: (self, [keepends]) => py.splitLines(self, flag(keepends, false)),
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
  isspace: every(new RegExp(`^[${py.SPACE}]$`)),
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the range of ASCII.
  isascii: (self) => /^[\x00-\x7f]*$/.test(self),
  isupper: (self) => self === self.toUpperCase() && self !== self.toLowerCase(),
  islower: (self) => self === self.toLowerCase() && self !== self.toUpperCase(),
};

const FIELD = /\{\{|\}\}|\{([^{}!:]*)(?:!([rs]))?(?::([^{}]*))?\}|[{}]/g;
const SPEC = /^(?:(.)?([<>^]))?(0)?([0-9]*)(,)?(?:\.([0-9]+))?([sdfx%]?)$/u;

/** Implements `str.format`. Throws for fields that access attributes or items. */
function formatText(text: string, args: readonly Value[], kwargs: Kwargs, budget: Budget): string {
  const fields = [...text.matchAll(FIELD)].map(([, name]) => name);
  if (fields.includes("") && fields.some((name) => /^[0-9]+$/.test(name ?? ""))) {
    throw new PythonError("cannot switch between numbered fields and fields without a number");
  }
  let next = 0;
  return text.replace(FIELD, (all, name: string | undefined, conversion, spec) => {
    if (all === "{{" || all === "}}") return all[0];
    if (name === undefined) throw new PythonError("a single brace in a format string");
    const value =
      name === "" ? args[next++] : /^[0-9]+$/.test(name) ? args[Number(name)] : kwargs.get(name);
    if (value === undefined) throw new PythonError(`no value for the field '${name}'`);
    const shown =
      conversion === "r" ? py.reprOf(value) : conversion === "s" ? py.textOf(value) : value;
    const made = spec === undefined || spec === "" ? py.textOf(shown) : styled(shown, spec);
    budget.made(made.length);
    return made;
  });
}

function styled(value: Value, spec: string): string {
  const match = SPEC.exec(spec);
  if (match === null) throw new PythonError(`the format '${spec}' is not supported`);
  const [, fill, align, zero, width, comma, digits, kind] = match;
  const plain = body(value, kind ?? "", digits === undefined ? null : Number(digits), comma);
  const size = Number(width || 0);
  if (size > 10_000) throw new PythonError("a field is too wide");
  const missing = size - py.codePoints(plain).length;
  if (missing <= 0) return plain;
  const isNumeric = py.isNumber(value);
  if (zero !== undefined && align === undefined && isNumeric) {
    const sign = plain.startsWith("-") ? "-" : "";
    return sign + "0".repeat(missing) + plain.slice(sign.length);
  }
  const side = align ?? (isNumeric ? ">" : "<");
  const left = side === ">" ? missing : side === "<" ? 0 : Math.floor(missing / 2);
  const char = fill ?? " ";
  return char.repeat(left) + plain + char.repeat(missing - left);
}

function body(value: Value, kind: string, digits: number | null, comma: string | undefined) {
  if (kind === "" && typeof value === "number") {
    throw new PythonError("a float without a format is not supported");
  }
  if (kind === "s" || (kind === "" && !py.isNumber(value))) {
    const text = py.textOf(value);
    return digits === null ? text : py.codePoints(text).slice(0, digits).join("");
  }
  if (!py.isNumber(value)) throw new PythonError(`unknown format code '${kind}'`);
  const number = py.numberOf(value);
  if (kind === "f" || kind === "%") {
    if ((digits ?? 6) > 100) throw new PythonError("too many digits");
    const scaled = kind === "%" ? Number(number) * 100 : Number(number);
    return grouped(scaled.toFixed(digits ?? 6), comma) + (kind === "%" ? "%" : "");
  }
  if (typeof number !== "bigint") throw new PythonError(`unknown format code '${kind}'`);
  return grouped(number.toString(kind === "x" ? 16 : 10), comma);
}

function grouped(digits: string, comma: string | undefined): string {
  return comma === undefined ? digits : digits.replace(/\B(?<!\.\d*)(?=(\d{3})+(?!\d))/g, ",");
}

/** Functions that filters, tests and the interpreter use during one render. */
export interface Runtime {
  readonly budget: Budget;
  hasFilter(name: string): boolean;
  runFilter(name: string, value: Value, args: readonly Value[], kwargs: Kwargs): Value;
  runTest(name: string, value: Value, args: readonly Value[], kwargs: Kwargs): boolean;
}

function missing(of: Value, name: Value): Undefined {
  const key = typeof name === "string" ? `'${name}'` : py.typeName(name);
  return new Undefined(`'${py.typeName(of)} object' has no attribute ${key}`);
}

/** Evaluates `value.name`. A Python method takes precedence over a dictionary key. */
export function attribute(of: Value, name: string, budget: Budget): Value {
  if (of instanceof Undefined) return of.raise();
  const method = methodOf(of, name, budget);
  if (method !== undefined) return method;
  if (of instanceof Thing) return of.attribute(name) ?? missing(of, name);
  if (of instanceof Tuple) return of.items[of.names.indexOf(name)] ?? missing(of, name);
  const found = of instanceof Map ? of.get(name) : undefined;
  return found ?? (found === null ? null : missing(of, name));
}

/** Evaluates `value[key]`. A dictionary key takes precedence over a method. */
export function item(of: Value, key: Value, budget: Budget): Value {
  if (of instanceof Undefined) return of.raise();
  if (of instanceof Map) {
    const found = of.get(isHashable(key) ? py.keyOf(key) : null);
    if (found !== undefined && isHashable(key)) return found;
  } else if (typeof key === "bigint" || typeof key === "boolean") {
    const found = at(of, key);
    if (found !== undefined) return found;
  }
  if (typeof key !== "string") return missing(of, key);
  if (of instanceof Thing) return of.attribute(key) ?? missing(of, key);
  return methodOf(of, key, budget) ?? missing(of, key);
}

function isHashable(key: Value): boolean {
  return key === null || typeof key !== "object";
}

function at(of: Value, index: bigint | boolean): Value | undefined {
  if (typeof of === "string") {
    const points = Array.from(of);
    const place = placeOf(index, points.length);
    return place === null ? undefined : points[place];
  }
  const items = Array.isArray(of) ? of : of instanceof Tuple ? of.items : null;
  const place = items === null ? null : placeOf(index, items.length);
  return place === null ? undefined : items![place];
}

export function callValue(
  value: Value,
  args: readonly Value[],
  kwargs: Kwargs,
  budget: Budget,
): Value {
  if (value instanceof Undefined) return value.raise();
  if (!(value instanceof Thing) || value.call === null) {
    throw new PythonError(`'${py.typeName(value)}' object is not callable`);
  }
  const { call } = value;
  return budget.deeper(() => call(args, kwargs));
}
