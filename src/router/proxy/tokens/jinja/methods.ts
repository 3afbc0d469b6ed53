import {
  type Dict,
  equals,
  iterate,
  type Kwargs,
  keyOf,
  PythonError,
  Thing,
  Tuple,
  Undefined,
  type Value,
  View,
} from "../python/index.ts";
import { bind } from "./arguments.ts";
import type { Budget } from "./budget.ts";
import { wholeNumber } from "./operators.ts";
import { TEXT_METHODS } from "./text-methods.ts";

type Method = (args: readonly Value[], kwargs: Kwargs) => Value;

const MUTATING: ReadonlySet<string> = new Set([
  ...["append", "extend", "insert", "pop", "remove", "reverse", "sort", "clear"],
  ...["update", "setdefault", "popitem"],
]);

/** A method of a value; JavaScript's undefined where Python has none of the name. */
export function methodOf(value: Value, name: string, budget: Budget): Value | undefined {
  const method = find(value, name, budget);
  if (method === undefined) return undefined;
  if (method === "mutates") {
    // The immutable sandbox hides them.
    return new Undefined(`access to attribute '${name}' of a value is unsafe.`);
  }
  return new Thing("builtin_function_or_method", { call: method });
}

function find(value: Value, name: string, budget: Budget): Method | "mutates" | undefined {
  if (typeof value === "string") {
    const method = Object.hasOwn(TEXT_METHODS, name) ? TEXT_METHODS[name]! : undefined;
    if (method === undefined) return undefined;
    return (args, kwargs) => method(value, args, kwargs, budget);
  }
  if (value instanceof Map) return dictMethod(value, name);
  const items = Array.isArray(value) ? value : value instanceof Tuple ? value.items : null;
  return items === null ? undefined : listMethod(items, name, Array.isArray(value));
}

function dictMethod(dict: Dict, name: string): Method | "mutates" | undefined {
  switch (name) {
    case "get":
      return (args, kwargs) => {
        const [key, otherwise] = bind("get", ["key", "default"], args, kwargs);
        return dict.get(keyOf(key ?? null)) ?? otherwise ?? null;
      };
    case "items":
      return () =>
        new View(
          "dict_items",
          [...dict].map((pair) => new Tuple(pair)),
        );
    case "keys":
      return () => new View("dict_keys", [...dict.keys()]);
    case "values":
      return () => new View("dict_values", [...dict.values()]);
    case "copy":
      return () => new Map(dict);
    case "pop":
    case "popitem":
    case "update":
    case "setdefault":
    case "clear":
      return "mutates";
    default:
      return undefined;
  }
}

function listMethod(
  items: readonly Value[],
  name: string,
  isList: boolean,
): Method | "mutates" | undefined {
  if (name === "index") {
    return ([one, from]) => {
      const start = from === undefined ? 0 : wholeNumber(from);
      const at = items.findIndex((item, i) => i >= start && equals(item, one ?? null));
      if (at < 0) throw new PythonError("the value is not in the list");
      return BigInt(at);
    };
  }
  if (name === "count") {
    return ([one]) => BigInt(items.filter((item) => equals(item, one ?? null)).length);
  }
  if (!isList) return undefined;
  if (name === "copy") return () => [...items];
  return MUTATING.has(name) ? "mutates" : undefined;
}

/** `dict(...)` of templates. */
export function makeDict(args: readonly Value[], kwargs: Kwargs): Dict {
  const dict: Dict = new Map();
  const [from] = args;
  if (from instanceof Map) for (const [key, value] of from) dict.set(key, value);
  else if (from !== undefined) {
    for (const pair of iterate(from)) {
      const [key, value] = iterate(pair);
      if (key === undefined || value === undefined) throw new PythonError("expected pairs");
      dict.set(keyOf(key), value);
    }
  }
  for (const [key, value] of kwargs) dict.set(key, value);
  return dict;
}
