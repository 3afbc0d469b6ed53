import {
  compare,
  contains,
  equals,
  isNumber,
  type Kwargs,
  PythonError,
  Thing,
  Tuple,
  textOf,
  Undefined,
  type Value,
} from "../python/index.ts";
import { binary } from "./operators.ts";
import type { Runtime } from "./runtime.ts";

export type TestFunction = (
  value: Value,
  args: readonly Value[],
  runtime: Runtime,
  kwargs: Kwargs,
) => boolean;

function other(args: readonly Value[]): Value {
  const [one] = args;
  if (one === undefined) throw new PythonError("a test misses its argument");
  return one;
}

function remainder(value: Value, by: bigint, runtime: Runtime): Value {
  return binary("%", value, by, runtime.budget);
}

const isInteger = (value: Value) => typeof value === "bigint";
const isCased = (text: string) => text.toUpperCase() !== text.toLowerCase();

function isIterable(value: Value): boolean {
  if (typeof value === "string" || value instanceof Undefined) return true;
  return value !== null && typeof value === "object" && !(value instanceof Thing);
}

function isSequence(value: Value): boolean {
  if (typeof value === "string" || Array.isArray(value) || value instanceof Map) return true;
  return value instanceof Tuple || value instanceof Undefined;
}

const eq: TestFunction = (value, args) => equals(value, other(args));
const ne: TestFunction = (value, args) => !equals(value, other(args));
const gt: TestFunction = (value, args) => compare(value, other(args)) > 0;
const ge: TestFunction = (value, args) => compare(value, other(args)) >= 0;
const lt: TestFunction = (value, args) => compare(value, other(args)) < 0;
const le: TestFunction = (value, args) => compare(value, other(args)) <= 0;

/** Jinja's own tests. */
export const TESTS: Readonly<Record<string, TestFunction>> = {
  ...{ eq, equalto: eq, "==": eq, ne, "!=": ne, gt, greaterthan: gt, ">": gt },
  ...{ ge, ">=": ge, lt, lessthan: lt, "<": lt, le, "<=": le },
  boolean: (value) => typeof value === "boolean",
  callable: (value) => value instanceof Thing && value.call !== null,
  defined: (value) => !(value instanceof Undefined),
  undefined: (value) => value instanceof Undefined,
  divisibleby: (value, args, runtime) => {
    return equals(binary("%", value, other(args), runtime.budget), 0n);
  },
  escaped: () => false,
  even: (value, _, runtime) => equals(remainder(value, 2n, runtime), 0n),
  odd: (value, _, runtime) => equals(remainder(value, 2n, runtime), 1n),
  false: (value) => value === false,
  true: (value) => value === true,
  filter: (value, _, runtime) => typeof value === "string" && runtime.hasFilter(value),
  test: (value) => typeof value === "string" && Object.hasOwn(TESTS, value),
  float: (value) => typeof value === "number",
  in: (value, args) => contains(other(args), value),
  integer: isInteger,
  iterable: isIterable,
  lower: (value) => isCased(textOf(value)) && textOf(value) === textOf(value).toLowerCase(),
  upper: (value) => isCased(textOf(value)) && textOf(value) === textOf(value).toUpperCase(),
  mapping: (value) => value instanceof Map,
  none: (value) => value === null,
  number: (value) => isNumber(value),
  // One object; texts and integers that are equal are as good as one.
  sameas: (value, args) => value === other(args),
  sequence: isSequence,
  string: (value) => typeof value === "string",
};
