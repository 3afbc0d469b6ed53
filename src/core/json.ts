/** JSON in which 64-bit integers survive both ways. */

export type Json = null | boolean | number | bigint | string | Json[] | { [key: string]: Json };

const INTEGER = /^-?(0|[1-9][0-9]*)$/;
/** More than any hash or counter has; making a bigint of millions of digits takes a second. */
const DIGITS_MAX = 400;

/** What `JSON.parse` hands a reviver beside key and value. */
interface ReviverContext {
  readonly source?: string;
}

/**
 * Parses JSON. An integer that a double cannot hold exactly comes back as `bigint`, every other
 * number as `number`. Throws SyntaxError where the text is not JSON, or a number has over 400
 * digits.
 */
export function parseJson(text: string): Json {
  return JSON.parse(text, function reviveInteger(_key, value, context?: ReviverContext) {
    if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
    const source = context?.source;
    if (source === undefined) return value;
    if (source.length > DIGITS_MAX) throw new SyntaxError("a number of over 400 digits");
    if (!INTEGER.test(source)) return value;
    return BigInt(source);
  } as (key: string, value: unknown) => unknown) as Json;
}

declare global {
  interface JSON {
    /** ECMAScript "JSON.parse source text access"; missing from the bundled types. */
    rawJSON(text: string): unknown;
  }
}

/** Writes JSON with every `bigint` as a plain integer, digit for digit. */
export function stringifyJson(value: unknown, indent?: number): string {
  return JSON.stringify(
    value,
    (_key, item) => (typeof item === "bigint" ? JSON.rawJSON(item.toString()) : item),
    indent,
  );
}
