/**
 * Value of a Python variable in a chat template. Integers are `bigint` and floats are `number`, so
 * 1 and 1.0 are distinct. A list is an array; a dictionary is a `Map` in insertion order.
 */
export type Value =
  | null
  | boolean
  | bigint
  | number
  | string
  | Value[]
  | Tuple
  | Dict
  | Iter
  | View
  | Undefined
  | Thing;

export type Dict = Map<Value, Value>;

export type Kwargs = ReadonlyMap<string, Value>;

/** Exception that Python, Jinja's sandbox or the template itself would raise. */
export class PythonError extends Error {}

export class Tuple {
  readonly items: readonly Value[];
  /** Names of a named tuple's items, in order. */
  readonly names: readonly string[];
  constructor(items: readonly Value[], names: readonly string[] = []) {
    [this.items, this.names] = [items, names];
  }
}

/** A Python generator or iterator. It is always true, and each value can be read once. */
export class Iter {
  readonly #items: readonly Value[];
  #at = 0;
  constructor(items: readonly Value[]) {
    this.#items = items;
  }

  /** Returns all values not read yet. */
  rest(): readonly Value[] {
    const items = this.#at === 0 ? this.#items : this.#items.slice(this.#at);
    this.#at = this.#items.length;
    return items;
  }

  /** Returns the next value, or JavaScript's undefined after the last one. */
  next(): Value | undefined {
    return this.#at < this.#items.length ? this.#items[this.#at++] : undefined;
  }
}

/** Result of `dict.keys()`, `dict.values()` or `dict.items()`. */
export class View {
  readonly kind: "dict_keys" | "dict_values" | "dict_items";
  readonly items: readonly Value[];
  constructor(kind: View["kind"], items: readonly Value[]) {
    [this.kind, this.items] = [kind, items];
  }
}

/**
 * Jinja's default `Undefined`. It renders as an empty text, is false, and raises an error on any
 * other use.
 */
export class Undefined {
  readonly why: string;
  constructor(why: string) {
    this.why = why;
  }

  raise(): never {
    throw new PythonError(this.why);
  }
}

export type Call = (args: readonly Value[], kwargs: Kwargs) => Value;

/** An object with attributes, a call function, or both: a loop, macro, namespace or method. */
export class Thing {
  readonly type: string;
  readonly #attributes: ReadonlyMap<string, () => Value>;
  readonly call: Call | null;
  /** Attributes that templates may assign. Only a namespace has them; null for other objects. */
  readonly slots: Map<string, Value> | null;

  constructor(
    type: string,
    parts: {
      readonly attributes?: Readonly<Record<string, () => Value>>;
      readonly call?: Call;
      readonly slots?: Map<string, Value>;
    },
  ) {
    this.type = type;
    this.#attributes = new Map(Object.entries(parts.attributes ?? {}));
    this.call = parts.call ?? null;
    this.slots = parts.slots ?? null;
  }

  /** Returns an attribute's value, or JavaScript's undefined if it does not exist. */
  attribute(name: string): Value | undefined {
    return this.slots?.get(name) ?? this.#attributes.get(name)?.();
  }
}

export function typeName(value: Value): string {
  if (value === null) return "NoneType";
  if (typeof value === "boolean") return "bool";
  if (typeof value === "bigint") return "int";
  if (typeof value === "number") return "float";
  if (typeof value === "string") return "str";
  if (Array.isArray(value)) return "list";
  if (value instanceof Map) return "dict";
  if (value instanceof Tuple) return "tuple";
  if (value instanceof View) return value.kind;
  if (value instanceof Iter) return "generator";
  return value instanceof Undefined ? "Undefined" : value.type;
}

/** Returns the `Map` key for a dictionary key. In Python, 1.0 and 1 are the same key. */
export function keyOf(key: Value): Value {
  if (typeof key === "number" && Number.isInteger(key)) return BigInt(key);
  if (key !== null && typeof key === "object" && !(key instanceof Thing)) {
    throw new PythonError(`unhashable type: '${typeName(key)}'`);
  }
  return key;
}

export function isTrue(value: Value): boolean {
  if (Array.isArray(value)) return value.length > 0;
  if (value instanceof Map) return value.size > 0;
  if (value instanceof Tuple || value instanceof View) return value.items.length > 0;
  if (value instanceof Undefined) return false;
  return typeof value === "number" ? value !== 0 : Boolean(value);
}

/** Returns the items of a value. Throws if the value is not iterable in Python. */
export function iterate(value: Value): readonly Value[] {
  if (Array.isArray(value)) return value;
  if (typeof value === "string") return Array.from(value);
  if (value instanceof Map) return [...value.keys()];
  if (value instanceof Tuple || value instanceof View) return value.items;
  if (value instanceof Iter) return value.rest();
  if (value instanceof Undefined) return [];
  throw new PythonError(`'${typeName(value)}' object is not iterable`);
}

/** Implements `len`. Throws if the value has no length in Python. */
export function lengthOf(value: Value): number {
  if (typeof value === "string") return lengthOfText(value);
  if (Array.isArray(value)) return value.length;
  if (value instanceof Map) return value.size;
  if (value instanceof Tuple || value instanceof View) return value.items.length;
  if (value instanceof Undefined) return 0;
  throw new PythonError(`object of type '${typeName(value)}' has no len()`);
}

/** Returns the length of a text in code points, as Python counts it. */
function lengthOfText(text: string): number {
  let length = text.length;
  for (let i = 0; i < text.length - 1; i++) {
    const unit = text.charCodeAt(i);
    if (unit < 0xd800 || unit > 0xdbff) continue;
    const next = text.charCodeAt(i + 1);
    if (next >= 0xdc00 && next <= 0xdfff) length--;
  }
  return length;
}

export function equals(a: Value, b: Value): boolean {
  if (a === b) return true;
  if (isNumber(a) && isNumber(b)) {
    const [x, y] = [numberOf(a), numberOf(b)];
    // Compares an integer and a float by value. `===` would treat them as different.
    return x <= y && x >= y;
  }
  if (Array.isArray(a)) return Array.isArray(b) && equalLists(a, b);
  if (a instanceof Tuple) return b instanceof Tuple && equalLists(a.items, b.items);
  if (a instanceof Undefined) return b instanceof Undefined;
  if (!(a instanceof Map && b instanceof Map) || a.size !== b.size) return false;
  for (const [key, value] of a) {
    const other = b.get(key);
    if (other === undefined || !equals(value, other)) return false;
  }
  return true;
}

function equalLists(a: readonly Value[], b: readonly Value[]): boolean {
  return a.length === b.length && a.every((one, i) => equals(one, b[i]));
}

export function isNumber(value: Value): value is bigint | number | boolean {
  return typeof value === "bigint" || typeof value === "number" || typeof value === "boolean";
}

/** Converts a boolean to the integer 0 or 1. */
export function numberOf(value: bigint | number | boolean): bigint | number {
  return typeof value === "boolean" ? (value ? 1n : 0n) : value;
}

/**
 * Compares two values. Returns a negative number, 0 or a positive number. Throws if Python cannot
 * order them.
 */
export function compare(a: Value, b: Value): number {
  if (isNumber(a) && isNumber(b)) {
    const [x, y] = [numberOf(a), numberOf(b)];
    return x < y ? -1 : x > y ? 1 : 0;
  }
  if (typeof a === "string" && typeof b === "string") return compareTexts(a, b);
  const [list, other] = [itemsOf(a), itemsOf(b)];
  if (list !== null && other !== null && Array.isArray(a) === Array.isArray(b)) {
    for (let i = 0; i < Math.min(list.length, other.length); i++) {
      if (!equals(list[i], other[i])) return compare(list[i], other[i]);
    }
    return list.length - other.length;
  }
  if (a instanceof Undefined) a.raise();
  if (b instanceof Undefined) b.raise();
  throw new PythonError(`'${typeName(a)}' and '${typeName(b)}' cannot be ordered`);
}

function itemsOf(value: Value): readonly Value[] | null {
  if (Array.isArray(value)) return value;
  return value instanceof Tuple ? value.items : null;
}

/** Compares texts by code points, as Python does. JavaScript compares UTF-16 units. */
function compareTexts(a: string, b: string): number {
  const end = Math.min(a.length, b.length);
  for (let i = 0; i < end; i++) {
    const [x, y] = [a.charCodeAt(i), b.charCodeAt(i)];
    if (x === y) continue;
    const isWide = (unit: number) => unit >= 0xd800 && unit <= 0xdfff;
    return isWide(x) === isWide(y) ? x - y : isWide(x) ? 1 : -1;
  }
  return a.length - b.length;
}

/** Implements Python's `in`. */
export function contains(value: Value, one: Value): boolean {
  if (typeof value === "string") {
    if (typeof one === "string") return value.includes(one);
    if (one instanceof Undefined) one.raise();
    throw new PythonError(`'in <string>' requires string as left operand, not ${typeName(one)}`);
  }
  if (value instanceof Map) return value.has(keyOf(one));
  return iterate(value).some((item) => equals(item, one));
}

/** White space of Python's `str.isspace`. JavaScript's `\s` matches a slightly different set. */
export const SPACE =
  "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";

const LEFT = new RegExp(`^[${SPACE}]+`);
const SPACES = new RegExp(`^[${SPACE}]$`);

/** Implements `str.strip`, `lstrip` and `rstrip`. Strips white space if `chars` is null. */
export function strip(text: string, chars: string | null, side: "both" | "left" | "right"): string {
  if (chars === null) {
    const left = side === "right" ? text : text.replace(LEFT, "");
    if (side === "left") return left;
    let end = left.length;
    while (end > 0 && SPACES.test(left[end - 1])) end--;
    return left.slice(0, end);
  }
  const set = new Set(chars);
  const points = Array.from(text);
  let [start, end] = [0, points.length];
  while (side !== "right" && start < end && set.has(points[start])) start++;
  while (side !== "left" && end > start && set.has(points[end - 1])) end--;
  return points.slice(start, end).join("");
}

// biome-ignore lint/suspicious/noControlCharactersInRegex: Python ends lines at them.
const LINE_ENDS = /\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/;

export function splitLines(text: string, keepsEnds = false): string[] {
  const lines: string[] = [];
  const pattern = new RegExp(LINE_ENDS, "g");
  let at = 0;
  for (let match = pattern.exec(text); match !== null; match = pattern.exec(text)) {
    lines.push(text.slice(at, keepsEnds ? pattern.lastIndex : match.index));
    at = pattern.lastIndex;
  }
  if (at < text.length) lines.push(text.slice(at));
  return lines;
}

/** Implements `str(value)`. */
export function textOf(value: Value): string {
  if (typeof value === "string") return value;
  return value instanceof Undefined ? "" : reprOf(value);
}

/**
 * Implements `repr(value)`. Throws for values whose repr contains a memory address, which differs
 * between runs.
 */
export function reprOf(value: Value): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "bigint") return value.toString();
  if (typeof value === "number") return floatText(value);
  if (typeof value === "string") return quoted(value);
  if (Array.isArray(value)) return `[${value.map(reprOf).join(", ")}]`;
  if (value instanceof Map) {
    return `{${[...value].map(([key, item]) => `${reprOf(key)}: ${reprOf(item)}`).join(", ")}}`;
  }
  if (value instanceof Tuple) {
    const items = value.items.map(reprOf);
    return items.length === 1 ? `(${items[0]},)` : `(${items.join(", ")})`;
  }
  if (value instanceof View) return `${value.kind}([${value.items.map(reprOf).join(", ")}])`;
  if (value instanceof Undefined) return "Undefined";
  if (value instanceof Thing && value.slots !== null) {
    return `<Namespace ${reprOf(new Map(value.slots))}>`;
  }
  const what = value instanceof Iter ? "a generator" : `a ${typeName(value)}`;
  throw new PythonError(`${what} has no stable repr`);
}

const ESCAPES: Readonly<Record<string, string>> = { "\\": "\\\\", "\n": "\\n", "\r": "\\r" };
const UNPRINTABLE = /[\\\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{Zs}]/gu;

function quoted(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const inner = text.replace(UNPRINTABLE, (char) => {
    if (char === " ") return char;
    if (char === "\t") return "\\t";
    return ESCAPES[char] ?? escapeOf(char.codePointAt(0)!);
  });
  return quote + (quote === "'" ? inner.replaceAll("'", "\\'") : inner) + quote;
}

function escapeOf(code: number): string {
  const hex = code.toString(16);
  if (code < 0x100) return `\\x${hex.padStart(2, "0")}`;
  return code < 0x10000 ? `\\u${hex.padStart(4, "0")}` : `\\U${hex.padStart(8, "0")}`;
}

/**
 * Implements `repr` of a float: the shortest digits that parse to the same value, with an exponent
 * from 1e16 on.
 */
export function floatText(value: number): string {
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value < 0 ? "-inf" : "inf";
  const [mantissa, power] = value.toExponential().split("e") as [string, string];
  const sign = Object.is(value, -0) || value < 0 ? "-" : "";
  const digits = mantissa.replace(/[-.]/g, "");
  const exponent = Number(power);
  if (exponent < -4 || exponent >= 16) {
    const fraction = digits.length > 1 ? `.${digits.slice(1)}` : "";
    const size = Math.abs(exponent).toString().padStart(2, "0");
    return `${sign}${digits[0]}${fraction}e${exponent < 0 ? "-" : "+"}${size}`;
  }
  if (exponent < 0) return `${sign}0.${"0".repeat(-exponent - 1)}${digits}`;
  const whole = digits.slice(0, exponent + 1).padEnd(exponent + 1, "0");
  return `${sign}${whole}.${digits.slice(exponent + 1) || "0"}`;
}

/** Splits a text into code points, in which Python counts indexes and slices. */
export function codePoints(text: string): string[] {
  return Array.from(text);
}
