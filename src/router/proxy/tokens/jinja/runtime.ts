import {
  type Kwargs,
  keyOf,
  PythonError,
  Thing,
  Tuple,
  typeName,
  Undefined,
  type Value,
} from "../python/index.ts";
import type { Budget } from "./budget.ts";
import { methodOf } from "./methods.ts";
import { placeOf } from "./operators.ts";

/** What filters, tests and the interpreter share while a template is rendered. */
export interface Runtime {
  readonly budget: Budget;
  hasFilter(name: string): boolean;
  runFilter(name: string, value: Value, args: readonly Value[], kwargs: Kwargs): Value;
  runTest(name: string, value: Value, args: readonly Value[], kwargs: Kwargs): boolean;
}

function missing(of: Value, name: Value): Undefined {
  const key = typeof name === "string" ? `'${name}'` : typeName(name);
  return new Undefined(`'${typeName(of)} object' has no attribute ${key}`);
}

/** `value.name`: a method of Python's before a key of a dictionary. */
export function attribute(of: Value, name: string, budget: Budget): Value {
  if (of instanceof Undefined) return of.raise();
  const method = methodOf(of, name, budget);
  if (method !== undefined) return method;
  if (of instanceof Thing) return of.attribute(name) ?? missing(of, name);
  if (of instanceof Tuple) return of.items[of.names.indexOf(name)] ?? missing(of, name);
  const found = of instanceof Map ? of.get(name) : undefined;
  return found ?? (found === null ? null : missing(of, name));
}

/** `value[key]`: a key of a dictionary before a method. */
export function item(of: Value, key: Value, budget: Budget): Value {
  if (of instanceof Undefined) return of.raise();
  if (of instanceof Map) {
    const found = of.get(isHashable(key) ? keyOf(key) : null);
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
    throw new PythonError(`'${typeName(value)}' object is not callable`);
  }
  const { call } = value;
  return budget.deeper(() => call(args, kwargs));
}
