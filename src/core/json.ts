/** JSON that preserves 64-bit integers in both directions. */

export type Json = null | boolean | number | bigint | string | Json[] | { [key: string]: Json };

/** Default depth limit. Recursive code that walks a deeper value could exhaust the stack. */
const DEPTH_MAX = 1_000;

/** Thrown before the text is parsed, so the text may be valid JSON. */
export class JsonTooDeep extends SyntaxError {}

/**
 * Parses JSON. An integer that a double cannot represent exactly becomes a `bigint`, every other
 * number a `number`. Throws SyntaxError if the text is not JSON or an integer has over 400 digits,
 * JsonTooDeep if arrays and objects are nested more than `depthMax` levels.
 */
export function parseJson(text: string, depthMax = DEPTH_MAX): Json {
  if (isDeeper(text, depthMax)) throw new JsonTooDeep("nested too deeply");
  return mayHaveLongIntegers(text) ? new ExactJson(text).read() : (JSON.parse(text) as Json);
}

declare global {
  interface JSON {
    /** ECMAScript "JSON.parse source text access". Missing from the bundled types. */
    rawJSON(text: string): unknown;
  }
}

/** Serializes JSON with every `bigint` as a plain integer. */
export function stringifyJson(value: unknown, indent?: number): string {
  return JSON.stringify(
    value,
    (_key, item) => (typeof item === "bigint" ? JSON.rawJSON(item.toString()) : item),
    indent,
  );
}

/**
 * More digits than any hash or counter has. A bigint of millions of digits takes a second to
 * create.
 */
const DIGITS_MAX = 400;
/** Integers with fewer digits are exact as doubles. */
const LONG_DIGITS = 16;

const Char = {
  quote: 0x22,
  plus: 0x2b,
  comma: 0x2c,
  minus: 0x2d,
  dot: 0x2e,
  zero: 0x30,
  nine: 0x39,
  colon: 0x3a,
  capitalE: 0x45,
  openList: 0x5b,
  backslash: 0x5c,
  closeList: 0x5d,
  smallE: 0x65,
  openObject: 0x7b,
  closeObject: 0x7d,
} as const;

const LITERALS: readonly (readonly [string, Json])[] = [
  ["true", true],
  ["false", false],
  ["null", null],
];

/** A run of digits that a double may not represent exactly, in a string too. */
const LONG_NUMBER = /[0-9]{16}/;

/** Whether the text may contain integers that a double cannot represent. */
function mayHaveLongIntegers(text: string): boolean {
  return LONG_NUMBER.test(text);
}

/**
 * Whether arrays and objects are nested more than `max` levels. Undefined for text that is not
 * JSON.
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

/** Whether the character occurs more than `count` times, in or outside of strings. */
function hasMore(text: string, char: string, count: number): boolean {
  let at = -1;
  for (let found = 0; found <= count; found++) {
    at = text.indexOf(char, at + 1);
    if (at < 0) return false;
  }
  return true;
}

function isInNumber(char: number): boolean {
  if (char >= Char.zero && char <= Char.nine) return true;
  if (char === Char.dot || char === Char.smallE || char === Char.capitalE) return true;
  return char === Char.plus || char === Char.minus;
}

/** Index of the closing quote of the string that begins at `start`, or the length of the text. */
function endOfString(text: string, start: number): number {
  for (let at = start + 1; at < text.length; at++) {
    const char = text.charCodeAt(at);
    if (char === Char.backslash) at++;
    else if (char === Char.quote) return at;
  }
  return text.length;
}

/**
 * Parses JSON with exact integers, several times as fast as `JSON.parse` with a reviver. Recursive,
 * so the depth must be checked first.
 */
class ExactJson {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  /** Parses the whole text. Throws SyntaxError. */
  read(): Json {
    const value = this.#value();
    if (this.#next() < 0) return value;
    throw this.#unexpected();
  }

  #value(): Json {
    const char = this.#next();
    if (char === Char.minus || (char >= Char.zero && char <= Char.nine)) return this.#number();
    if (char === Char.quote) return this.#string();
    if (char === Char.openList) return this.#list();
    if (char === Char.openObject) return this.#object();
    for (const [word, value] of LITERALS) {
      if (!this.#text.startsWith(word, this.#at)) continue;
      this.#at += word.length;
      return value;
    }
    throw this.#unexpected();
  }

  #list(): Json[] {
    const list: Json[] = [];
    this.#at++;
    if (this.#isNext(Char.closeList)) return list;
    do list.push(this.#value());
    while (this.#isNext(Char.comma));
    if (this.#isNext(Char.closeList)) return list;
    throw this.#unexpected();
  }

  #object(): { [key: string]: Json } {
    const object: { [key: string]: Json } = {};
    this.#at++;
    if (this.#isNext(Char.closeObject)) return object;
    do {
      if (this.#next() !== Char.quote) throw this.#unexpected();
      const key = this.#string();
      if (!this.#isNext(Char.colon)) throw this.#unexpected();
      const value = this.#value();
      // An assignment to this key would set the prototype.
      if (key === "__proto__") {
        const flags = { configurable: true, enumerable: true, writable: true };
        Object.defineProperty(object, key, { ...flags, value });
      } else object[key] = value;
    } while (this.#isNext(Char.comma));
    if (this.#isNext(Char.closeObject)) return object;
    throw this.#unexpected();
  }

  #string(): string {
    const start = this.#at;
    const end = endOfString(this.#text, start);
    this.#at = end + 1;
    // Leave escapes and invalid characters to JSON.parse.
    return JSON.parse(this.#text.slice(start, end + 1)) as string;
  }

  #number(): number | bigint {
    const text = this.#text;
    const start = this.#at;
    let at = start + 1;
    let char = text.charCodeAt(at);
    while (char >= Char.zero && char <= Char.nine) char = text.charCodeAt(++at);
    const isLong = at - start >= LONG_DIGITS;
    if (isLong && char !== Char.dot && char !== Char.smallE && char !== Char.capitalE) {
      this.#at = at;
      return this.#integer(text.slice(start, at));
    }
    while (isInNumber(char)) char = text.charCodeAt(++at);
    this.#at = at;
    return JSON.parse(text.slice(start, at)) as number;
  }

  #integer(digits: string): number | bigint {
    const first = digits.charCodeAt(0) === Char.minus ? 1 : 0;
    if (digits.charCodeAt(first) === Char.zero) throw this.#unexpected();
    if (digits.length > DIGITS_MAX) throw new SyntaxError("number has more than 400 digits");
    if (digits.length - first > LONG_DIGITS) return BigInt(digits);
    const double = Number(digits);
    return Number.isSafeInteger(double) ? double : BigInt(digits);
  }

  /** The next non-blank character, not consumed. Negative at the end. */
  #next(): number {
    const text = this.#text;
    for (; this.#at < text.length; this.#at++) {
      const char = text.charCodeAt(this.#at);
      if (char !== 0x20 && char !== 0x0a && char !== 0x0d && char !== 0x09) return char;
    }
    return -1;
  }

  /** Consumes the next non-blank character if it is `char`. */
  #isNext(char: number): boolean {
    if (this.#next() !== char) return false;
    this.#at++;
    return true;
  }

  #unexpected(): SyntaxError {
    const isEnd = this.#at >= this.#text.length;
    return new SyntaxError(isEnd ? "unexpected end of text" : `unexpected at ${this.#at}`);
  }
}
