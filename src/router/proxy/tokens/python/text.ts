import {
  Iter,
  PythonError,
  Thing,
  Tuple,
  typeName,
  Undefined,
  type Value,
  View,
} from "./values.ts";

/** What Python's `str.isspace` accepts; JavaScript's `\s` differs at both ends. */
export const SPACE =
  "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";

const LEFT = new RegExp(`^[${SPACE}]+`);
const SPACES = new RegExp(`^[${SPACE}]$`);

/** `str.strip`, `lstrip` and `rstrip`; without `chars` white space. */
export function strip(text: string, chars: string | null, side: "both" | "left" | "right"): string {
  if (chars === null) {
    const left = side === "right" ? text : text.replace(LEFT, "");
    if (side === "left") return left;
    let end = left.length;
    while (end > 0 && SPACES.test(left[end - 1]!)) end--;
    return left.slice(0, end);
  }
  const set = new Set(chars);
  const points = Array.from(text);
  let [start, end] = [0, points.length];
  while (side !== "right" && start < end && set.has(points[start]!)) start++;
  while (side !== "left" && end > start && set.has(points[end - 1]!)) end--;
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

/** `str(value)`. */
export function textOf(value: Value): string {
  if (typeof value === "string") return value;
  return value instanceof Undefined ? "" : reprOf(value);
}

/** `repr(value)`. Throws for what has an address in it, which differs from run to run. */
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
  throw new PythonError(`${what} has no text of its own`);
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

/** `repr` of a float: the shortest digits that read back, with an exponent from 1e16 on. */
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

/** `text[start:stop:step]` and `text[index]` count code points. */
export function codePoints(text: string): string[] {
  return Array.from(text);
}
