import {
  codePoints,
  isNumber,
  isTrue,
  iterate,
  type Kwargs,
  lengthOf,
  numberOf,
  PythonError,
  splitLines,
  strip,
  Tuple,
  textOf,
  Undefined,
  type Value,
  writeJson,
} from "../python/index.ts";
import { bind } from "./arguments.ts";
import { LIST_FILTERS } from "./list-filters.ts";
import { flag, percent, wholeNumber } from "./operators.ts";
import { attribute, type Runtime } from "./runtime.ts";
import { capitalize, replaced } from "./text-methods.ts";

export type Filter = (
  value: Value,
  args: readonly Value[],
  kwargs: Kwargs,
  runtime: Runtime,
) => Value;

/** A filter whose arguments have names. */
export function named(
  name: string,
  parameters: readonly string[],
  run: (value: Value, args: readonly (Value | undefined)[], runtime: Runtime) => Value,
): Filter {
  return (value, args, kwargs, runtime) =>
    run(value, bind(name, parameters, args, kwargs), runtime);
}

/** A filter of the value's text, without arguments. */
function ofText(run: (text: string) => Value): Filter {
  return named("filter", [], (value) => run(textOf(value)));
}

const JSON_PARAMETERS = ["ensure_ascii", "indent", "separators", "sort_keys"];

/** As transformers overrides it: `json.dumps` without escapes for HTML. */
const tojson = named("tojson", JSON_PARAMETERS, (value, given, { budget }) => {
  const [ascii, indent, separators, sorted] = given;
  const pair = separators == null ? null : iterate(separators).map(textOf);
  const blanks = indent == null ? null : typeof indent === "string" ? indent : blanksOf(indent);
  const text = writeJson(value, {
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
  if (count > 1_000) throw new PythonError("an indent is too wide");
  return " ".repeat(Math.max(0, count));
}

const fallback = named("default", ["default_value", "boolean"], (value, [otherwise, isLoose]) => {
  const isMissing = value instanceof Undefined || (flag(isLoose, false) && !isTrue(value));
  return isMissing ? (otherwise ?? "") : value;
});

const trim = named("trim", ["chars"], (value, [chars]) => {
  return strip(textOf(value), chars == null ? null : textOf(chars), "both");
});

const indent = named("indent", ["width", "first", "blank"], (value, given, { budget }) => {
  const [width, first, blank] = given;
  const by = typeof width === "string" ? width : blanksOf(width ?? 4n);
  const text = textOf(value);
  const lines = splitLines(`${text}\n`);
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
  return replaced(textOf(value), textOf(from), textOf(to), limit, budget);
});

const round = named("round", ["precision", "method"], (value, [precision, method]) => {
  if (!isNumber(value)) throw new PythonError("round() needs a number");
  const number = numberOf(value);
  const digits = precision === undefined ? 0 : wholeNumber(precision);
  const how = method === undefined ? "common" : textOf(method);
  if (!["common", "ceil", "floor"].includes(how)) throw new PythonError("an unknown method");
  if (how !== "common") {
    const scaled = Number(number) * 10 ** digits;
    return (how === "ceil" ? Math.ceil(scaled) : Math.floor(scaled)) / 10 ** digits;
  }
  if (typeof number === "bigint" && digits >= 0) return number;
  return rounded(Number(number), digits);
});

/** To even where it is exactly between two. */
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
  if (base !== undefined && base !== 10n) throw new PythonError("int() with another base");
  if (isNumber(value)) {
    const number = numberOf(value);
    if (typeof number === "bigint") return number;
    return Number.isFinite(number) ? BigInt(Math.trunc(number)) : (otherwise ?? 0n);
  }
  const text = typeof value === "string" ? strip(value, null, "both") : "";
  if (/^[-+]?[0-9]{1,4000}$/.test(text)) return BigInt(text.replace(/^\+/, ""));
  const number = floatOf(text);
  return number !== null && Number.isFinite(number)
    ? BigInt(Math.trunc(number))
    : (otherwise ?? 0n);
});

const float = named("float", ["default"], (value, [otherwise]) => {
  if (isNumber(value)) return Number(numberOf(value));
  const text = typeof value === "string" ? strip(value, null, "both") : "";
  return floatOf(text) ?? otherwise ?? 0;
});

function floatOf(text: string): number | null {
  return /^[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$/.test(text) ? Number(text) : null;
}

const truncate = named(
  "truncate",
  ["length", "killwords", "end", "leeway"],
  (value, [length, killwords, end, leeway]) => {
    const points = codePoints(textOf(value));
    const [limit, slack] = [wholeNumber(length ?? 255n), wholeNumber(leeway ?? 5n)];
    const tail = end === undefined ? "..." : textOf(end);
    if (points.length <= limit + slack) return points.join("");
    const cut = points.slice(0, Math.max(0, limit - codePoints(tail).length)).join("");
    if (flag(killwords, false)) return cut + tail;
    const at = cut.lastIndexOf(" ");
    return (at < 0 ? cut : cut.slice(0, at)) + tail;
  },
);

const center = named("center", ["width"], (value, [width], { budget }) => {
  const method = attribute(textOf(value), "center", budget);
  const call = (method as { call?: unknown }).call as (args: Value[], kwargs: Kwargs) => Value;
  return call([width ?? 80n], new Map());
});

const HTML: Readonly<Record<string, string>> = {
  ...{ "&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;", '"': "&#34;" },
};

const escapeHtml = ofText((text) => text.replace(/[&<>'"]/g, (char) => HTML[char]!));

/** The first letter of each word up, the rest down, by Jinja's own idea of a word. */
const title = ofText((text) => {
  return text
    .split(/([-\s({[<]+)/u)
    .filter((word) => word !== "")
    .map(capitalize)
    .join("");
});

const format: Filter = (value, args, kwargs, { budget }) => {
  const given = kwargs.size > 0 ? new Map<Value, Value>(kwargs) : new Tuple(args);
  return percent(textOf(value), given, budget);
};

const urlencode = ofText((text) => {
  return encodeURIComponent(text)
    .replaceAll("%2F", "/")
    .replace(/[!'()*]/g, (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`);
});

const abs = named("abs", [], (value) => {
  if (!isNumber(value)) throw new PythonError("bad operand type for abs()");
  const number = numberOf(value);
  return number < 0 ? -number : number;
});

const count = named("length", [], (value) => BigInt(lengthOf(value)));
const getAttribute = named("attr", ["name"], (value, [name], { budget }) => {
  return attribute(value, textOf(name ?? ""), budget);
});

/** Jinja's own filters, but those that write HTML, and transformers' `tojson`. */
export const FILTERS: Readonly<Record<string, Filter>> = {
  ...LIST_FILTERS,
  ...{ abs, attr: getAttribute, center, count, length: count, default: fallback, d: fallback },
  ...{
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
  },
  ...{ truncate, urlencode },
  capitalize: ofText(capitalize),
  lower: ofText((text) => text.toLowerCase()),
  upper: ofText((text) => text.toUpperCase()),
  safe: ofText((text) => text),
  string: ofText((text) => text),
  wordcount: ofText((text) => BigInt(text.match(/[\p{L}\p{N}_]+/gu)?.length ?? 0)),
};
