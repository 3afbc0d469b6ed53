import * as py from "../python/index.ts";
import { type Kwargs, PythonError, Tuple, Undefined, type Value } from "../python/index.ts";
import type { Comparison, Operator } from "./parser.ts";

/** Maximum bits of an integer that a template may compute. Larger results throw an error. */
const BITS_MAX = 4_096;

export function binary(op: Operator, left: Value, right: Value, budget: Budget): Value {
  if (left instanceof Undefined) left.raise();
  if (right instanceof Undefined) right.raise();
  if (py.isNumber(left) && py.isNumber(right))
    return arithmetic(op, py.numberOf(left), py.numberOf(right));
  if (op === "+") {
    const sum = concatenated(left, right, budget);
    if (sum !== null) return sum;
  }
  if (op === "*") {
    if (isInteger(right)) return repeated(left, right, op, budget);
    if (isInteger(left)) return repeated(right, left, op, budget);
  }
  if (op === "%" && typeof left === "string") return percent(left, right, budget);
  return unsupported(op, left, right);
}

function unsupported(op: string, left: Value, right: Value): never {
  const types = `'${py.typeName(left)}' and '${py.typeName(right)}'`;
  throw new PythonError(`unsupported operand type(s) for ${op}: ${types}`);
}

function isInteger(value: Value): value is bigint | boolean {
  return typeof value === "bigint" || typeof value === "boolean";
}

function concatenated(left: Value, right: Value, budget: Budget): Value | null {
  if (typeof left === "string" && typeof right === "string") {
    budget.made(left.length + right.length);
    return left + right;
  }
  if (Array.isArray(left) && Array.isArray(right)) {
    budget.made(left.length + right.length);
    return [...left, ...right];
  }
  if (!(left instanceof Tuple && right instanceof Tuple)) return null;
  budget.made(left.items.length + right.items.length);
  return new Tuple([...left.items, ...right.items]);
}

function repeated(value: Value, times: bigint | boolean, op: Operator, budget: Budget): Value {
  const count = Number(py.numberOf(times));
  const copies = Math.max(0, count);
  if (typeof value === "string") {
    budget.made(value.length * copies);
    return value.repeat(value === "" ? 0 : copies);
  }
  const items = Array.isArray(value) ? value : value instanceof Tuple ? value.items : null;
  if (items === null) return unsupported(op, value, times);
  budget.made(items.length * copies);
  const all = items.length === 0 ? [] : Array.from({ length: copies }, () => items).flat();
  return Array.isArray(value) ? all : new Tuple(all);
}

function arithmetic(op: Operator, a: bigint | number, b: bigint | number): Value {
  if (op === "/") {
    if (Number(b) === 0) throw new PythonError("division by zero");
    return Number(a) / Number(b);
  }
  if (typeof a === "bigint" && typeof b === "bigint") return integers(op, a, b);
  return floats(op, Number(a), Number(b));
}

function integers(op: Operator, a: bigint, b: bigint): Value {
  const isFloored = op === "//" || op === "%";
  if (isFloored && b === 0n) throw new PythonError("integer division or modulo by zero");
  const rest = isFloored ? a % b : 0n;
  // JavaScript's division rounds toward zero, Python's rounds down.
  const isOff = rest !== 0n && rest < 0n !== b < 0n;
  if (op === "+") return a + b;
  if (op === "-") return a - b;
  if (op === "//") return isOff ? a / b - 1n : a / b;
  if (op === "%") return isOff ? rest + b : rest;
  const bits = a.toString(2).length;
  if (op === "*") {
    if (bits + b.toString(2).length > BITS_MAX) throw new PythonError("an integer is too large");
    return a * b;
  }
  if (b < 0n) {
    if (a === 0n) throw new PythonError("zero to a negative power");
    return Number(a) ** Number(b);
  }
  if (BigInt(bits) * b > BigInt(BITS_MAX)) throw new PythonError("an integer is too large");
  return a ** b;
}

function floats(op: Operator, a: number, b: number): number {
  if (op === "+") return a + b;
  if (op === "-") return a - b;
  if (op === "*") return a * b;
  if (op === "**") {
    if (a < 0 && !Number.isInteger(b)) throw new PythonError("a complex number");
    return a ** b;
  }
  if (b === 0) throw new PythonError("float floor division by zero");
  const rest = a % b;
  const modulo = rest !== 0 && rest < 0 !== b < 0 ? rest + b : rest;
  return op === "%" ? modulo : Math.round((a - modulo) / b);
}

export function negative(value: Value, op: "-" | "+"): Value {
  if (value instanceof Undefined) value.raise();
  if (!py.isNumber(value)) throw new PythonError(`bad operand type for unary ${op}`);
  const number = py.numberOf(value);
  return op === "-" ? -number : number;
}

export const COMPARISONS: Readonly<Record<Comparison, (left: Value, right: Value) => boolean>> = {
  "==": py.equals,
  "!=": (left, right) => !py.equals(left, right),
  in: (left, right) => py.contains(right, left),
  "not in": (left, right) => !py.contains(right, left),
  "<": (left, right) => py.compare(left, right) < 0,
  "<=": (left, right) => py.compare(left, right) <= 0,
  ">": (left, right) => py.compare(left, right) > 0,
  ">=": (left, right) => py.compare(left, right) >= 0,
};

const DIRECTIVE = /%(?:%|([-0]*)([0-9]*)(?:\.([0-9]+))?([sdirfx]))/g;

/** Implements `text % values`. Does not support named fields. */
export function percent(text: string, given: Value, budget: Budget): string {
  const values = given instanceof Tuple ? [...given.items] : [given];
  const isAll = text.replace(DIRECTIVE, "").includes("%");
  if (isAll) throw new PythonError("unsupported format character");
  const made = text.replace(DIRECTIVE, (all, flags, width, digits, kind) => {
    if (all === "%%") return "%";
    const value = values.shift();
    if (value === undefined) throw new PythonError("not enough arguments for format string");
    const plain = formatted(value, kind, digits === undefined ? null : Number(digits));
    const size = Number(width || 0);
    budget.made(size);
    if (flags.includes("-")) return plain.padEnd(size);
    if (!flags.includes("0") || kind === "s" || kind === "r") return plain.padStart(size);
    const sign = plain.startsWith("-") ? "-" : "";
    return sign + plain.slice(sign.length).padStart(size - sign.length, "0");
  });
  if (values.length > 0 && !(given instanceof Map)) {
    throw new PythonError("not all arguments converted during string formatting");
  }
  return made;
}

function formatted(value: Value, kind: string, digits: number | null): string {
  if (kind === "s" || kind === "r") {
    const text = kind === "s" ? py.textOf(value) : py.reprOf(value);
    return digits === null ? text : py.codePoints(text).slice(0, digits).join("");
  }
  if (!py.isNumber(value)) throw new PythonError(`%${kind} format: a number is required`);
  const number = py.numberOf(value);
  if (kind === "f") {
    if ((digits ?? 6) > 100) throw new PythonError("too many digits");
    return Number(number).toFixed(digits ?? 6);
  }
  if (typeof number === "number" && (kind === "x" || !Number.isFinite(number))) {
    throw new PythonError(`%${kind} format: an integer is required`);
  }
  const whole = typeof number === "bigint" ? number : BigInt(Math.trunc(number));
  return whole.toString(kind === "x" ? 16 : 10).padStart(digits ?? 0, "0");
}

/**
 * Converts a Python index, which may be negative, to a position. Returns null if it is out of
 * range.
 */
export function placeOf(index: bigint | boolean, length: number): number | null {
  const at = Number(py.numberOf(index));
  const place = at < 0 ? at + length : at;
  return place >= 0 && place < length ? place : null;
}

/** Evaluates `value[start:stop:step]`. */
export function slice(value: Value, bounds: readonly (Value | null)[], budget: Budget): Value {
  if (value instanceof Undefined) value.raise();
  const isText = typeof value === "string";
  const items = isText ? py.codePoints(value) : Array.isArray(value) ? value : null;
  const all = items ?? (value instanceof Tuple ? value.items : null);
  if (all === null) throw new PythonError(`'${py.typeName(value)}' object is not subscriptable`);
  const picked = pick<Value>(all, bounds.map(indexOf));
  budget.made(picked.length);
  if (isText) return picked.join("");
  return value instanceof Tuple ? new Tuple(picked) : picked;
}

function indexOf(value: Value | null): number | null {
  if (value === null) return null;
  if (isInteger(value)) return Number(py.numberOf(value));
  if (value instanceof Undefined) value.raise();
  throw new PythonError("slice indices must be integers or None");
}

function pick<T>(items: readonly T[], bounds: readonly (number | null)[]): T[] {
  const [from, to, by] = bounds as [number | null, number | null, number | null];
  const step = by ?? 1;
  if (step === 0) throw new PythonError("slice step cannot be zero");
  const { length } = items;
  const [low, high] = step > 0 ? [0, length] : [-1, length - 1];
  const clamp = (at: number) => Math.min(Math.max(at < 0 ? at + length : at, low), high);
  const start = from === null ? (step > 0 ? low : high) : clamp(from);
  const stop = to === null ? (step > 0 ? high : low) : clamp(to);
  if (step === 1) return items.slice(start, stop);
  const picked: T[] = [];
  for (let i = start; step > 0 ? i < stop : i > stop; i += step) picked.push(items[i]);
  return picked;
}

/** Converts a Python integer argument to a JavaScript number. */
export function wholeNumber(value: Value): number {
  if (!isInteger(value)) {
    throw new PythonError(`'${py.typeName(value)}' object cannot be interpreted as an integer`);
  }
  return Number(py.numberOf(value));
}

export function flag(value: Value | undefined, otherwise: boolean): boolean {
  return value === undefined ? otherwise : py.isTrue(value);
}

export interface RenderLimits {
  /** Maximum steps of a render: nodes evaluated plus items iterated. */
  readonly steps: number;
  /**
   * Maximum memory of a render: characters of texts plus items of lists created, output included.
   */
  readonly made: number;
}

/**
 * Limits of one render. Without them, a template could loop for ever or double a text until memory
 * is full.
 */
export const RENDER_LIMITS: RenderLimits = { steps: 5_000_000, made: 256 * 1024 * 1024 };

/** Maximum nesting depth of calls of macros and filters. */
const DEPTH_MAX = 150;

/** Counts the steps and the memory of a render. Throws PythonError if a limit is exceeded. */
export class Budget {
  #steps: number;
  #made: number;
  #depth = 0;

  constructor({ steps, made }: RenderLimits) {
    [this.#steps, this.#made] = [steps, made];
  }

  step(count = 1): void {
    this.#steps -= count;
    if (this.#steps < 0) throw new PythonError("the template exceeds the limit of steps");
  }

  made(length: number): void {
    this.#made -= length;
    if (this.#made < 0) throw new PythonError("the template exceeds the limit of text");
  }

  deeper<T>(run: () => T): T {
    if (++this.#depth > DEPTH_MAX) throw new PythonError("maximum recursion depth exceeded");
    const result = run();
    this.#depth--;
    return result;
  }
}

/**
 * Assigns arguments to parameters, by position and by name. A parameter without an argument gets
 * JavaScript's undefined.
 */
export function bind(
  name: string,
  parameters: readonly string[],
  args: readonly Value[],
  kwargs: Kwargs,
): (Value | undefined)[] {
  if (args.length > parameters.length) {
    throw new PythonError(`${name}() takes at most ${parameters.length} arguments`);
  }
  const values: (Value | undefined)[] = parameters.map((_, i) => args[i]);
  for (const [key, value] of kwargs) {
    const at = parameters.indexOf(key);
    if (at < 0) throw new PythonError(`${name}() got an unexpected keyword argument '${key}'`);
    if (values[at] !== undefined) {
      throw new PythonError(`${name}() got multiple values for argument '${key}'`);
    }
    values[at] = value;
  }
  return values;
}

export function text(name: string, value: Value | undefined): string {
  if (typeof value === "string") return value;
  throw new PythonError(`${name}: expected a str`);
}
