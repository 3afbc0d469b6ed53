import * as py from "../python/index.ts";
import { type Kwargs, PythonError, Thing, Undefined, type Value } from "../python/index.ts";
import { makeDict } from "./methods.ts";
import { type Budget, wholeNumber } from "./operators.ts";

/** Maximum length of a `range`, as in Jinja's sandbox. */
const RANGE_MAX = 100_000;

function fn(name: string, call: (args: readonly Value[], kwargs: Kwargs) => Value): Thing {
  return new Thing(name, { call });
}

function range(args: readonly Value[], budget: Budget): Value[] {
  const numbers = args.map(wholeNumber);
  const [from, to] = numbers.length === 1 ? [0, numbers[0]] : [numbers[0], numbers[1]];
  const step = numbers[2] ?? 1;
  if (from === undefined || to === undefined) throw new PythonError("range expected 1 argument");
  if (step === 0) throw new PythonError("range() arg 3 must not be zero");
  const length = Math.max(0, Math.ceil((to - from) / step));
  if (length > RANGE_MAX) {
    throw new PythonError(`Range too big. The sandbox blocks ranges larger than ${RANGE_MAX}.`);
  }
  budget.made(length);
  return Array.from({ length }, (_, i) => BigInt(from + i * step));
}

function namespace(args: readonly Value[], kwargs: Kwargs): Thing {
  const slots = new Map<string, Value>();
  for (const [key, value] of makeDict(args, kwargs)) slots.set(py.textOf(key), value);
  return new Thing("Namespace", { slots });
}

/**
 * Implements `cycler`. Its method `next()` returns the items in order and starts again after the
 * last.
 */
function cycler(items: readonly Value[]): Thing {
  if (items.length === 0) throw new PythonError("at least one item has to be provided");
  let at = 0;
  const next = () => {
    const value = items[at];
    at = (at + 1) % items.length;
    return value;
  };
  const reset = () => {
    at = 0;
    return null;
  };
  return new Thing("Cycler", {
    attributes: {
      current: () => items[at],
      next: () => fn("next", next),
      reset: () => fn("reset", reset),
    },
  });
}

function joiner(separator: Value | undefined): Thing {
  let isUsed = false;
  return fn("Joiner", () => {
    if (isUsed) return separator ?? ", ";
    isUsed = true;
    return "";
  });
}

function raise(message: Value | undefined): never {
  throw new PythonError(
    message === undefined ? "the template raised an exception" : py.textOf(message),
  );
}

/** Returns the global names that every template can use, as transformers defines them. */
export function globals(budget: Budget, now: () => Date): Map<string, Value> {
  return new Map<string, Value>([
    ["range", fn("range", (args) => range(args, budget))],
    ["dict", fn("dict", makeDict)],
    ["namespace", fn("namespace", namespace)],
    ["cycler", fn("cycler", (args) => cycler(args))],
    ["joiner", fn("joiner", ([separator]) => joiner(separator))],
    ["raise_exception", fn("raise_exception", ([message]) => raise(message))],
    ["strftime_now", fn("strftime_now", ([format]) => strftime(py.textOf(format ?? ""), now()))],
  ]);
}

interface LoopState {
  readonly items: readonly Value[];
  readonly depth: number;
  readonly recurse: ((items: Value, depth: number) => Value) | null;
  at: number;
}

/** Returns the variable `loop`. It reads `state`, which changes on each iteration. */
export function loopThing(state: LoopState): Thing {
  const { items, depth, recurse } = state;
  let changed: readonly Value[] | null = null;
  const neighbour = (by: number, what: string) => {
    return items[state.at + by] ?? (items[state.at + by] === null ? null : new Undefined(what));
  };
  const cycle = (args: readonly Value[]) => {
    if (args.length === 0) throw new PythonError("no items for cycling given");
    return args[state.at % args.length];
  };
  const hasChanged = (args: readonly Value[]) => {
    const isSame = changed !== null && py.textOf([...changed]) === py.textOf([...args]);
    changed = args;
    return !isSame;
  };
  const number = (value: () => number) => () => BigInt(value());
  return new Thing("LoopContext", {
    ...(recurse === null ? {} : { call: ([inner]) => recurse(inner ?? null, depth + 1) }),
    attributes: {
      index: number(() => state.at + 1),
      index0: number(() => state.at),
      revindex: number(() => items.length - state.at),
      revindex0: number(() => items.length - state.at - 1),
      first: () => state.at === 0,
      last: () => state.at === items.length - 1,
      length: number(() => items.length),
      depth: number(() => depth),
      depth0: number(() => depth - 1),
      previtem: () => (state.at === 0 ? new Undefined("no previous item") : neighbour(-1, "")),
      nextitem: () => neighbour(1, "no next item"),
      cycle: () => fn("cycle", cycle),
      changed: () => fn("changed", hasChanged),
    },
  });
}

/**
 * Splits a value for an assignment to `count` names. Throws PythonError if it has another number of
 * items.
 */
export function unpacked(value: Value, count: number): readonly Value[] {
  const items = value instanceof Undefined ? value.raise() : py.iterate(value);
  if (items.length === count) return items;
  const what = items.length > count ? "too many" : "not enough";
  throw new PythonError(`${what} values to unpack from a ${py.typeName(value)}, expected ${count}`);
}

const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  ...["January", "February", "March", "April", "May", "June", "July", "August"],
  ...["September", "October", "November", "December"],
];

function two(value: number): string {
  return value.toString().padStart(2, "0");
}

function dayOfYear(at: Date): number {
  const start = Date.UTC(at.getFullYear(), 0, 1);
  const day = Date.UTC(at.getFullYear(), at.getMonth(), at.getDate());
  return Math.round((day - start) / 86_400_000) + 1;
}

const DIRECTIVES: Readonly<Record<string, (at: Date) => string>> = {
  "%": () => "%",
  A: (at) => DAYS[at.getDay()],
  a: (at) => DAYS[at.getDay()].slice(0, 3),
  B: (at) => MONTHS[at.getMonth()],
  b: (at) => MONTHS[at.getMonth()].slice(0, 3),
  d: (at) => two(at.getDate()),
  e: (at) => at.getDate().toString().padStart(2),
  F: (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`,
  H: (at) => two(at.getHours()),
  I: (at) => two(at.getHours() % 12 || 12),
  j: (at) => dayOfYear(at).toString().padStart(3, "0"),
  M: (at) => two(at.getMinutes()),
  m: (at) => two(at.getMonth() + 1),
  p: (at) => (at.getHours() < 12 ? "AM" : "PM"),
  S: (at) => two(at.getSeconds()),
  T: (at) => `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`,
  w: (at) => at.getDay().toString(),
  Y: (at) => at.getFullYear().toString(),
  y: (at) => two(at.getFullYear() % 100),
};

/** Implements `datetime.strftime` in the C locale and this host's time zone. */
function strftime(format: string, at: Date): string {
  return format.replace(/%(-?)([\s\S])?/g, (all, flag: string, name: string | undefined) => {
    const directive = Object.hasOwn(DIRECTIVES, name ?? "") ? DIRECTIVES[name!] : undefined;
    if (directive === undefined) throw new PythonError(`the directive ${all} is not supported`);
    const text = directive(at);
    return flag === "" ? text : text.replace(/^[0 ]+(?=.)/, "");
  });
}
