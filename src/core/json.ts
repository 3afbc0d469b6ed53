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
 * number as `number`. Throws SyntaxError where the text is not JSON, a number has over 400 digits,
 * or lists and objects lie thousands deep in each other.
 */
export function parseJson(text: string): Json {
  try {
    return JSON.parse(text, reviveInteger as (key: string, value: unknown) => unknown) as Json;
  } catch (thrown) {
    // Reviving goes down into what it revives, one call for each level.
    if (thrown instanceof RangeError) throw new SyntaxError("nested too deeply", { cause: thrown });
    throw thrown;
  }
}

function reviveInteger(_key: string, value: unknown, context?: ReviverContext): unknown {
  if (typeof value !== "number" || Number.isSafeInteger(value)) return value;
  const source = context?.source;
  if (source === undefined) return value;
  if (source.length > DIGITS_MAX) throw new SyntaxError("a number of over 400 digits");
  if (!INTEGER.test(source)) return value;
  return BigInt(source);
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
