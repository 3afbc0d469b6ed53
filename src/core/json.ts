/** Reads and writes JSON without rounding 64-bit integers. */

export type Json = null | boolean | number | bigint | string | Json[] | { [key: string]: Json };

/** Default limit on nesting. Recursive code could exhaust the stack on a value with more levels. */
const DEPTH_MAX = 1_000;

/**
 * Thrown if the text is nested too deeply. This is checked before the text is parsed, so the text
 * may be valid JSON or not.
 */
export class JsonTooDeep extends SyntaxError {}

declare global {
  /**
   * Declares the ECMAScript feature "JSON.parse source text access", which the bundled types lack.
   */
  interface JSON {
    rawJSON(text: string): unknown;
    parse(
      text: string,
      reviver: (key: string, value: unknown, context: { readonly source?: string }) => unknown,
    ): unknown;
  }
}

/** Matches a run of digits that a double may not represent exactly, even in a string. */
const LONG_NUMBER = /[0-9]{16}/;
const INTEGER = /^-?[0-9]+$/;
/**
 * Maximum digits of an integer. Hashes and counters have far fewer, and creating a bigint of
 * millions of digits takes a second.
 */
const DIGITS_MAX = 400;

/**
 * Parses JSON. An integer that a double cannot represent exactly becomes a `bigint`, every other
 * number a `number`. Throws SyntaxError if the text is not JSON or an integer has more than 400
 * digits, and JsonTooDeep if arrays and objects are nested more than `depthMax` levels.
 */
export function parseJson(text: string, depthMax = DEPTH_MAX): Json {
  if (isDeeper(text, depthMax)) throw new JsonTooDeep("nested too deeply");
  // Uses the reviver only if necessary, because parsing with it takes several times as long.
  return (LONG_NUMBER.test(text) ? JSON.parse(text, exactInteger) : JSON.parse(text)) as Json;
}

function exactInteger(_key: string, value: unknown, { source }: { readonly source?: string }) {
  const isExact = typeof value !== "number" || Number.isSafeInteger(value);
  if (isExact || source === undefined || !INTEGER.test(source)) return value;
  if (source.length > DIGITS_MAX) throw new SyntaxError("number has more than 400 digits");
  return BigInt(source);
}

/** Serializes a value as JSON. Every `bigint` becomes a plain integer. */
export function stringifyJson(value: unknown, indent?: number): string {
  return JSON.stringify(
    value,
    (_key, item) => (typeof item === "bigint" ? JSON.rawJSON(item.toString()) : item),
    indent,
  );
}

const Char = {
  quote: 0x22,
  openList: 0x5b,
  backslash: 0x5c,
  closeList: 0x5d,
  openObject: 0x7b,
  closeObject: 0x7d,
} as const;

/**
 * Returns true if arrays and objects are nested more than `max` levels. If the text is not JSON,
 * the result may be wrong.
 */
function isDeeper(text: string, max: number): boolean {
  if (!hasMore(text, "[", max / 2) && !hasMore(text, "{", max / 2)) return false;
  let depth = 0;
  for (let at = 0; at < text.length; at++) {
    const char = text.charCodeAt(at);
    if (char === Char.quote) at = endOfString(text, at);
    else if (char === Char.openList || char === Char.openObject) {
      if (++depth > max) return true;
    } else if (char === Char.closeList || char === Char.closeObject) depth--;
  }
  return false;
}

/** Returns true if the character occurs more than `count` times, in strings or outside of them. */
function hasMore(text: string, char: string, count: number): boolean {
  let at = -1;
  for (let found = 0; found <= count; found++) {
    at = text.indexOf(char, at + 1);
    if (at < 0) return false;
  }
  return true;
}

/**
 * Returns the index of the closing quote of the string that begins at `start`, or the length of the
 * text if there is none.
 */
function endOfString(text: string, start: number): number {
  for (let at = start + 1; at < text.length; at++) {
    const char = text.charCodeAt(at);
    if (char === Char.backslash) at++;
    else if (char === Char.quote) return at;
  }
  return text.length;
}
