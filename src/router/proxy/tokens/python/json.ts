import { floatText, PythonError, Tuple, typeName, type Value } from "./values.ts";

/** Maximum nesting depth. Python's parser fails at a depth of about a thousand. */
const DEPTH_MAX = 500;
/** Maximum digits of an integer. Python rejects longer ones. */
const DIGITS_MAX = 4_300;

const NUMBER = /(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][-+]?[0-9]+)?/y;
// biome-ignore lint/suspicious/noControlCharactersInRegex: they end a piece of a JSON text.
const PLAIN = /[^"\\\u0000-\u001f]*/y;
const BLANK = /[ \t\n\r]*/y;
const WORDS: readonly (readonly [string, Value])[] = [
  ["true", true],
  ["false", false],
  ["null", null],
  ["NaN", Number.NaN],
  ["Infinity", Number.POSITIVE_INFINITY],
  ["-Infinity", Number.NEGATIVE_INFINITY],
];
const ESCAPED: Readonly<Record<string, string>> = {
  '"': '"',
  "\\": "\\",
  "/": "/",
  b: "\b",
  f: "\f",
  n: "\n",
  r: "\r",
  t: "\t",
};

/**
 * Implements `json.loads`. Integers of any size are exact, 1.0 is a float, and keys keep their
 * order even if they look like numbers. Throws SyntaxError.
 */
export function readJson(text: string): Value {
  return new Reader(text).whole();
}

class Reader {
  readonly #text: string;
  #at = 0;

  constructor(text: string) {
    this.#text = text;
  }

  whole(): Value {
    const value = this.#value(0);
    this.#blank();
    if (this.#at < this.#text.length) this.#fail();
    return value;
  }

  #fail(): never {
    throw new SyntaxError(`invalid JSON at character ${this.#at}`);
  }

  #match(pattern: RegExp): RegExpExecArray | null {
    pattern.lastIndex = this.#at;
    const match = pattern.exec(this.#text);
    if (match !== null) this.#at = pattern.lastIndex;
    return match;
  }

  #blank(): void {
    this.#match(BLANK);
  }

  #takes(char: string): boolean {
    if (this.#text[this.#at] !== char) return false;
    this.#at++;
    return true;
  }

  #value(depth: number): Value {
    this.#blank();
    if (depth > DEPTH_MAX) throw new SyntaxError("JSON is nested too deeply");
    if (this.#takes('"')) return this.#string();
    if (this.#takes("{")) return this.#object(depth + 1);
    if (this.#takes("[")) return this.#list(depth + 1);
    for (const [word, value] of WORDS) {
      if (!this.#text.startsWith(word, this.#at)) continue;
      this.#at += word.length;
      return value;
    }
    return this.#number();
  }

  #number(): Value {
    const match = this.#match(NUMBER);
    if (match === null) this.#fail();
    const [all, whole, fraction, exponent] = match;
    if (fraction !== undefined || exponent !== undefined) return Number(all);
    if (whole!.length > DIGITS_MAX) throw new SyntaxError("an integer has too many digits");
    return BigInt(whole!);
  }

  #string(): string {
    let text = "";
    for (;;) {
      text += this.#match(PLAIN)![0];
      if (this.#takes('"')) return text;
      if (!this.#takes("\\")) this.#fail();
      const char = this.#text[this.#at++];
      if (char === "u") {
        const hex = this.#text.slice(this.#at, this.#at + 4);
        if (!/^[0-9a-fA-F]{4}$/.test(hex)) this.#fail();
        text += String.fromCharCode(Number.parseInt(hex, 16));
        this.#at += 4;
      } else {
        const plain = ESCAPED[char ?? ""];
        if (plain === undefined) this.#fail();
        text += plain;
      }
    }
  }

  #list(depth: number): Value[] {
    const items: Value[] = [];
    this.#blank();
    if (this.#takes("]")) return items;
    for (;;) {
      items.push(this.#value(depth));
      this.#blank();
      if (this.#takes("]")) return items;
      if (!this.#takes(",")) this.#fail();
    }
  }

  #object(depth: number): Map<Value, Value> {
    const items = new Map<Value, Value>();
    this.#blank();
    if (this.#takes("}")) return items;
    for (;;) {
      this.#blank();
      if (!this.#takes('"')) this.#fail();
      const key = this.#string();
      this.#blank();
      if (!this.#takes(":")) this.#fail();
      items.set(key, this.#value(depth));
      this.#blank();
      if (this.#takes("}")) return items;
      if (!this.#takes(",")) this.#fail();
    }
  }
}

export interface JsonStyle {
  readonly isAscii: boolean;
  /** Text to indent each level with. Null: write everything on one line. */
  readonly indent: string | null;
  readonly itemSeparator: string;
  readonly keySeparator: string;
  readonly isSorted: boolean;
}

/** Implements `json.dumps`. Throws for values that cannot be serialised. */
export function writeJson(value: Value, style: JsonStyle, at = "\n"): string {
  if (value === null) return "null";
  if (typeof value === "boolean") return value ? "true" : "false";
  if (typeof value === "bigint") return value.toString();
  if (typeof value === "number") return jsonFloat(value);
  if (typeof value === "string") return jsonString(value, style.isAscii);
  const inner = style.indent === null ? "" : at + style.indent;
  const outer = style.indent === null ? "" : at;
  const join = (open: string, items: readonly string[], close: string) =>
    items.length === 0
      ? open + close
      : open + inner + items.join(style.itemSeparator + inner) + outer + close;
  const next = style.indent === null ? at : inner;
  if (Array.isArray(value) || value instanceof Tuple) {
    const items = value instanceof Tuple ? value.items : value;
    return join(
      "[",
      items.map((item) => writeJson(item, style, next)),
      "]",
    );
  }
  if (!(value instanceof Map)) {
    throw new PythonError(`Object of type ${typeName(value)} is not JSON serializable`);
  }
  const entries = [...value].map(([key, item]) => [keyText(key), item] as const);
  if (style.isSorted) entries.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  const members = entries.map(([key, item]) => {
    return jsonString(key, style.isAscii) + style.keySeparator + writeJson(item, style, next);
  });
  return join("{", members, "}");
}

function keyText(key: Value): string {
  if (typeof key === "string") return key;
  if (key === null || typeof key === "boolean") return String(key);
  if (typeof key === "bigint") return key.toString();
  if (typeof key === "number") return jsonFloat(key);
  throw new PythonError(`keys must be str, int, float, bool or None, not ${typeName(key)}`);
}

function jsonFloat(value: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value < 0 ? "-Infinity" : "Infinity";
  return floatText(value);
}

function jsonString(text: string, isAscii: boolean): string {
  if (!text.isWellFormed()) throw new PythonError("a text has an unpaired surrogate");
  const plain = JSON.stringify(text);
  if (!isAscii) return plain;
  return plain.replace(/[\x7f-\uffff]/g, (unit) => {
    return `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  });
}
