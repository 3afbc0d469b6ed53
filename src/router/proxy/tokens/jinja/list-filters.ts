import {
  compare,
  equals,
  Iter,
  isTrue,
  iterate,
  PythonError,
  Tuple,
  textOf,
  Undefined,
  type Value,
  View,
} from "../python/index.ts";
import { bind } from "./arguments.ts";
import type { Filter } from "./filters.ts";
import { binary, flag, wholeNumber } from "./operators.ts";
import { item, type Runtime } from "./runtime.ts";

type Getter = (value: Value) => Value;

function walked(value: Value, { budget }: Runtime): readonly Value[] {
  const items = iterate(value);
  budget.step(items.length);
  budget.made(items.length);
  return items;
}

/** `a.b.0` looks into each value by keys. */
function getter(path: Value, runtime: Runtime, otherwise?: Value): Getter {
  const text = textOf(path);
  const keys = typeof path === "bigint" ? [path] : text.split(".").map(keyOfPath);
  return (value) => {
    let found = value;
    for (const key of keys) {
      found = item(found, key, runtime.budget);
      if (otherwise !== undefined && found instanceof Undefined) found = otherwise;
    }
    return found;
  };
}

function keyOfPath(part: string): Value {
  return /^[0-9]+$/.test(part) ? BigInt(part) : part;
}

const plain: Getter = (value) => value;
const lowered: Getter = (value) => (typeof value === "string" ? value.toLowerCase() : value);

function keyed(path: Value | undefined, isCased: Value | undefined, runtime: Runtime): Getter {
  const get = path == null ? plain : getter(path, runtime);
  return flag(isCased, false) ? get : (value) => lowered(get(value));
}

/** Attributes that are separated by commas are compared one after the other. */
function sortKey(path: Value | undefined, isCased: Value | undefined, runtime: Runtime): Getter {
  if (typeof path !== "string" || !path.includes(",")) return keyed(path, isCased, runtime);
  const parts = path.split(",").map((one) => keyed(one, isCased, runtime));
  return (value) => parts.map((part) => part(value));
}

function sorted(items: readonly Value[], key: Getter, isReverse: boolean): Value[] {
  const pairs = items.map((one) => ({ one, key: key(one) }));
  const sign = isReverse ? -1 : 1;
  return pairs.sort((a, b) => sign * compare(a.key, b.key)).map(({ one }) => one);
}

const map: Filter = (value, args, kwargs, runtime) => {
  const items = walked(value, runtime);
  const [name, ...rest] = args;
  const path = kwargs.get("attribute");
  if (name === undefined && path !== undefined) {
    return new Iter(items.map(getter(path, runtime, kwargs.get("default"))));
  }
  if (typeof name !== "string") throw new PythonError("map requires a filter argument");
  return new Iter(items.map((one) => runtime.runFilter(name, one, rest, kwargs)));
};

function selector(isWanted: boolean, hasAttribute: boolean): Filter {
  return (value, args, kwargs, runtime) => {
    const items = walked(value, runtime);
    const [path, ...others] = args;
    if (hasAttribute && path === undefined) throw new PythonError("Missing parameter");
    const get = hasAttribute ? getter(path!, runtime) : plain;
    const [name, ...rest] = hasAttribute ? others : args;
    const test = (one: Value) => {
      return name === undefined ? isTrue(one) : runtime.runTest(textOf(name), one, rest, kwargs);
    };
    return new Iter(items.filter((one) => test(get(one)) === isWanted));
  };
}

const join: Filter = (value, args, kwargs, runtime) => {
  const [separator, path] = bind("join", ["d", "attribute"], args, kwargs);
  const get = path == null ? plain : getter(path, runtime);
  const texts = walked(value, runtime).map((one) => textOf(get(one)));
  const between = separator === undefined ? "" : textOf(separator);
  runtime.budget.made(texts.reduce((sum, one) => sum + one.length + between.length, 0));
  return texts.join(between);
};

const first: Filter = (value, _args, _kwargs, runtime) => {
  if (value instanceof Iter) return value.next() ?? new Undefined("No first item");
  return walked(value, runtime)[0] ?? none(value, 0);
};

const last: Filter = (value, _args, _kwargs, runtime) => {
  if (value instanceof Iter) throw new PythonError("'generator' object is not reversible");
  return walked(value, runtime).at(-1) ?? none(value, -1);
};

/** An item that is None, or none at all. */
function none(value: Value, at: number): Value {
  return iterate(value).at(at) === null ? null : new Undefined("the sequence is empty");
}

const reverse: Filter = (value, _args, _kwargs, runtime) => {
  const items = [...walked(value, runtime)].reverse();
  if (typeof value === "string") return items.join("");
  return value instanceof Iter ? items : new Iter(items);
};

const sort: Filter = (value, args, kwargs, runtime) => {
  const names = ["reverse", "case_sensitive", "attribute"];
  const [isReverse, isCased, path] = bind("sort", names, args, kwargs);
  const key = sortKey(path, isCased, runtime);
  return sorted(walked(value, runtime), key, flag(isReverse, false));
};

const dictsort: Filter = (value, args, kwargs, runtime) => {
  const names = ["case_sensitive", "by", "reverse"];
  const [isCased, by, isReverse] = bind("dictsort", names, args, kwargs);
  if (!(value instanceof Map)) throw new PythonError("dictsort() needs a dictionary");
  const place = by === undefined || by === "key" ? 0 : 1;
  const pairs = [...value].map((pair) => new Tuple(pair));
  const get: Getter = (pair) => (pair as Tuple).items[place]!;
  const key = flag(isCased, false) ? get : (pair: Value) => lowered(get(pair));
  runtime.budget.step(pairs.length);
  return sorted(pairs, key, flag(isReverse, false));
};

function extreme(sign: number): Filter {
  return (value, args, kwargs, runtime) => {
    const [isCased, path] = bind("min", ["case_sensitive", "attribute"], args, kwargs);
    const key = keyed(path, isCased, runtime);
    let best: Value | undefined;
    for (const one of walked(value, runtime)) {
      if (best === undefined || sign * compare(key(one), key(best)) > 0) best = one;
    }
    return best === undefined ? new Undefined("No aggregated item, sequence was empty.") : best;
  };
}

const sum: Filter = (value, args, kwargs, runtime) => {
  const [path, start] = bind("sum", ["attribute", "start"], args, kwargs);
  const get = path == null ? plain : getter(path, runtime);
  let total: Value = start ?? 0n;
  for (const one of walked(value, runtime)) total = binary("+", total, get(one), runtime.budget);
  return total;
};

const unique: Filter = (value, args, kwargs, runtime) => {
  const [isCased, path] = bind("unique", ["case_sensitive", "attribute"], args, kwargs);
  const key = keyed(path, isCased, runtime);
  const seen: Value[] = [];
  const kept = walked(value, runtime).filter((one) => {
    const its = key(one);
    runtime.budget.step(seen.length);
    if (seen.some((other) => equals(other, its))) return false;
    seen.push(its);
    return true;
  });
  return new Iter(kept);
};

const groupby: Filter = (value, args, kwargs, runtime) => {
  const names = ["attribute", "default", "case_sensitive"];
  const [path, otherwise, isCased] = bind("groupby", names, args, kwargs);
  const get = getter(path ?? "", runtime, otherwise);
  const key = flag(isCased, false) ? get : (one: Value) => lowered(get(one));
  const groups: { readonly key: Value; readonly items: Value[] }[] = [];
  for (const one of sorted(walked(value, runtime), key, false)) {
    const latest = groups.at(-1);
    if (latest !== undefined && equals(key(latest.items[0]!), key(one))) latest.items.push(one);
    else groups.push({ key: get(one), items: [one] });
  }
  return groups.map((group) => {
    return new Tuple([group.key, group.items], ["grouper", "list"]);
  });
};

const batch: Filter = (value, args, kwargs, runtime) => {
  const [size, fill] = bind("batch", ["linecount", "fill_with"], args, kwargs);
  const items = walked(value, runtime);
  const count = wholeNumber(size ?? null);
  if (count < 1) throw new PythonError("batch() needs a size");
  const rows: Value[] = [];
  for (let i = 0; i < items.length; i += count) rows.push(items.slice(i, i + count));
  const tail = rows.at(-1) as Value[] | undefined;
  if (tail !== undefined && fill != null) {
    runtime.budget.made(count);
    while (tail.length < count) tail.push(fill);
  }
  return new Iter(rows);
};

const list: Filter = (value, _args, _kwargs, runtime) => [...walked(value, runtime)];

const items: Filter = (value, _args, _kwargs, runtime) => {
  if (value instanceof Undefined) return new Iter([]);
  if (!(value instanceof Map)) throw new PythonError("Can only get item pairs from a mapping.");
  runtime.budget.step(value.size);
  return new Iter(
    new View(
      "dict_items",
      [...value].map((pair) => new Tuple(pair)),
    ).items,
  );
};

/** Jinja's filters of sequences. */
export const LIST_FILTERS: Readonly<Record<string, Filter>> = {
  ...{ batch, dictsort, first, groupby, items, join, last, list, map, reverse, sort, sum, unique },
  max: extreme(1),
  min: extreme(-1),
  select: selector(true, false),
  reject: selector(false, false),
  selectattr: selector(true, true),
  rejectattr: selector(false, true),
};
