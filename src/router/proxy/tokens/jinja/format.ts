import {
  codePoints,
  isNumber,
  type Kwargs,
  numberOf,
  PythonError,
  reprOf,
  textOf,
  type Value,
} from "../python/index.ts";
import type { Budget } from "./budget.ts";

const FIELD = /\{\{|\}\}|\{([^{}!:]*)(?:!([rs]))?(?::([^{}]*))?\}|[{}]/g;
const SPEC = /^(?:(.)?([<>^]))?(0)?([0-9]*)(,)?(?:\.([0-9]+))?([sdfx%]?)$/u;

/** `str.format` with plain fields; a field that looks into a value is refused. */
export function formatText(
  text: string,
  args: readonly Value[],
  kwargs: Kwargs,
  budget: Budget,
): string {
  const fields = [...text.matchAll(FIELD)].map(([, name]) => name);
  if (fields.includes("") && fields.some((name) => /^[0-9]+$/.test(name ?? ""))) {
    throw new PythonError("cannot switch between numbered fields and fields without a number");
  }
  let next = 0;
  return text.replace(FIELD, (all, name: string | undefined, conversion, spec) => {
    if (all === "{{" || all === "}}") return all[0]!;
    if (name === undefined) throw new PythonError("a single brace in a format string");
    const value =
      name === "" ? args[next++] : /^[0-9]+$/.test(name) ? args[Number(name)] : kwargs.get(name);
    if (value === undefined) throw new PythonError(`no value for the field '${name}'`);
    const shown = conversion === "r" ? reprOf(value) : conversion === "s" ? textOf(value) : value;
    const made = spec === undefined || spec === "" ? textOf(shown) : styled(shown, spec);
    budget.made(made.length);
    return made;
  });
}

function styled(value: Value, spec: string): string {
  const match = SPEC.exec(spec);
  if (match === null) throw new PythonError(`the format '${spec}' is not supported`);
  const [, fill, align, zero, width, comma, digits, kind] = match;
  const plain = body(value, kind ?? "", digits === undefined ? null : Number(digits), comma);
  const size = Number(width || 0);
  if (size > 10_000) throw new PythonError("a field is too wide");
  const missing = size - codePoints(plain).length;
  if (missing <= 0) return plain;
  const isNumeric = isNumber(value);
  if (zero !== undefined && align === undefined && isNumeric) {
    const sign = plain.startsWith("-") ? "-" : "";
    return sign + "0".repeat(missing) + plain.slice(sign.length);
  }
  const side = align ?? (isNumeric ? ">" : "<");
  const left = side === ">" ? missing : side === "<" ? 0 : Math.floor(missing / 2);
  const char = fill ?? " ";
  return char.repeat(left) + plain + char.repeat(missing - left);
}

function body(value: Value, kind: string, digits: number | null, comma: string | undefined) {
  if (kind === "" && typeof value === "number") {
    throw new PythonError("a float without a format is not supported");
  }
  if (kind === "s" || (kind === "" && !isNumber(value))) {
    const text = textOf(value);
    return digits === null ? text : codePoints(text).slice(0, digits).join("");
  }
  if (!isNumber(value)) throw new PythonError(`unknown format code '${kind}'`);
  const number = numberOf(value);
  if (kind === "f" || kind === "%") {
    if ((digits ?? 6) > 100) throw new PythonError("too many digits");
    const scaled = kind === "%" ? Number(number) * 100 : Number(number);
    return grouped(scaled.toFixed(digits ?? 6), comma) + (kind === "%" ? "%" : "");
  }
  if (typeof number !== "bigint") throw new PythonError(`unknown format code '${kind}'`);
  return grouped(number.toString(kind === "x" ? 16 : 10), comma);
}

function grouped(digits: string, comma: string | undefined): string {
  return comma === undefined ? digits : digits.replace(/\B(?<!\.\d*)(?=(\d{3})+(?!\d))/g, ",");
}
