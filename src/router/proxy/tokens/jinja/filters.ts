import * as py from "../python/index.ts";
import {
  Iter,
  type Kwargs,
  PythonError,
  Thing,
  Tuple,
  Undefined,
  type Value,
} from "../python/index.ts";
import { attribute, capitalize, item, pairsOf, type Runtime, replaced } from "./methods.ts";
import { binary, bind, COMPARISONS, flag, percent, wholeNumber } from "./operators.ts";
import type { Comparison } from "./parser.ts";

export type Filter = (
  value: Value,
  args: readonly Value[],
  kwargs: Kwargs,
  runtime: Runtime,
) => Value;

/** Returns a filter whose arguments can be given by position or by name. */
export function named(
  name: string,
  parameters: readonly string[],
  run: (value: Value, args: readonly (Value | undefined)[], runtime: Runtime) => Value,
): Filter {
  return (value, args, kwargs, runtime) =>
    run(value, bind(name, parameters, args, kwargs), runtime);
}

/** Returns a filter without arguments that receives the value converted to text. */
function ofText(run: (text: string) => Value): Filter {
  return named("filter", [], (value) => run(py.textOf(value)));
}

const JSON_PARAMETERS = ["ensure_ascii", "indent", "separators", "sort_keys"];

/** Filter `tojson` as transformers overrides it: `json.dumps` without HTML escapes. */
const tojson = named("tojson", JSON_PARAMETERS, (value, given, { budget }) => {
  const [ascii, indent, separators, sorted] = given;
  const pair = separators == null ? null : py.iterate(separators).map(py.textOf);
  const blanks = indent == null ? null : typeof indent === "string" ? indent : blanksOf(indent);
  const text = py.writeJson(value, {
    isAscii: flag(ascii, false),
    indent: blanks,
    itemSeparator: pair?.[0] ?? (blanks === null ? ", " : ","),
    keySeparator: pair?.[1] ?? ": ",
    isSorted: flag(sorted, false),
  });
  budget.made(text.length);
  return text;
});

function blanksOf(width: Value): string {
  const count = wholeNumber(width);
  if (count > 1_000) throw new PythonError("the indent is too wide");
  return " ".repeat(Math.max(0, count));
}

const fallback = named("default", ["default_value", "boolean"], (value, [otherwise, isLoose]) => {
  const isMissing = value instanceof Undefined || (flag(isLoose, false) && !py.isTrue(value));
  return isMissing ? (otherwise ?? "") : value;
});

const trim = named("trim", ["chars"], (value, [chars]) => {
  return py.strip(py.textOf(value), chars == null ? null : py.textOf(chars), "both");
});

const indent = named("indent", ["width", "first", "blank"], (value, given, { budget }) => {
  const [width, first, blank] = given;
  const by = typeof width === "string" ? width : blanksOf(width ?? 4n);
  const text = py.textOf(value);
  const lines = py.splitLines(`${text}\n`);
  budget.made(text.length + lines.length * by.length);
  const rest = lines
    .slice(1)
    .map((line) => (line === "" && !flag(blank, false) ? line : by + line));
  return (flag(first, false) ? by : "") + [lines[0] ?? "", ...rest].join("\n");
});

const replace = named("replace", ["old", "new", "count"], (value, given, { budget }) => {
  const [from, to, count] = given;
  if (from === undefined || to === undefined) throw new PythonError("replace() needs two texts");
  const limit = count == null ? -1 : wholeNumber(count);
  return replaced(py.textOf(value), py.textOf(from), py.textOf(to), limit, budget);
});

const round = named("round", ["precision", "method"], (value, [precision, method]) => {
  if (!py.isNumber(value)) throw new PythonError("round() needs a number");
  const number = py.numberOf(value);
  const digits = precision === undefined ? 0 : wholeNumber(precision);
  const how = method === undefined ? "common" : py.textOf(method);
  if (!["common", "ceil", "floor"].includes(how)) throw new PythonError("unknown method");
  if (how !== "common") {
    const scaled = Number(number) * 10 ** digits;
    return (how === "ceil" ? Math.ceil(scaled) : Math.floor(scaled)) / 10 ** digits;
  }
  if (typeof number === "bigint" && digits >= 0) return number;
  return rounded(Number(number), digits);
});

/** Rounds to `digits` decimal places. Rounds halves to the even neighbour. */
function rounded(value: number, digits: number): number {
  if (digits < 0) {
    const scale = 10 ** -digits;
    return rounded(value / scale, 0) * scale;
  }
  if (digits > 15 || !Number.isFinite(value)) return value;
  const below = Math.floor(value * 10 ** digits);
  const isTie = value * 10 ** digits - below === 0.5 && value === (below + 0.5) / 10 ** digits;
  if (isTie && digits === 0) return below % 2 === 0 ? below : below + 1;
  return Number(value.toFixed(digits));
}

const int = named("int", ["default", "base"], (value, [otherwise, base]) => {
  if (base !== undefined && base !== 10n) throw new PythonError("int() supports base 10 only");
  if (py.isNumber(value)) {
    const number = py.numberOf(value);
    if (typeof number === "bigint") return number;
    return Number.isFinite(number) ? BigInt(Math.trunc(number)) : (otherwise ?? 0n);
  }
  const text = typeof value === "string" ? py.strip(value, null, "both") : "";
  if (/^[-+]?[0-9]{1,4000}$/.test(text)) return BigInt(text.replace(/^\+/, ""));
  const number = floatOf(text);
  return number !== null && Number.isFinite(number)
    ? BigInt(Math.trunc(number))
    : (otherwise ?? 0n);
});

const float = named("float", ["default"], (value, [otherwise]) => {
  if (py.isNumber(value)) return Number(py.numberOf(value));
  const text = typeof value === "string" ? py.strip(value, null, "both") : "";
  return floatOf(text) ?? otherwise ?? 0;
});

function floatOf(text: string): number | null {
  return /^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$/.test(text) ? Number(text) : null;
}

const truncate = named(
  "truncate",
  ["length", "killwords", "end", "leeway"],
  (value, [length, killwords, end, leeway]) => {
    const points = py.codePoints(py.textOf(value));
    const [limit, slack] = [wholeNumber(length ?? 255n), wholeNumber(leeway ?? 5n)];
    const tail = end === undefined ? "..." : py.textOf(end);
    if (points.length <= limit + slack) return points.join("");
    const cut = points.slice(0, Math.max(0, limit - py.codePoints(tail).length)).join("");
    if (flag(killwords, false)) return cut + tail;
    const at = cut.lastIndexOf(" ");
    return (at < 0 ? cut : cut.slice(0, at)) + tail;
  },
);

const center = named("center", ["width"], (value, [width], { budget }) => {
  const method = attribute(py.textOf(value), "center", budget);
  const call = (method as { call?: unknown }).call as (args: Value[], kwargs: Kwargs) => Value;
  return call([width ?? 80n], new Map());
});

const HTML: Readonly<Record<string, string>> = {
  "&": "&amp;",
  "<": "&lt;",
  ">": "&gt;",
  "'": "&#39;",
  '"': "&#34;",
};

const escapeHtml = ofText((text) => text.replace(/[&<>'"]/g, (char) => HTML[char]));

/**
 * Filter `title`: converts the first letter of each word to upper case and the others to lower
 * case. Words are separated as in Jinja.
 */
const title = ofText((text) => {
  return text
    .split(/([-\s({[<]+)/u)
    .filter((word) => word !== "")
    .map(capitalize)
    .join("");
});

const format: Filter = (value, args, kwargs, { budget }) => {
  const given = kwargs.size > 0 ? new Map<Value, Value>(kwargs) : new Tuple(args);
  return percent(py.textOf(value), given, budget);
};

const urlencode = ofText((text) => {
  return encodeURIComponent(text)
    .replaceAll("%2F", "/")
    .replace(/[!'()*]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`);
});

const abs = named("abs", [], (value) => {
  if (!py.isNumber(value)) throw new PythonError("bad operand type for abs()");
  const number = py.numberOf(value);
  return number < 0 ? -number : number;
});

const count = named("length", [], (value) => BigInt(py.lengthOf(value)));
const getAttribute = named("attr", ["name"], (value, [name], { budget }) => {
  return attribute(value, py.textOf(name ?? ""), budget);
});

type Getter = (value: Value) => Value;

function walked(value: Value, { budget }: Runtime): readonly Value[] {
  const items = py.iterate(value);
  budget.step(items.length);
  budget.made(items.length);
  return items;
}

/** Returns a function that reads a path such as `a.b.0` from a value. */
function getter(path: Value, runtime: Runtime, otherwise?: Value): Getter {
  const text = py.textOf(path);
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

/**
 * Returns a function that computes a value's sort key. `path` may name several attributes,
 * separated by commas, which are compared in order.
 */
function sortKey(path: Value | undefined, isCased: Value | undefined, runtime: Runtime): Getter {
  if (typeof path !== "string" || !path.includes(",")) return keyed(path, isCased, runtime);
  const parts = path.split(",").map((one) => keyed(one, isCased, runtime));
  return (value) => parts.map((part) => part(value));
}

function sorted(items: readonly Value[], key: Getter, isReverse: boolean): Value[] {
  const pairs = items.map((one) => ({ one, key: key(one) }));
  const sign = isReverse ? -1 : 1;
  return pairs.sort((a, b) => sign * py.compare(a.key, b.key)).map(({ one }) => one);
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
      return name === undefined
        ? py.isTrue(one)
        : runtime.runTest(py.textOf(name), one, rest, kwargs);
    };
    return new Iter(items.filter((one) => test(get(one)) === isWanted));
  };
}

const join: Filter = (value, args, kwargs, runtime) => {
  const [separator, path] = bind("join", ["d", "attribute"], args, kwargs);
  const get = path == null ? plain : getter(path, runtime);
  const texts = walked(value, runtime).map((one) => py.textOf(get(one)));
  const between = separator === undefined ? "" : py.textOf(separator);
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

/**
 * Returns the undefined value that `first` and `last` give for an empty sequence; null if the item
 * at the position is None.
 */
function none(value: Value, at: number): Value {
  return py.iterate(value).at(at) === null ? null : new Undefined("the sequence is empty");
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
  const pairs = pairsOf(value);
  const get: Getter = (pair) => (pair as Tuple).items[place];
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
      if (best === undefined || sign * py.compare(key(one), key(best)) > 0) best = one;
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
    if (seen.some((other) => py.equals(other, its))) return false;
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
    if (latest !== undefined && py.equals(key(latest.items[0]), key(one))) latest.items.push(one);
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
  return new Iter(pairsOf(value));
};

/** Jinja's filters that operate on sequences. */
const LIST_FILTERS: Readonly<Record<string, Filter>> = {
  batch,
  dictsort,
  first,
  groupby,
  items,
  join,
  last,
  list,
  map,
  reverse,
  sort,
  sum,
  unique,
  max: extreme(1),
  min: extreme(-1),
  select: selector(true, false),
  reject: selector(false, false),
  selectattr: selector(true, true),
  rejectattr: selector(false, true),
};

/** Jinja's own filters, without those that write HTML, and transformers' `tojson`. */
export const FILTERS: Readonly<Record<string, Filter>> = {
  ...LIST_FILTERS,
  abs,
  attr: getAttribute,
  center,
  count,
  length: count,
  default: fallback,
  d: fallback,
  e: escapeHtml,
  escape: escapeHtml,
  float,
  format,
  indent,
  int,
  replace,
  round,
  title,
  tojson,
  trim,
  truncate,
  urlencode,
  capitalize: ofText(capitalize),
  lower: ofText((text) => text.toLowerCase()),
  upper: ofText((text) => text.toUpperCase()),
  safe: ofText((text) => text),
  string: ofText((text) => text),
  wordcount: ofText((text) => BigInt(text.match(/[\p{L}\p{N}_]+/gu)?.length ?? 0)),
};

type TestFunction = (
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

/** Returns a test that compares the value with its argument. */
function comparing(comparison: Comparison): TestFunction {
  return (value, args) => COMPARISONS[comparison](value, other(args));
}

const [eq, ne] = [comparing("=="), comparing("!=")];
const [gt, ge, lt, le] = [comparing(">"), comparing(">="), comparing("<"), comparing("<=")];

/** Jinja's own tests, such as `is defined`. */
export const TESTS: Readonly<Record<string, TestFunction>> = {
  eq,
  equalto: eq,
  "==": eq,
  ne,
  "!=": ne,
  gt,
  greaterthan: gt,
  ">": gt,
  ge,
  ">=": ge,
  lt,
  lessthan: lt,
  "<": lt,
  le,
  "<=": le,
  boolean: (value) => typeof value === "boolean",
  callable: (value) => value instanceof Thing && value.call !== null,
  defined: (value) => !(value instanceof Undefined),
  undefined: (value) => value instanceof Undefined,
  divisibleby: (value, args, runtime) => {
    return py.equals(binary("%", value, other(args), runtime.budget), 0n);
  },
  escaped: () => false,
  even: (value, _, runtime) => py.equals(remainder(value, 2n, runtime), 0n),
  odd: (value, _, runtime) => py.equals(remainder(value, 2n, runtime), 1n),
  false: (value) => value === false,
  true: (value) => value === true,
  filter: (value, _, runtime) => typeof value === "string" && runtime.hasFilter(value),
  test: (value) => typeof value === "string" && Object.hasOwn(TESTS, value),
  float: (value) => typeof value === "number",
  in: comparing("in"),
  integer: isInteger,
  iterable: isIterable,
  lower: (value) =>
    isCased(py.textOf(value)) && py.textOf(value) === py.textOf(value).toLowerCase(),
  upper: (value) =>
    isCased(py.textOf(value)) && py.textOf(value) === py.textOf(value).toUpperCase(),
  mapping: (value) => value instanceof Map,
  none: (value) => value === null,
  number: (value) => py.isNumber(value),
  // Compares identity. Equal texts and equal integers count as the same object.
  sameas: (value, args) => value === other(args),
  sequence: isSequence,
  string: (value) => typeof value === "string",
};
